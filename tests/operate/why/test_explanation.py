"""`clusterdp why`, as it is printed: golden screens at two widths, the JSON, and folders in any state."""

from __future__ import annotations

import io
import json
import os
import random
import re
from pathlib import Path

import pytest

from clusterdp.operate.output.formatting import Colour
from clusterdp.operate.queue.run_status import current_status
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.status.show_status import as_text as status_text
from clusterdp.operate.status.watch import summary
from clusterdp.operate.why.show_why import as_text, explanation, show_why
from clusterdp.rundir import RunDir
from tests.operate.builder import T0, AttemptBuilder, RunBuilder
from tests.operate.conftest import FakeQueue
from tests.operate.golden import check_golden
from tests.operate.why.make_records import restore

NOW = T0 + 3600
GOLDEN = Path(__file__).parent / "golden"
SHOW_JOB = (
    "JobId=7 JobName=digits JobState=PENDING Reason=Resources TimeLimit=04:00:00 StartTime={start} Partition=gpu "
    "ReqNodeList=(null) NumNodes=4-4 NumCPUs=32 ReqTRES=cpu=32,mem=64000M,node=4,billing=32,gres/gpu=32 "
    "Features={features}"
)
SINFO = ("idle|2|64|512000|gpu:a100:8(S:0-1)|a100|1-00:00:00|1-infinite", "mixed|6|64|512000|gpu:8|a100|1-00:00:00|1-8")


def screen(run: RunDir, columns: int = 80, now: float = NOW) -> str:
    history = read_history(run)
    found = explanation(history, current_status(history), now)
    return "\n".join(as_text(found, Colour(io.StringIO()), columns)) + "\n"


def in_json(run: RunDir) -> dict[str, object]:
    out = io.StringIO()
    show_why(run, out, as_json=True, now=NOW)
    found: dict[str, object] = json.loads(out.getvalue())
    return found


def pending(
    queue: FakeQueue, reason: str, start: str = "Unknown", features: str = "(null)", sinfo: object = SINFO
) -> None:
    queue.answers(f"7|PENDING|{reason}|")
    queue.write("scontrol", f"echo '{SHOW_JOB.format(start=start, features=features)}'\n")
    queue.write("sinfo", "".join(f"echo 'gpu*|up|{row}'\n" for row in sinfo))  # type: ignore[attr-defined]


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("name", ["flood", "killed", "collective-timeout", "entry-shapes", "torchrun-killed"])
def test_why_screen_of_a_failure_equals_its_golden_file(name: str, columns: int, elsewhere: Path) -> None:
    check_golden(GOLDEN / f"{name}-{columns}.txt", screen(restore(name, elsewhere / "runs" / name), columns))


@pytest.mark.parametrize("columns", [40, 80])
def test_why_screen_of_a_pending_job_equals_its_golden_file(
    columns: int, builder: RunBuilder, queue: FakeQueue
) -> None:
    pending(queue, "Resources", start="2023-11-20T08:00:00")
    check_golden(GOLDEN / f"resources-{columns}.txt", screen(builder.submitted().run, columns))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "less   2 of 4 are idle in gpu: resources.nodes=2 could start now if no job comes before it"),
        ("PartitionTimeLimit", "less   gpu allows 1-00:00:00: resources.time=1-00:00:00"),
        ("JobHeldUser", "do     `scontrol release 7` lets it go"),
        ("DependencyNeverSatisfied", "do     cancel it"),
        ("Dependency", "do     `scontrol show job 7` has the job ids at Dependency="),
    ],
)
def test_why_of_a_pending_job_suggests_a_remedy_for_its_reason(
    reason: str, words: str, builder: RunBuilder, queue: FakeQueue
) -> None:
    pending(queue, reason)
    assert words in screen(builder.submitted().run, 120)


