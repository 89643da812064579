"""Starts the daemon of a cluster in the background, once."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from .core import hosts_file, login_shells, mounts, processes
from .core.paths import Paths
from .slurmstepd.forkserver import ForkServer


def start(folder: str) -> int:
    """Starts the daemon of a cluster in the background. Returns 0 when the daemon answers, or 1 when it has failed."""
    paths = Paths(Path(folder))
    ready, written = os.pipe()
    if os.fork():
        os.close(written)
        return 0 if os.read(ready, 16) == b"ready" else 1
    os.close(ready)
    os.setsid()
    try:
        _detach(paths, written)
        processes.adopt_orphans()
        with paths.wardens.open("a") as file:
            file.write(f"{os.getpid()} {processes.start_time(os.getpid())}\n")
        if os.fork():
            _watch_over_daemon(written)
        if paths.lock_daemon() is None:  # another daemon has the lock and already answers
            os.write(written, b"ready")
            os._exit(0)
        if not paths.up.exists():  # the cluster was taken down meanwhile
            os._exit(1)
        paths.pid.write_text(str(os.getpid()))
        mounts.show({paths.hosts: hosts_file.HOSTS, paths.profile: login_shells.PROFILE})
        forkserver = ForkServer(folder)
        processes.allow_descriptors()
        # asyncio is imported after the fork, so that the fork server stays small. Without ssl, asyncio loads faster.
        sys.modules["ssl"] = None  # type: ignore[assignment]
        import asyncio

        from .slurmctld.daemon import Daemon

        async def main() -> None:
            await Daemon(paths, forkserver).run(written)

        asyncio.run(main())
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(1)


def _watch_over_daemon(written: int) -> None:
    """Stays as the warden: the parent of the daemon, which adopts all processes that a killed daemon or slurmstepd
    leaves. They are found below it, and no stranger's process is looked at."""
    os.close(written)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(ChildProcessError):
        while True:
            os.wait()
    os._exit(0)


def _detach(paths: Paths, kept: int) -> None:
    """Detaches the daemon from its caller's folder, umask, stdin and descriptors. stdout and stderr go to the log."""
    os.chdir("/")
    os.umask(0o077)
    log = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    for number, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, number)
    os.closerange(3, kept)
    os.closerange(kept + 1, 4096)
