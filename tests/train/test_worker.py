"""The worker as a process: under a batch script, torchrun, submitit or alone, and hit by a signal at any time."""

from __future__ import annotations

import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import clusterdp
from tests.ports import free_port
from tests.torch_version import quiet_gloo
from tests.train import raw_loop
from tests.train.ranks import rank_environ, running, wait_until
from tests.train.runs import Run

ROOT = Path(__file__).parents[2]
DIGITS = ["-m", "clusterdp.recipes.digits", "epochs=1", "amp=fp32"]
STRANGERS = ("SLURM_", "TORCHELASTIC_", "CLUSTERDP_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")


def environ(**more: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(STRANGERS)}
    return {**ours, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


@contextmanager
def process(command: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdout
        child.stdout.close()


def finish(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    with process(command, env) as child:
        output, _ = child.communicate(timeout=120)
        return child.returncode, output


def worker(run: Run) -> list[str]:
    return [sys.executable, "-m", "clusterdp.train.worker", str(run.path)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signal_during_imports_ends_the_worker_with_outcome_requeue(tmp_path: Path, number: signal.Signals) -> None:
    code = tmp_path / "code"
    code.mkdir()
    os.mkfifo(tmp_path / "gate")
    (code / "slow_module.py").write_text(
        f"open({str(tmp_path / 'importing')!r}, 'w').close()\n"
        f"open({str(tmp_path / 'gate')!r}).read()\n"  # until the test opens it too
        "def main(job): raise AssertionError('must not start')\n"
    )
    run = Run(tmp_path / "run", "slow_module:main")
    env = environ(**run.attempt("1.0"), PYTHONPATH=f"{code}:{ROOT}")
    with process(worker(run), env) as child:
        wait_until((tmp_path / "importing").exists, "the import")
        child.send_signal(number)
        (tmp_path / "gate").write_text("")
        output, _ = child.communicate(timeout=60)
    assert child.returncode == 0, output
    assert run.outcome("1.0") == f"requeue {'term' if number == signal.SIGTERM else 'time'} 0"


@pytest.mark.usefixtures("forks")
def test_taken_master_port_exits_98_with_one_line(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "tests.train.jobs:train")
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        code, output = finish(worker(run), environ(**run.attempt("1.0"), **rank_environ(0, 2, port)))
    lines = [line for line in output.splitlines() if line.startswith("clusterdp:")]
    assert code == 98, output
    assert len(lines) == 1
    assert lines[0].startswith(f"clusterdp: MASTER_PORT: {port} on {socket.gethostname()}: address already in use.")
    assert "Traceback" not in output
    assert run.outcome("1.0") is None


@pytest.mark.usefixtures("forks")
def test_store_accepts_connections_during_the_imports_of_rank_0(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    port = free_port()
    (code / "connecting.py").write_text(
        f"import socket\nsocket.create_connection(('127.0.0.1', {port})).close()\nraise ValueError('connected')\n"
    )
    run = Run(tmp_path / "run", "connecting:main")
    place = rank_environ(0, 2, port)
    _, output = finish(worker(run), environ(**run.attempt("1.0"), **place, PYTHONPATH=f"{code}:{ROOT}"))
    assert "ValueError: connected" in output


@pytest.mark.usefixtures("forks")
def test_rendezvous_timeout_prints_the_rank_and_address_without_a_traceback(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "tests.train.jobs:train", train={"timeout_s": 1.0})
    port = free_port()
    code, output = finish(worker(run), environ(**run.attempt("1.0"), **rank_environ(0, 2, port)))
    assert code == 6, output
    assert f"clusterdp: rank 0 of 2: no rendezvous at 127.0.0.1:{port} within 1 s" in output
    assert "Traceback" not in output


@pytest.mark.usefixtures("forks")
def test_worker_refuses_a_folder_without_config(tmp_path: Path) -> None:
    code, output = finish([sys.executable, "-m", "clusterdp.train.worker", str(tmp_path)], environ())
    assert (code, output.count("\n")) == (2, 1)
    assert "config.yaml: No such file or directory" in output


LEAN = """\
import gc, sys

looking = gc.isenabled()

def main(job):
    late = {"omegaconf", "fsspec", "torch._dynamo", "clusterdp.checkpoint.checkpointer", "clusterdp.train.loop.loop"}
    print("loaded:", *sorted(late & set(sys.modules)))
    print("garbage is looked for:", looking, gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


@quiet_gloo
def test_rank_log_starts_with_rank_node_and_versions_and_worker_imports_lazily(tmp_path: Path) -> None:
    (tmp_path / "lean.py").write_text(LEAN)
    run = Run(tmp_path / "run", "lean:main")
    env = environ(**run.attempt("1.0"), PYTHONPATH=f"{tmp_path}:{ROOT}", SLURMD_NODENAME="n7", CUDA_VISIBLE_DEVICES="")
    code, output = finish(worker(run), env)
    assert code == 0, output
    first, *rest = output.splitlines()
    versions = f"clusterdp {clusterdp.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    assert first == f"clusterdp: rank 0 of 1 on n7, cpu; {versions}"
    assert rest == ["loaded:", "garbage is looked for: False True True"]


CYCLE = """\
class Log:
    def __init__(self, path):
        self.file, self.itself = open(path, "w"), self

def main(job, path):
    Log(path).file.write("last line")
"""


@quiet_gloo
def test_file_in_a_reference_cycle_is_flushed_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "cycle.py").write_text(CYCLE)
    run = Run(tmp_path / "run", "cycle:main", params={"path": str(tmp_path / "log")})
    code, output = finish(worker(run), environ(**run.attempt("1.0"), PYTHONPATH=f"{tmp_path}:{ROOT}"))
    assert code == 0, output
    assert (tmp_path / "log").read_text() == "last line"


@pytest.mark.slow
def test_recipe_under_plain_python_stops_at_a_signal_and_resumes(tmp_path: Path) -> None:
    env = environ(CLUSTERDP_RUN_DIR=str(tmp_path / "run"))
    with process([sys.executable, *DIGITS, "step_delay_s=0.05"], env) as child:
        wait_until(lambda: list((tmp_path / "run").glob("metrics/*")), "the first step")
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=60)
    assert child.returncode == 75, output
    assert "run it again to go on" in output
    code, output = finish([sys.executable, *DIGITS], env)
    assert code == 0, output
    assert "after 179 steps" in output
    outcomes = sorted(file.read_text().split()[0] for file in (tmp_path / "run").glob("attempts/*/outcome"))
    assert outcomes == ["done", "requeue"]


@pytest.mark.usefixtures("forks")
def test_unknown_recipe_parameter_is_refused_before_the_start() -> None:
    code, output = finish([sys.executable, *DIGITS[:2], "epoch=3"], environ())
    assert (code, output.count("\n")) == (2, 1)
    assert "params.epoch: main() takes no such parameter. Did you mean params.epochs?" in output


@pytest.mark.slow  # end to end it runs in test-slurm
def test_torchrun_starts_two_workers_and_finishes_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "tests.train.jobs:train", {"epochs": 1})
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = environ(**run.attempt("7.0"), SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1")
    code, output = finish([*torchrun, "-m", "clusterdp.train.worker", str(run.path)], env)
    assert code == 0, output
    assert run.outcome("7.0") == "done finished 12"


SUBMITIT = """
import os, signal, sys
mine = lambda *_: print("USR2 is mine")
signal.signal(signal.SIGUSR2, mine)
from clusterdp.train import worker
ending = worker.run_in_submitit(sys.argv[1])
os.kill(os.getpid(), signal.SIGUSR2)
print(ending.outcome, ending.reason, ending.result, ending.exit_code)
"""


@quiet_gloo
@pytest.mark.usefixtures("forks")
def test_worker_under_submitit_returns_the_result_and_restores_handlers(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "tests.train.jobs:train", {"epochs": 1})
    run.attempt("7.0")
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    code, output = finish([sys.executable, "-c", SUBMITIT, str(run.path)], environ(**slurm))
    said, *rest = output.splitlines()[1:]
    assert said == "clusterdp: rank 0 has 24 steps of 2 samples in an epoch, 48 samples in all"
    assert (code, rest) == (0, ["USR2 is mine", "done finished 24 steps 0"])
    assert run.outcome("7.0") == "done finished 24"


@pytest.mark.usefixtures("forks")
def test_worker_stops_and_saves_before_the_jobs_time_limit(tmp_path: Path) -> None:
    params = {"epochs": 500, "delay_s": 0.01}
    for lasts_s in (9.0, 18.0, 36.0, 72.0):  # a busy machine may need all of a short time to begin
        run = Run(
            tmp_path / f"{lasts_s}",
            "tests.train.jobs:train",
            params,
            launch={"grace_s": 0},
            checkpoint={"every_steps": 5},
        )
        end = str(time.time() + lasts_s)
        code, output = finish(worker(run), environ(**run.attempt("1.0"), CLUSTERDP_JOB_END_TIME=end))
        assert code == 0, output
        word, reason, step = str(run.outcome("1.0")).split()
        assert (word, reason) == ("requeue", "time")
        told = re.findall(r"clusterdp: a save takes .* the run stops \d+ s before the end", output)
        if told:  # there was a save before that of the stop
            break
    assert run.saved("1.0") == int(step) > 0
    assert run.event("signal")["name"] == "end of time"
    assert len(told) == 1


def test_documented_raw_loop_resumes_exactly(tmp_path: Path) -> None:
    with running(tmp_path / "whole", raw_loop.main, str(tmp_path / "a"), 10, size=2) as ranks:
        whole = ranks.answers
    with running(tmp_path / "first", raw_loop.main, str(tmp_path / "b"), 10, 13, size=2) as ranks:
        assert ranks.join() == [75, 75], ranks.log
    with running(tmp_path / "second", raw_loop.main, str(tmp_path / "b"), 10, size=2) as ranks:
        assert ranks.answers == whole


@quiet_gloo
@pytest.mark.usefixtures("forks")
def test_raw_loop_runs_under_plain_python(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "tests" / "train" / "raw_loop.py"), str(tmp_path / "run"), "1"]
    code, output = finish(script, environ())
    assert (code, len(output.strip())) == (0, 64), output


def test_docstring_of_clusterdp_train_contains_the_numbered_raw_loop_lines() -> None:
    import clusterdp.train

    documented = str(clusterdp.train.__doc__)
    script = (ROOT / "tests" / "train" / "raw_loop.py").read_text()
    for number in range(1, 13):
        (line,) = [line for line in script.splitlines() if line.endswith(f"# {number}")]
        code = line.rpartition("#")[0].strip()
        assert any(code in shown for shown in documented.splitlines()), f"line {number} is not documented: {code}"


LATE = """
import atexit, os, signal
atexit.register(lambda: None)

class Late:  # freed when Python has given the signals their default action
    def __del__(self, kill=os.kill, me=os.getpid(), numbers=(signal.SIGTERM, signal.SIGUSR2)):
        for number in numbers:
            kill(me, number)

def main(job):
    import sys
    sys.last_thing = Late()
"""


def test_signal_during_interpreter_exit_does_not_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "late_module.py").write_text(LATE)
    run = Run(tmp_path / "run", "late_module:main")
    code, output = finish(worker(run), environ(**run.attempt("1.0"), PYTHONPATH=f"{tmp_path}:{ROOT}"))
    assert code == 0, output
    assert run.outcome("1.0") == "done finished 0"
