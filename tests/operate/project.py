"""A project with a run of each kind, for screens."""

from __future__ import annotations

from pathlib import Path

from clusterdp.operate.find.run_index import remember
from clusterdp.operate.record.note import write_note
from tests.operate.builder import T0, RunBuilder
from tests.operate.conftest import FakeQueue
from tests.operate.sweep.test_sweep import SweepBuilder

NOW = T0 + 7200
RUNNING = "digits-20231114-231320-1f2e"
FAILED = "lenet-20231114-221320-77aa"
WAITING = "gpt2-20231115-000320-9c01"
DONE = "digits-20231114-221320-03d2"
OUT_OF_MEMORY = """\
Traceback (most recent call last):
  File "/home/me/lenet/train.py", line 48, in main
    loss = model(images)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB
"""
SHOW_JOB = (
    "JobId=123460 JobName=gpt2 JobState=PENDING Reason=Resources TimeLimit=04:00:00 StartTime=2023-11-15T06:00:00 "
    "Partition=gpu ReqNodeList=(null) NumNodes=4-4 NumCPUs=32 Features=(null) "
    "ReqTRES=cpu=32,mem=64000M,node=4,billing=32,gres/gpu=32"
)
SINFO = "gpu*|up|idle|2|64|512000|gpu:a100:8(S:0-1)|a100|1-00:00:00|1-infinite"


def make_project(folder: Path, queue: FakeQueue) -> None:
    """Of each kind one: done, failed, a sweep of four, preempted and running again, waiting."""
    runs = folder / "runs"
    done = RunBuilder(runs / DONE).submitted("123456")
    done.attempt("123456.0").trained(1, 400).saved(400).measured(step=400, total=400, test_accuracy=0.981).finished()
    write_note(done.run, "baseline, with the learning rate of last week")
    failed = RunBuilder(runs / FAILED).submitted("123457", name="lenet")
    failed.attempt("123457.0").trained(1, 120).stopped(120).requeued("preempted")
    crashed = failed.passes(300).attempt("123457.1").restored(120).trained(121, 180)
    crashed.printed("step 180\n").printed(OUT_OF_MEMORY, 1).exited(1).failed(exit=1)
    sweep = SweepBuilder(runs / "rates")
    running = RunBuilder(runs / RUNNING).passes(3600).submitted("123459")
    running.attempt("123459.0").trained(1, 120).stopped(120).requeued("preempted")
    running.passes(3560).attempt("123459.1").restored(120).trained(121, 240).saved(240)
    waiting = RunBuilder(runs / WAITING).passes(6600).submitted("123460", name="gpt2")
    for run in (done.run, failed.run, sweep.sweep.files, running.run, waiting.run):
        remember(run)
    queue.answers(
        "123459|RUNNING|None|n[1-2]", "123460|PENDING|Resources|", "7_2|RUNNING|None|n3", "7_3|PENDING|Priority|"
    )
    queue.write("scontrol", f"echo '{SHOW_JOB}'\n")
    queue.write("sinfo", f"echo '{SINFO}'\n")
