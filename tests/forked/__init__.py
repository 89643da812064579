"""Processes that are forked from one that has torch in memory already, in place of Python's: those of jobs, too."""

from __future__ import annotations

import fcntl
import multiprocessing
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Of all ranks that a test process starts itself.
quick_to_start = multiprocessing.get_context("forkserver")
quick_to_start.set_forkserver_preload(
    ["tests.forked.preloaded", "tests.train.programs", "tests.train.jobs", "tests.checkpoint.training"]
)


@contextmanager
def forking_python(folder: Path) -> Iterator[Path]:
    """A Python for programs that import torch. folder: that of all test processes, which have one server."""
    server, python = folder / "fork", folder / "python"
    with (folder / "fork.lock").open("w") as lock, socket.socket(socket.AF_UNIX) as holder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            holder.connect(str(server))
        except OSError:
            _start(server, python)
            holder.connect(str(server))
        holder.sendall(bytes(4))
        lock.close()
        yield python


def _start(server: Path, python: Path) -> None:
    text = (Path(__file__).parent / "python.py").read_text()
    text = text.replace("@PYTHON@", sys.executable).replace("@SERVER@", str(server))
    python.write_text(f"#!{sys.executable} -IS\n{text}")
    python.chmod(0o755)
    with suppress(FileNotFoundError):
        server.unlink()
    command = [sys.executable, "-m", "tests.forked.server", str(server)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
    process.returncode = 0  # it ends with the last that holds it, which may be another process
