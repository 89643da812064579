"""launch(): a function in several ranks on this machine."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import clusterdp
from clusterdp.errors import ConfigError, EntryError, TrainError
from clusterdp.operate.queue.run_status import current_status
from clusterdp.operate.record.run_history import read_history
from clusterdp.rundir import Attempt
from clusterdp.train import History, JobHandle, Trainer, own_job
from clusterdp.train.process import launch
from clusterdp.train.ranks.rendezvous import PortTaken
from tests.torch_version import quiet_gloo
from tests.train.ranks import wait_until

pytestmark = pytest.mark.usefixtures("forks")

PYTHON = sys.executable
# A program whose function, classes and values are all in its main script; it takes a folder or "" as its argument.
SCRIPT = """\
import os, pickle, sys, time
import torch
import clusterdp

class Net(torch.nn.Linear):
    pass

SIZE = 3

def main(job, until):
    pickle.dumps(Net(SIZE, 1))  # by its name in __main__
    torch.manual_seed(0)
    model = job.wrap(Net(SIZE, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(2000, SIZE), torch.randn(2000, 1))
    for x, y in job.loop(job.loader(data, 4), {"model": model, "optimizer": optimizer}):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        if job.step == until:
            print("ready", flush=True)
            os.environ["WAITS"] = "1"
        if "WAITS" in os.environ:
            time.sleep(0.05)
    return [p.tolist() for p in model.parameters()]

print(clusterdp.launch(main, ranks=2, run_dir=sys.argv[1] or None, until=int(sys.argv[2])))
"""


@pytest.fixture(autouse=True)
def buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is live without the variable that some machines set."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def greet(job: JobHandle, word: str) -> tuple[str, int]:
    print(f"{word} from {job.rank}")
    return word, int(job.group.agree(job.rank)[0])


def status_of(run: Path) -> tuple[str, str]:
    status = current_status(read_history(clusterdp.RunDir(run)))
    return status.state.value, status.why


@quiet_gloo
def test_launch_returns_the_result_and_shows_the_output_of_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert clusterdp.launch(greet, ranks=2, word="hello") == ("hello", 1)
    assert capsys.readouterr().out == "hello from 0\n"


@quiet_gloo
def test_launch_keeps_the_output_of_all_ranks_in_the_run_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clusterdp.launch(greet, ranks=2, run_dir=tmp_path / "run", word="hello")
    (attempt,) = clusterdp.RunDir(tmp_path / "run").attempts()
    assert attempt.rank_log(1).read_text() == "hello from 1\n"
    assert attempt.rank_log(0).read_text() == capsys.readouterr().out == "hello from 0\n"
    assert attempt.outcome.read_text() == "done finished 0\n"
    assert status_of(tmp_path / "run") == ("done", "")


def test_error_of_rank_0_is_in_its_log(tmp_path: Path) -> None:
    def main(job: JobHandle) -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        clusterdp.launch(main, ranks=1, run_dir=tmp_path / "run")
    (attempt,) = clusterdp.RunDir(tmp_path / "run").attempts()
    assert attempt.rank_log(0).read_text().endswith("ValueError: bad\n\n")
    why = "no ending on record, and its process is gone: it has failed, or was killed"
    wait_until(lambda: status_of(tmp_path / "run") == ("vanished", why), "the end of the forked rank")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_error_of_rank_0_arrives_with_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attempt, "rank_log", lambda self, rank: Path("/dev/full"))

    def main(job: JobHandle) -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        clusterdp.launch(main, ranks=1, run_dir=tmp_path / "run")


@pytest.mark.parametrize("taken", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_launch_tries_three_ports(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        free, ports = launch._free_port, [other.getsockname()[1]] * taken
        monkeypatch.setattr(launch, "_free_port", lambda: ports.pop() if ports else free())
        if taken < launch.PORTS:
            assert clusterdp.launch(greet, ranks=2, word="hello") == ("hello", 1)
        else:
            with pytest.raises(PortTaken):
                clusterdp.launch(greet, ranks=2, word="hello")


def test_trainer_in_a_launched_function_needs_no_job_handle() -> None:
    import torch

    def main() -> tuple[History, int]:
        net = torch.nn.Linear(3, 1)
        trainer = Trainer(net, torch.nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1))
        return trainer.fit((torch.randn(64, 3), torch.randn(64, 1)), batch_size=8), own_job().world_size

    history, size = clusterdp.launch(main, ranks=2)
    assert (history["step"], size) == ([4], 2)


class Unlucky(Exception):
    pass


def fail(job: JobHandle, rank: int) -> None:
    if job.rank == rank:
        raise Unlucky(f"number {rank}")
    job.group.agree(0)


@pytest.mark.parametrize("rank", [0, 1])
def test_launch_raises_the_first_error_of_a_rank(rank: int) -> None:
    with pytest.raises(Unlucky, match=f"number {rank}") as raised:
        clusterdp.launch(fail, ranks=2, rank=rank)
    assert f"in rank {rank}:" in str(raised.value.__cause__)
    assert "line" in str(raised.value.__cause__)


@quiet_gloo
def test_launch_names_a_killed_rank_and_not_the_lost_connection() -> None:
    def main(job: JobHandle) -> None:
        if job.rank == 1:
            print("good-bye", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        job.group.agree(0)

    with pytest.raises(TrainError, match=r"rank 1 was killed by SIGKILL\. Its last lines: good-bye"):
        clusterdp.launch(main, ranks=2)


@quiet_gloo
def test_launch_shows_the_output_of_a_failing_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def main(job: JobHandle) -> None:
        print("epoch 1")
        sys.exit("no data")

    with pytest.raises(SystemExit, match="no data"):
        clusterdp.launch(main, ranks=1)
    assert capsys.readouterr().out == "epoch 1\n"


def test_launch_without_a_folder_ignores_the_folder_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUN_DIR", "CHECKPOINT_URL"):
        monkeypatch.setenv(f"CLUSTERDP_{name}", str(tmp_path))
    assert clusterdp.launch(lambda job: (job.run_dir, job.saving.url), ranks=1) == (None, None)


def test_launched_function_may_name_a_parameter_job() -> None:
    def main(*, job: str) -> str:
        return job

    assert clusterdp.launch(main, ranks=1, job="mine") == "mine"


def test_launch_refuses_a_result_without_a_pickled_form() -> None:
    with pytest.raises(TrainError, match="the return value, a generator, cannot be pickled"):
        clusterdp.launch(lambda job: (n for n in range(3)), ranks=1)


def test_launch_exits_75_after_job_stop(tmp_path: Path) -> None:
    def main(job: JobHandle) -> None:
        job.stop("enough")
        for _ in job.loop([1, 2, 3] * 100, {}):
            pass

    with pytest.raises(SystemExit) as raised:
        clusterdp.launch(main, ranks=2, run_dir=tmp_path)
    assert raised.value.code == 75


@pytest.mark.parametrize(
    ("function", "given", "error", "said"),
    [
        (greet, {"ranks": 0}, ConfigError, "ranks=0"),
        (greet, {"ranks": "2"}, ConfigError, "ranks: is the word '2'. Pass a whole number."),
        (greet, {"words": "x"}, EntryError, "word"),
        ("train.py", {}, ConfigError, "function: is the word 'train.py'. Pass a function of"),
        (lambda: sys.stdout, {"x": 1}, EntryError, "x"),
        (partial(greet, word=threading.Lock()), {}, EntryError, "cannot be sent to the ranks"),
    ],
)
def test_launch_refuses_invalid_arguments(function: object, given: dict[str, object], error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        clusterdp.launch(function, **given)  # type: ignore[arg-type]


def test_launch_within_a_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="already is rank 0 of 2"):
        clusterdp.launch(greet, word="x")


class Script:
    """SCRIPT, as a process whose output is in a file."""

    def __init__(self, folder: Path, run: Path | str = "", until: int = -1, python: str = ""):
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(SCRIPT)
        self.out = folder / "out"
        with self.out.open("w") as out:
            words = [python or sys.executable, "train.py", str(run), str(until)]
            self.process = subprocess.Popen(words, cwd=folder, stdout=out, stderr=subprocess.STDOUT)

    def said(self, words: str) -> bool:
        return words in self.out.read_text()

    def ranks(self) -> list[int]:
        listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()]
        return [int(pid) for pid, parent, words in rows if parent == str(self.process.pid) and "launched_rank" in words]


def test_interrupted_launch_saves_and_continues_exactly(tmp_path: Path) -> None:
    whole = Script(tmp_path / "whole")
    assert whole.process.wait(120) == 0
    first = Script(tmp_path / "parts", tmp_path / "run", until=20)
    wait_until(lambda: first.said("ready"), "step 20")
    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(60) == -signal.SIGINT
    assert first.said("interrupted: the ranks save and stop")
    second = Script(tmp_path / "parts", tmp_path / "run")
    assert second.process.wait(120) == 0
    assert second.out.read_text().splitlines()[-1] == whole.out.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGTERM))],
)
def test_ranks_end_with_their_launcher(tmp_path: Path, number: signal.Signals) -> None:
    script = Script(tmp_path, until=20, python=PYTHON)  # which has the ranks as its children
    wait_until(lambda: script.said("ready"), "step 20")
    ranks = script.ranks()
    assert len(ranks) == 2
    script.process.send_signal(number)
    script.process.wait(60)
    wait_until(lambda: not any(map(is_alive, ranks)), "the end of the ranks")


def is_alive(pid: int) -> bool:
    """A zombie is not: another test may have made this process the one that its descendants are left to."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return state.strip()[:1] not in ("", "Z")


WORKERS = """\
import time, torch, clusterdp

class Data(torch.utils.data.Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, index): return torch.zeros(3)

def main(job):
    for x in job.loop(job.loader(Data(), 4, num_workers=1), {}):
        time.sleep(0.01)

clusterdp.launch(main, ranks=2)
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")
def test_processes_of_100_killed_launchers_all_end(tmp_path: Path) -> None:
    """Killed at random instants: before there is a rank, while ranks start, with workers of a DataLoader."""
    file = tmp_path / "train.py"
    file.write_text(WORKERS)
    dice = random.Random(os.environ.get("CLUSTERDP_SEED", "5"))
    with_workers = 0
    for number in range(100):
        mark = f"ORPHAN_MARK={tmp_path.name}-{number}-"
        env = {**os.environ, "ORPHAN_MARK": mark.partition("=")[2]}
        launcher = subprocess.Popen([PYTHON, str(file)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(dice.uniform(0, 6))
        with_workers += len(marked(mark)) > 3
        launcher.send_signal(dice.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM]))
        launcher.wait(60)
        wait_until(lambda mark=mark: not marked(mark), f"the end of launcher {number}'s processes")
    assert with_workers >= 10


def marked(mark: str) -> list[str]:
    """Returns the processes that have the mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if (
                folder.name.isdigit()
                and mark.encode() in (folder / "environ").read_bytes()
                and is_alive(int(folder.name))
            ):
                found.append(folder.name)
    return found
