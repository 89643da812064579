"""The processes of a rehearsal's runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clusterdp.rehearse.run_process import RunProcesses, _end

CANCELS = """
import signal, sys, pathlib
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
try:
    print("ready", flush=True)
    signal.pause()
finally:
    pathlib.Path(sys.argv[1]).touch()
"""


def test_terminated_run_process_is_given_time_to_cancel_its_job(tmp_path: Path) -> None:
    """Killed at once, it left a job on a real cluster."""
    command = [sys.executable, "-c", CANCELS, str(tmp_path / "cancelled")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        _end(process)
    assert (tmp_path / "cancelled").exists()
    assert process.returncode == 143


def test_ending_an_already_ended_run_process_is_not_an_error() -> None:
    runs = RunProcesses()
    with subprocess.Popen(["true"], text=True) as process:
        process.wait()
        runs._live.add(process)
        runs.end()
        _end(process)
