"""What /proc has of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from clusterdp import procfs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_procfs_reads_environment_command_and_state_of_a_live_process() -> None:
    pid = os.getpid()
    with subprocess.Popen(["sleep", "300"], env={"WORD": "a=b\r", "OTHER": ""}) as child:
        try:
            while "WORD" not in procfs.environ(child.pid):  # before exec it has ours, and in an exec none
                pass
            assert child.pid in procfs.children(pid) and child.pid in procfs.descendants(pid)
            assert child.pid not in procfs.descendants(pid, lambda each: each == child.pid)
            assert procfs.stat(child.pid)[1] == str(pid)
            assert procfs.environ(child.pid) == {"WORD": "a=b\r", "OTHER": ""}
            assert procfs.command(child.pid)[:2] == [b"sleep", b"300"]
            assert (0, os.readlink("/proc/self/fd/0")) in procfs.descriptors(child.pid)
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            assert procfs.state(child.pid) == "T"
        finally:
            child.kill()


def test_procfs_returns_empty_values_for_an_ended_process() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    found = [
        look(child.pid)
        for look in (procfs.stat, procfs.state, procfs.name, procfs.wchan, procfs.environ, procfs.threads)
    ]
    assert not any([*found, procfs.children(child.pid), procfs.descriptors(child.pid)])
    assert procfs.disposition(child.pid, signal.SIGTERM) == ""


def test_zombies_and_later_processes_are_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which still has its number
    assert not procfs.is_alive(child.pid)
    child.wait()
    assert not procfs.is_alive(child.pid)
    assert procfs.is_alive(os.getpid(), begun=time.time())
    assert not procfs.is_alive(os.getpid(), begun=1.7e9)
    assert not procfs.is_alive(1 << 40)
