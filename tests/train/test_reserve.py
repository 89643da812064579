"""A process that waits to become a rank, with torch loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from clusterdp import procfs
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
PROGRAM = """
import gc, os, sys
from clusterdp.train.process import reserve
reserve.wait(lambda: None)
names = ("MASTER_PORT", "CLUSTERDP_RESUME_STEP", "CLUSTERDP_RESERVE")
found = [os.environ.get(name) for name in names]
priority = os.getpriority(os.PRIO_PROCESS, 0)
print(found, "torch._dynamo" in sys.modules, os.readlink("/proc/self/fd/0"), priority, gc.isenabled(), reserve.meet_s)
"""


@contextmanager
def waiting(
    program: str = PROGRAM, name: str = "CLUSTERDP_RESERVE", **variables: str
) -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, name: "1", "CLUSTERDP_RESUME_STEP": "7", **variables}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, env=environ, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("is_early", [True, False])
def test_reserve_becomes_a_rank_with_its_variables_and_torch(is_early: bool) -> None:
    with waiting() as process:
        if not is_early:
            wait_for("torch", lambda: procfs.name(process.pid) == "reserve" and _is_loaded(process.pid), 60)
            assert not any("nvidia" in target for _, target in procfs.descriptors(process.pid))
        said, _ = process.communicate(json.dumps({"MASTER_PORT": "1234", "CLUSTERDP_RESUME_STEP": None}) + "\n")
    assert said == f"['1234', None, None] True /dev/null {os.nice(0)} True 300.0\n"
    assert process.returncode == 0


def _is_loaded(pid: int) -> bool:
    return len(procfs.threads(pid)) == 1 and "libtorch" in procfs.read(pid, "maps")


@pytest.mark.parametrize("name", ["CLUSTERDP_RESERVE", "CLUSTERDP_STANDBY"])
def test_reserve_ends_with_stdin(name: str) -> None:
    with waiting(name=name) as process:
        said, errors = process.communicate("")
    assert (process.returncode, said, errors) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_reserve_dies_of_signals(number: signal.Signals) -> None:
    with waiting() as process:
        wait_for("its name", lambda: procfs.name(process.pid) == "reserve", 10)
        process.send_signal(number)
        assert process.wait(10) == -number


def test_rank_does_not_wait() -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from clusterdp.train.process import reserve; reserve.wait(lambda: None); print('rank', reserve.meet_s)",
        ],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "rank inf\n"


def test_rank_from_reserve_does_not_wait_long_for_a_stopped_one() -> None:
    program = "from clusterdp.train.ranks.group import Group; from clusterdp.train.ranks.rendezvous import Rendezvous; "
    program += "Group.start(Rendezvous.find(), meet_s=0.5)"
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "2"}
    environ = {**os.environ, **place, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    found = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)
    assert "RendezvousError: rank 0 of 2: no rendezvous at 127.0.0.1" in found.stderr, found.stderr
    assert "See the logs of the other ranks" in found.stderr


def test_reserve_leaves_memory_to_the_ranks() -> None:
    program = "from clusterdp.train.process import reserve; from clusterdp import procfs; "
    program += "procfs.memory_of_job = lambda: (40e9, 7.9e9); reserve.wait(lambda: None)"
    with waiting(program, LOCAL_WORLD_SIZE="4") as process:
        assert process.wait(10) == 1, "srun reports it"


def test_rank_to_be_handles_signals_before_torch_is_loaded() -> None:
    program = "import sys; from clusterdp.train.process import reserve; "
    program += "reserve.wait(lambda: print('torch' in sys.modules, flush=True)); print('torch' in sys.modules)"
    with waiting(program) as process:
        said, _ = process.communicate("{}\n")
    assert said == "False\nTrue\n"
