"""RunLock: one process at a time submits a job of a run. Without the lock, two processes that resume a run at the same
time would start two jobs.

The lock is the file with the highest number in `submits/` of the run folder. A process creates the next file
exclusively, if the previous lock is released or its owner is gone. No number is used twice: of two processes, only one
can take the lock. Exclusive creation is reliable on NFS and Lustre; flock is not.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from clusterdp import procfs
from clusterdp.errors import RunError
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir, parse, write_durably

STALE_S = 600.0  # an older lock is free: no submission takes so long, and so the owner was killed


class RunLock:
    """The lock is held in the body of the with statement, or until release(). Raises RunError, which names the owner,
    if another process holds the lock."""

    def __init__(self, run: RunDir):
        self.run = run
        self.number = 0
        self._owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}

    def __enter__(self) -> RunLock:
        try:
            self._take()
        except OSError as error:
            raise RunError(
                f"{self.run.path}: cannot be written: {error.strerror}. See who owns it, and whether its disk is full."
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def check(self) -> None:
        """Raises RunError if another process has taken the lock. Call check() right before the submit, because a
        process that was suspended for long may have lost the lock."""
        if (newest := self._newest()) != self.number:
            raise self._refusal(newest)

    def release(self) -> None:
        """Releases the lock. No error is raised if the lock was released before, or if the run folder is missing or
        cannot be written."""
        file, self.number = self._file(self.number), 0
        if file.exists():
            with suppress(OSError):
                write_durably(file, json.dumps({**self._owner, "released": time.time()}) + "\n")

    def _take(self) -> None:
        self.run.submits.mkdir(exist_ok=True)
        newest = self._newest()
        if newest and not _is_free(self._file(newest)):
            raise self._refusal(newest)
        try:
            fd = os.open(self._file(newest + 1), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise self._refusal(newest + 1) from None
        self.number = newest + 1
        with suppress(OSError), os.fdopen(fd, "w") as file:  # on a full disk the file stays empty, but is a valid lock
            file.write(json.dumps(self._owner) + "\n")

    def _file(self, number: int) -> Path:
        return self.run.submits / f"{number:06d}"

    def _newest(self) -> int:
        return max((int(name) for name in os.listdir(self.run.submits) if re.fullmatch(r"[0-9]{6}", name)), default=0)

    def _refusal(self, number: int) -> RunError:
        owner = _read(self._file(number))
        for _ in range(20):
            if "pid" in owner:
                break
            time.sleep(0.05)  # another process has created the file, and still writes it
            owner = _read(self._file(number))
        who = f"process {owner.get('pid', '?')} on {owner.get('host', 'some host')}"
        when = time.strftime("%H:%M:%S", time.localtime(owner["since"]))
        path = self.run.path
        return RunError(
            f"{path}: {who} has been submitting a job of it since {when}. "
            f"Wait for its end, then see `clusterdp status {path}`."
        )


def _is_free(file: Path) -> bool:
    """Returns whether the lock is free: it was released, its owner died on this host, or the lock is older than
    STALE_S."""
    owner = _read(file)
    if "released" in owner or time.time() - owner["since"] > STALE_S:
        return True
    return owner.get("host") == socket.gethostname() and not _is_alive(owner.get("pid"))


def _read(file: Path) -> dict[str, Any]:
    """Returns the owner of a lock. The result always has `since`: if the file is unfinished, the file's time is
    used."""
    owner: dict[str, Any] | None = None
    since = time.time()
    with suppress(OSError):
        since = file.stat().st_mtime
        owner = parse(read_plain(file))
    owner = owner or {}
    told = owner.get("since")
    return owner if isinstance(told, float) and 0 <= told < 1e11 else {**owner, "since": since}


def _is_alive(pid: object) -> bool:
    return not isinstance(pid, int) or not 0 < pid < 1 << 31 or procfs.is_alive(pid)
