"""Of two that submit a job of one run at the same time one does it, or two jobs would undo each other's work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterdp.errors import RunError
from clusterdp.rundir import RunDir
from clusterdp.submission.send.lock import STALE_S, RunLock

TAKE = """
import pathlib, sys
from clusterdp.errors import RunError
from clusterdp.submission.send.lock import RunLock
from clusterdp.rundir import RunDir
print("ready", flush=True)
for line in sys.stdin:
    try:
        lock = RunLock(RunDir(pathlib.Path(sys.argv[1]))).__enter__()
        print("won", flush=True)
    except RunError as error:
        print(error, flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_run_lock_is_granted_to_one_racing_process_until_its_death(run: RunDir) -> None:
    command = [sys.executable, "-c", TAKE, str(run.path)]
    with ExitStack() as stack:
        racers = [stack.enter_context(Racer(command)) for _ in range(3)]
        assert {racer.hear() for racer in racers} == {"ready\n"}
        while racers:
            for racer in racers:
                racer.go()
            said = [racer.hear() for racer in racers]
            assert said.count("won\n") == 1, said
            winner = racers.pop(said.index("won\n"))
            assert all(f"process {winner.pid} on " in text for text in said if text != "won\n"), said
            winner.kill()
            winner.wait()


class Racer(subprocess.Popen[str]):
    """A process that tries whenever it is told to, and says how that ended."""

    def __init__(self, command: list[str]):
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def go(self) -> None:
        assert self.stdin
        self.stdin.write("go\n")

    def hear(self) -> str:
        assert self.stdout
        return self.stdout.readline()


def test_run_lock_is_free_after_its_with_block_and_after_release(run: RunDir) -> None:
    with RunLock(run) as lock:
        with pytest.raises(RunError, match=f"process {os.getpid()} on "), RunLock(run):
            pass
        lock.release()
        with RunLock(run) as second:
            second.check()
    with RunLock(run) as third:
        assert third.number == 3


def owner(run: RunDir, **values: object) -> Path:
    run.submits.mkdir(exist_ok=True)
    file = run.submits / "000001"
    file.write_text(json.dumps({"host": os.uname().nodename, "pid": os.getpid(), "since": time.time(), **values}))
    return file


def test_run_lock_of_another_host_expires_after_the_stale_time(run: RunDir) -> None:
    owner(run, host="login7", pid=99999999)
    with pytest.raises(RunError, match=r"process 99999999 on login7 has been submitting a job of it since \d\d:"):
        RunLock(run).__enter__()
    owner(run, host="login7", since=time.time() - STALE_S - 1)
    with RunLock(run) as lock:
        assert lock.number == 2


def test_run_lock_of_a_dead_process_on_this_host_is_taken_over(run: RunDir) -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    owner(run, pid=process.pid)
    with RunLock(run) as lock:
        assert lock.number == 2


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"host": 1, "since": "x"}'])
def test_malformed_run_lock_file_refuses_other_submits_until_it_is_stale(
    run: RunDir, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterdp.submission.send.lock.time.sleep", lambda seconds: None)
    file = owner(run)
    file.write_text(text)
    with pytest.raises(RunError, match="has been submitting"):
        RunLock(run).__enter__()
    os.utime(file, times=(time.time() - STALE_S - 1,) * 2)
    with RunLock(run) as lock:
        assert lock.number == 2


def test_run_lock_check_fails_for_an_expired_owner_after_a_takeover(run: RunDir) -> None:
    with RunLock(run) as slept:
        owner(run, since=time.time() - STALE_S - 1)
        with RunLock(run), pytest.raises(RunError, match="has been submitting"):
            slept.check()


def test_run_lock_is_refused_if_its_number_was_taken_meanwhile(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has taken it between the look and the creation."""
    with RunLock(run):
        monkeypatch.setattr(RunLock, "_newest", lambda self: 0)
        with pytest.raises(RunError, match=f"process {os.getpid()} on "):
            RunLock(run).__enter__()


def test_unwritable_run_lock_folder_is_an_error(run: RunDir) -> None:
    run.submits.write_text("a file")
    with pytest.raises(RunError, match=r"cannot be written: .*See who owns it"):
        RunLock(run).__enter__()
