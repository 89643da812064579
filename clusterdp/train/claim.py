"""Claim: one live attempt a run folder. The highest number in `claims/` owns the folder.

A job submitted by hand, a `resume` against a pending requeue, a node that was cut off and came back: two attempts may
think that they are the one. The newer wins; the older notices before it would commit or delete anything.
"""

from __future__ import annotations

import os
from pathlib import Path

from clusterdp.errors import RunError


class Claim:
    def __init__(self, folder: Path, number: int, token: str):
        self.folder = folder
        self.number = number
        self.token = token

    @classmethod
    def take(cls, folder: Path, attempt: str, token: str) -> Claim:
        """Rank 0 only. Exclusive creation decides between two attempts that come at once: both get a number."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            number = _newest(folder) + 1
            while True:
                try:
                    fd = os.open(folder / f"{number:06d}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                    break
                except FileExistsError:
                    number += 1
            with os.fdopen(fd, "w") as file:
                file.write(f"{attempt} {token}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{folder}: cannot be claimed: {error.strerror}. Make the run folder writable.") from None
        return cls(folder, number, token)

    def is_newest(self) -> bool:
        """False once another attempt has claimed the folder."""
        # An NFS client may answer a listing from its cache for a minute. Changing the folder ourselves makes it compare
        # the server's version with its own, and so see what others have put there.
        probe = self.folder / f".look-{self.token}"
        probe.touch()
        probe.unlink()
        return _newest(self.folder) == self.number


def _newest(folder: Path) -> int:
    return max((int(entry.name) for entry in os.scandir(folder) if entry.name.isdigit()), default=0)
