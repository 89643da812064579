"""HangWatch: starts the watcher of this rank, and ends it. See watcher.

The rank itself only writes its position to the page, the memory that it shares with the watcher. When the watcher sends
a signal, faulthandler writes the rank's stacks. faulthandler runs in C, and works even while the main thread holds the
GIL.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import clusterdp
from clusterdp.config.tree import RestartConfig
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train.hang import flight_record, page
from clusterdp.train.hang.watched_rank import WatchOrder
from clusterdp.train.output.say import say

# The watcher uses a signal that has no other use: NCCL takes USR1, Slurm's time limit USR2. On macOS SIGINFO is ignored
# by default.
STACKS_SIGNAL = int(signal.SIGRTMAX) - 7 if hasattr(signal, "SIGRTMAX") else int(getattr(signal, "SIGINFO", 0))
START = "import sys; sys.path.insert(0, sys.argv[1]); from clusterdp.train.hang.watcher import main; main(sys.argv[2:])"


class HangWatch:
    def __init__(self, watcher: subprocess.Popen[bytes] | None = None):
        self._watcher = watcher

    @classmethod
    def start(cls, run_dir: Path, attempt: str, restart: RestartConfig, timeout_s: float) -> HangWatch:
        """Starts the watcher. Call start() in the main thread, before any call of page.current(). If the start fails, a
        warning is printed and the training continues without a watcher."""
        try:
            return cls(_start(run_dir, attempt, restart, timeout_s))
        except OSError as error:
            say(f"clusterdp: hangs will not be noticed: {error.strerror}.", error=True)
            return cls()

    def close(self) -> None:
        """Ends the watcher, so that it reports no hang, because the rank ends in order."""
        watcher, self._watcher = self._watcher, None
        if watcher is None or watcher.stdin is None:
            return
        with suppress(OSError):
            watcher.stdin.write(b".")
            watcher.stdin.close()
        try:
            watcher.wait(2.0)
        except subprocess.TimeoutExpired:
            watcher.kill()
            watcher.wait()


def _start(run_dir: Path, attempt: str, restart: RestartConfig, timeout_s: float) -> subprocess.Popen[bytes]:
    slurm, page_fd = SlurmEnv.read(), page.shared()
    stacks = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process: faulthandler keeps its descriptor
    _keep.append(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)
    dump, pipe, folder = flight_record.place(slurm.rank)
    task = WatchOrder(
        run_dir=str(run_dir),
        attempt=attempt,
        rank=slurm.rank,
        world_size=slurm.world_size,
        local_world_size=slurm.local_world_size,
        node=slurm.node_name or socket.gethostname(),
        pid=os.getpid(),
        thread=threading.main_thread().ident or 0,
        page_fd=page_fd,
        stacks_fd=stacks.fileno(),
        stacks_signal=STACKS_SIGNAL,
        hang_after_s=restart.hang_after_s,
        on_hang=restart.on_hang,
        timeout_s=timeout_s,
        dump=dump,
        dump_pipe=pipe,
        dump_folder=folder,
    )
    root = str(Path(clusterdp.__file__).resolve().parents[1])
    words = [sys.executable, "-I", "-S", "-c", START, root, json.dumps(task._asdict())]
    return subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=(page_fd, stacks.fileno()), bufsize=0)


_keep: list[object] = []
