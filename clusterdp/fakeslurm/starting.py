"""Starts the daemon of a cluster in the background, once."""

import fcntl
import os
import sys
import time
import traceback
from pathlib import Path

from . import names, processes
from .nursery import Nursery
from .paths import Paths


def start(folder: str) -> int:
    """Start the daemon of a cluster in the background; returns when it answers, with an exit status."""
    paths = Paths(Path(folder))
    ready, written = os.pipe()
    if os.fork():
        os.close(written)
        return 0 if os.read(ready, 16) == b"ready" else 1
    os.close(ready)
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        _detach(paths, written)
        lock = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another one was quicker
            _wait_for_other(paths)
            os.write(written, b"ready")
            os._exit(0)
        paths.pid.write_text(str(os.getpid()))
        names.make_known(paths.hosts)
        nursery = Nursery(folder)
        processes.allow_descriptors()
        # Heavy, and nothing that the nursery should carry; asyncio does without ssl, which takes long to load.
        sys.modules["ssl"] = None  # type: ignore[assignment]
        import asyncio

        from .daemon import Daemon

        async def main() -> None:
            await Daemon(paths, nursery).run(written)

        asyncio.run(main())
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(1)


def _wait_for_other(paths: Paths) -> None:
    for _ in range(100):
        if paths.answers():
            return
        time.sleep(0.02)


def _detach(paths: Paths, kept: int) -> None:
    """No terminal, no inherited descriptors, a log for what goes wrong."""
    os.chdir("/")
    os.umask(0o077)
    log = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    for number, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, number)
    os.closerange(3, kept)
    os.closerange(kept + 1, 4096)
