"""Claim: one live attempt a run folder. The highest number in `claims/` owns the folder.

A job submitted by hand, a `resume` against a pending requeue, a node that was cut off and came back: two attempts may
think that they are the one. The newer wins; the older notices before it would commit or delete anything.
"""

from __future__ import annotations

import os
from pathlib import Path

from clusterdp.errors import RunError
from clusterdp.train.output.best_effort import FULL, retry_while_full


class Claim:
    def __init__(self, folder: Path, number: int, token: str):
        self.folder = folder
        self.number = number
        self.token = token

    @classmethod
    def take(cls, folder: Path, attempt: str, token: str) -> Claim:
        """Rank 0 only. Exclusive creation decides between two attempts that come at once: both get a number.
        RunError if it cannot be written; on a full disk, if there is no room for ten minutes."""
        try:
            number = retry_while_full(lambda: _create(folder, f"{attempt} {token}\n"), folder)
        except OSError as error:
            remedy = "Free some space." if error.errno in FULL else "Make the run folder writable."
            raise RunError(f"{folder}: cannot be claimed: {error.strerror}. {remedy}") from None
        return cls(folder, number, token)

    def is_newest(self) -> bool:
        """False once another attempt has claimed the folder. OSError if nobody can know: on a full disk, for example.
        Then nothing may be committed or deleted, and what asks tries again later."""
        # An NFS client may answer a listing from its cache for a minute. Changing the folder ourselves makes it compare
        # the server's version with its own, and so see what others have put there.
        probe = self.folder / f".look-{self.token}"
        probe.touch()
        probe.unlink()
        return _newest(self.folder) == self.number


def _create(folder: Path, text: str) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    number = _newest(folder) + 1
    while True:
        try:
            fd = os.open(folder / f"{number:06d}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            break
        except FileExistsError:
            number += 1
    with os.fdopen(fd, "w") as file:  # without room for the text, an empty file stays: the next try has another number
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return number


def _newest(folder: Path) -> int:
    return max((int(entry.name) for entry in os.scandir(folder) if entry.name.isdecimal()), default=0)