@pytest.mark.parametrize(
    ("config", "excluded", "do"),
    [
        ("", "n[6-7]", "`scontrol update JobId=7 ExcNodeList=` lets it have them"),
        ("n7", "n[6-7]", "`scontrol update JobId=7 ExcNodeList=n7` lets it have them"),
        ("n7", "n7", "see resources.constraint"),
        ("", "(null)", "see resources.constraint"),
    ],
)
def test_why_of_a_waiting_job_names_its_avoided_nodes(
    config: str, excluded: str, do: str, builder: RunBuilder, queue: FakeQueue
) -> None:
    run = builder.submitted().run
    (run.path / "batch").mkdir()
    (run.path / "batch/rules.json").write_text(json.dumps({"exclude": config}))
    pending(queue, "BadConstraints", features=f"(null) ExcNodeList={excluded}")
    text = screen(run, 200)
    assert f"do     {do}" in text
    avoids = {"": ["the run avoids n6, n7"], "n7": ["the run avoids n6"]}[config] if "scontrol" in do else []
    assert re.findall("the run avoids.*", text) == avoids
    assert ("ExcNodeList" in str(in_json(run)["pending"])) is bool(avoids)


def test_why_prints_slurms_start_estimate_or_reports_a_missing_one(builder: RunBuilder, queue: FakeQueue) -> None:
    pending(queue, "Resources")
    assert "start  Slurm has no estimate\n" in screen(builder.submitted().run)
    pending(queue, "Resources", start="2023-11-20T08:00:00")
    assert "start  20 Nov 08:00:00, as Slurm estimates it" in screen(builder.run)
    pending(queue, "BeginTime", start="2023-11-20T08:00:00")
    assert "start  20 Nov 08:00:00 at the earliest\n" in screen(builder.run)
    pending(queue, "JobHeldUser")
    assert "start" not in screen(builder.run)


@pytest.mark.parametrize(
    ("row", "features"),
    [
        ("idle|4|64|512000|gpu:8||infinite|1-infinite", "(null)"),  # enough of them: something else holds it back
        ("idle|2|64|512000|gpu:4||infinite|1-infinite", "(null)"),  # too few GPUs on each
        ("idle|2|4|512000|gpu:8||infinite|1-infinite", "(null)"),
        ("idle|2|64|8000|gpu:8||infinite|1-infinite", "(null)"),
        ("idle|2|64|512000|gpu:8|v100|infinite|1-infinite", "a100"),
        ("idle*|2|64|512000|gpu:8||infinite|1-infinite", "(null)"),  # they do not answer
        ("reserved|2|64|512000|gpu:8||infinite|1-infinite", "(null)"),
        ("no row at all", "(null)"),
    ],
)
def test_why_suggests_no_smaller_request_if_fewer_nodes_would_not_help(
    row: str, features: str, builder: RunBuilder, queue: FakeQueue
) -> None:
    busy = "mixed|6|64|512000|gpu:8||infinite|1-infinite"
    pending(queue, "Resources", sinfo=(row, busy), features=features)
    assert "less" not in screen(builder.submitted().run)


def test_why_names_the_node_limit_of_the_partition(builder: RunBuilder, queue: FakeQueue) -> None:
    pending(queue, "PartitionNodeLimit", sinfo=("idle|9|64|512000|gpu:8||infinite|1-2",))
    assert "less   gpu allows 2 nodes a job: resources.nodes=2" in screen(builder.submitted().run)
    pending(queue, "PartitionConfig", sinfo=("idle|3|64|512000|gpu:8||infinite|1-infinite",))
    assert "less   gpu has 3 nodes in all" in screen(builder.run)


def test_why_of_a_requeued_pending_job_explains_its_last_crash(builder: RunBuilder, queue: FakeQueue) -> None:
    trace = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n"
    builder.submitted().attempt().printed(trace, 1).requeued("crash")
    pending(queue, "BeginTime")
    text = screen(builder.run)
    assert "before attempt 1 crashed" in text
    assert "cause  the GPU's memory is full" in text


def test_why_prints_the_remaining_facts_if_a_slurm_command_fails(builder: RunBuilder, queue: FakeQueue) -> None:
    queue.answers(error="slurm_load_jobs error: Unable to contact slurm controller")
    assert "Unable to contact slurm controller" in screen(builder.submitted().run)
    queue.answers("7|PENDING|Resources|")
    queue.write("scontrol", "exit 1\n")
    assert "reason Resources: next in line" in screen(builder.run)
    queue.write("scontrol", f"echo '{SHOW_JOB.format(start='x', features='')}'\n")
    queue.write("sinfo", "exit 1\n")
    assert "asks   4 nodes, 32 CPUs, 32 GPUs, 04:00:00 of time" in screen(builder.run)


