"""What is told of the processes of a run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterdp import procfs
from clusterdp.rehearse.observe import processes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is read from /proc")


@contextmanager
def program(run: Path, text: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """One that has said that it is ready."""
    ranks = ("RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")  # another test may have left them
    ours = {name: value for name, value in os.environ.items() if name not in ranks}
    environ = {**ours, "CLUSTERDP_RUN_DIR": str(run), **variables}
    ready = "\nprint('ready', flush=True)\nimport sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", text + ready], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_ranks_of_finds_processes_by_their_rank_variable(tmp_path: Path) -> None:
    with program(tmp_path, "", RANK="1") as one, program(tmp_path, "", RANK="0") as zero, program(tmp_path, "") as none:
        assert processes.ranks_of(tmp_path) == {0: [zero.pid], 1: [one.pid]}
        assert none.poll() is None
    assert processes.ranks_of(tmp_path) == {}


def test_ranks_of_reads_each_environment_once_and_none_of_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a stranger that forks was locked for minutes, and with it the whole rehearsal."""
    read: list[int] = []
    environ = procfs.environ
    monkeypatch.setattr(procfs, "environ", lambda pid: read.append(pid) or environ(pid))
    with program(tmp_path, "", RANK="0") as zero:
        for _ in range(2):
            assert processes.ranks_of(tmp_path) == {0: [zero.pid]}
        assert read.count(zero.pid) == 1
        assert {*read} <= {*procfs.descendants(os.getpid())}


def test_ranks_of_uses_slurm_procid_but_skips_batch_scripts_and_torchrun_agents(tmp_path: Path) -> None:
    task = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "LOCAL_WORLD_SIZE": "2"}
    with (
        program(tmp_path, "", **task) as one,
        program(tmp_path, "", SLURM_PROCID="0", SLURM_STEP_ID="-5", LOCAL_WORLD_SIZE="2"),  # the batch script
        program(tmp_path, "", SLURM_PROCID="0", LOCAL_WORLD_SIZE="2"),  # that of an older Slurm
        program(tmp_path, "", SLURM_PROCID="0", SLURM_STEP_ID="0"),  # torchrun's agent
        program(tmp_path, "", **task, GROUP_RANK="0"),  # torchrun's worker: its task is a node's
    ):
        assert processes.ranks_of(tmp_path) == {1: [one.pid]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "default"),
        ("import signal; signal.signal(signal.SIGTERM, lambda *_: None)", "handled"),
        ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", "ignored"),
        ("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])", "blocked"),
    ],
)
def test_sigterm_disposition_of_a_process_is_default_handled_ignored_or_blocked(
    tmp_path: Path, text: str, said: str
) -> None:
    with program(tmp_path, text) as process:
        assert processes.on_signal([process.pid]) == said


def test_open_written_files_listening_ports_and_master_ports_are_found(tmp_path: Path) -> None:
    text = f"""
import os, socket
log = open({str(tmp_path / "read")!r}, "w"); log.close()
reads = open({str(tmp_path / "read")!r})
writes = open({str(tmp_path / "written")!r}, "wb", buffering=0); writes.write(b"12345")
server = socket.create_server(("127.0.0.1", 0))
open({str(tmp_path / "port")!r}, "w").write(str(server.getsockname()[1]))
"""
    with program(tmp_path, text, MASTER_PORT="1234") as process:
        assert processes.written_files([process.pid]) == [processes.OpenFile(str(tmp_path / "written"), 5)]
        assert processes.listening_ports([process.pid]) == {int((tmp_path / "port").read_text())}
        assert processes.master_ports([process.pid]) == {1234}


def test_status_page_of_a_rank_gives_its_step_and_phase(tmp_path: Path) -> None:
    text = """
from clusterdp.train.hang import page
from clusterdp.train.hang.page import EVALUATION, PHASE, STEP
page.shared()
page.current()[STEP] = 17
page.enter(EVALUATION)
"""
    with program(tmp_path, text) as process:
        assert processes.page_of([process.pid]) == processes.Page(17, processes.EVALUATION)
        file = processes.page_file([os.getpid(), process.pid])
        assert processes.read_page(file) == processes.Page(17, processes.EVALUATION)
        assert processes.read_page(f"/proc/{process.pid}/fd/0") is None, "a file that is not a page"
    assert processes.read_page(file) is None, "its process is gone"
    assert processes.page_of([os.getpid()]) is None


def test_phase_constants_equal_those_of_the_hang_page() -> None:
    from clusterdp.train.hang import page as phases

    assert (processes.RESTORE, processes.EVALUATION) == (phases.RESTORE, phases.EVALUATION)


def test_observing_an_ended_process_raises_no_error() -> None:
    with socket.socket():
        gone = 2**22 - 1
        assert processes.on_signal([gone]) == ""
        assert processes.written_files([gone]) == []
        processes.send([gone], signal.SIGCONT)