def test_attempt_started_after_a_failed_run_is_not_counted_as_a_retry(builder: RunBuilder) -> None:
    builder.submitted().attempt().trained(1, 20).failed(exit=1)
    builder.run.attempt("7.1").path.mkdir()
    AttemptBuilder(builder, builder.run.attempt("7.1")).failed(exit=1)
    assert "tried" not in screen(builder.run)


END_OF_STEP = "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2023-11-14T22:13:20 DUE to SIGNAL Terminated ***\n"


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("gave-up", "2 attempt(s) that ended so (preempted), where restart.preempted.limit is 1"),
        ("node-lost", ""),
        ("timeout", ""),
        ("signal", ""),
    ],
)
def test_why_status_and_watch_do_not_blame_ranks_ended_by_slurm(cause: str, reason: str, builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().stopped(40).printed(f"step 40\n{END_OF_STEP}")
    builder.batch_log("srun: error: n1: task 0: Killed\n")
    attempt.exited(143).failed(cause, **({"reason": reason} if reason else {}))
    history = read_history(builder.run)
    status = status_text(history, current_status(history), NOW, Colour(io.StringIO()))
    for shown in (
        screen(builder.run, 120),
        "\n".join(status),
        "\n".join(summary(history, current_status(history), Colour(io.StringIO()))),
    ):
        assert reason in shown
        assert "another" not in shown
        assert "Killed" not in shown
        assert "rank 0" not in shown.partition("clusterdp ")[0]


def test_status_and_why_show_the_end_of_a_range_of_nodes(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt(most_nodes=8).trained(1, 20)
    queue.answers("7|RUNNING|None|n[1-2]")
    history = read_history(builder.run)
    assert "where  attempt 1 on n[1-2], 2 of up to 8 nodes" in screen(builder.run)
    status = status_text(history, current_status(history), NOW, Colour(io.StringIO()))
    assert "7 on n[1-2], 2 of up to 8 nodes" in "\n".join(status)


def test_why_shows_the_state_of_running_vanished_cancelled_and_done_runs(builder: RunBuilder, queue: FakeQueue) -> None:
    attempt = builder.submitted().attempt().trained(1, 20)
    queue.answers("7|RUNNING|None|n[1-2]")
    assert "why    it runs\nwhere  attempt 1 on n[1-2]" in screen(builder.run)
    queue.answers()
    assert "ended  no ending on record, and Slurm no longer knows the job" in screen(builder.run)
    assert "sacct -j 7" in screen(builder.run)
    queue.answers("7|CANCELLED|None|")
    assert "ended  by scancel, outside clusterdp" in screen(builder.run)
    builder.cancelled()
    builder.event("cancelled", "submit-7", "cancel", job="7")
    assert "ended  by `clusterdp cancel`, " in screen(builder.run)
    attempt.finished(20)
    assert "ended  it finished at step 20\n" in screen(builder.run)


def test_why_of_a_given_up_run_shows_the_limit_and_last_failure(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").printed("Traceback (most recent call last):\nKeyError: 'lr'\n", 1).requeued(
        "crash"
    )
    builder.attempt("7.1").failed("gave-up", reason="4 faults, where restart.max_crashes is 3")
    text = screen(builder.run)
    assert "ended  4 faults, where restart.max_crashes is 3" in text
    assert "error  KeyError: 'lr'" in text


def test_why_of_a_hang_shows_its_report(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().trained(1, 5)
    reason = "rank 1 on n1: step 4, in the loader; the others wait in step 5"
    builder.event("hang", "7.0", "hang0", ranks=[1], nodes="n1", step=4, reason=reason)
    attempt.files.hang.write_text(f"No sign of progress for 4 s: {reason}.\n\nrank  node\n")
    attempt.printed("clusterdp: ending rank 1: the attempt has hung; see hang.txt\n", 1).failed("hung", exit=137)
    builder.batch_log("srun: error: n1: task 0: Killed\n")
    text = screen(builder.run)
    assert "behind rank 1 on n1, step 4\ncause  no rank made progress, so clusterdp ended the attempt as hung\n" in text
    assert "runs/digits/attempts/7.0/hang.txt:\n  | No sign of progress for 4 s: rank 1 on n1" in text
    assert "flight" not in text
    attempt.files.flight_record("n1").parent.mkdir()
    for node in ("n1", "n2"):
        attempt.files.flight_record(node).touch()
    assert "runs/digits/attempts/7.0/hang/flight-record-n1.pickle, and 1 more" in screen(builder.run)


@pytest.mark.parametrize(
    "log", [b"", b"\n\n", random.Random(4).randbytes(50_000), b"\xff\xfe\x00\x1b[2J" * 5000, b"x" * 100_000]
)
def test_why_survives_any_bytes_in_a_log(log: bytes, builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt()
    attempt.files.rank_log(0).write_bytes(log)
    attempt.files.rank_log(1).mkdir()
    attempt.failed(exit=1)
    text = screen(builder.run)
    assert "ended  crashed (exit 1)" in text
    assert len(text) < 60_000


def test_why_reads_only_the_end_of_a_huge_log(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt()
    with attempt.files.rank_log(0).open("wb") as log:
        log.truncate(10 << 30)
        log.seek(10 << 30)
        log.write(b"\nTraceback (most recent call last):\nValueError: the loss is nan\n")
    attempt.failed(exit=1)
    assert "cause  the loss or a gradient is not a finite number" in screen(builder.run)


def test_why_survives_a_missing_run_folder_and_torn_error_notes(
    builder: RunBuilder, queue: FakeQueue, tmp_path: Path
) -> None:
    assert "waiting" in screen(RunDir(tmp_path / "gone"))
    attempt = builder.submitted().attempt()
    attempt.files.error.write_text("n1")  # torn
    attempt.failed(exit=1)
    assert "ended  crashed (exit 1)" in screen(builder.run)
    for torn in ("\x00" * 100, "n1\nx\n", "n1\n99999999999999999999\nValueError: x\n99999999999999999999\n"):
        attempt.files.error.write_text(torn)
        assert "ended  crashed (exit 1)" in screen(builder.run)


def test_why_of_another_users_run_warns_of_hidden_jobs(
    builder: RunBuilder, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.submitted().attempt()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert "whose jobs Slurm may hide from you" in screen(builder.run)


def test_why_json_has_state_failure_and_pending_reason(elsewhere: Path, builder: RunBuilder, queue: FakeQueue) -> None:
    found = in_json(restore("entry-shapes", elsewhere / "runs" / "shapes"))
    failure = found["failure"]
    assert isinstance(failure, dict)
    assert (found["state"], found["pending"]) == ("failed", None)
    assert {key: failure[key] for key in ("rank", "node", "signature", "evidence", "followed")} == {
        "rank": 3,
        "node": "n2",
        "signature": "shapes",
        "evidence": "named",
        "followed": [0, 1, 2],
    }
    pending(queue, "Resources", start="2023-11-20T08:00:00")
    waits = in_json(builder.submitted().run)["pending"]
    assert isinstance(waits, dict)
    assert (waits["reason"], waits["nodes"], waits["never_starts"]) == ("Resources", 4, False)
    assert "resources.nodes=2" in waits["smaller"]


def test_status_of_a_failed_run_has_a_line_with_the_cause(elsewhere: Path) -> None:
    history = read_history(restore("memory-error", elsewhere / "runs" / "memory"))
    lines = status_text(history, current_status(history), NOW, Colour(io.StringIO()))
    assert "why    the program asked for more memory than the node gives it (rank 0 on n1)" in lines


def test_why_prints_the_exit_code_of_the_silent_rank_not_of_srun(builder: RunBuilder) -> None:
    """srun ends the other ranks, and then itself with 143."""
    attempt = builder.submitted().attempt()
    attempt.printed("step 1\n", 0).printed("", 1).failed("start", exit=143)
    builder.batch_log("srun: error: n2: task 1: Exited with exit code 3\nsrun: error: n1: task 0: Terminated\n")
    text = screen(builder.run)
    assert "(rank 1: exit 3)" in text and "143" not in text
    assert "rank-00001.out:\n  (rank 1 printed nothing)\n" in text
    history = read_history(builder.run)
    assert "(rank 1: exit 3)" in summary(history, current_status(history), Colour(io.StringIO()))[0]
    assert "143" not in "".join(status_text(history, current_status(history), NOW, Colour(io.StringIO())))
