"""Claim: decides which attempt owns the run folder: the attempt with the highest number in `claims/`.

Two attempts of a run can be alive at once: after a job submitted by hand, a `resume` beside a pending requeue, or a
node that was cut off and came back. The newer attempt owns the folder. The older attempt notices the newer
one before it commits or deletes anything.
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
        """Writes a claim, on rank 0 only. The file is created exclusively, so that two simultaneous attempts get
        different numbers.
        Raises RunError if the claim cannot be written; on a full disk, after ten minutes."""
        try:
            number = retry_while_full(lambda: _create(folder, f"{attempt} {token}\n"), folder)
        except OSError as error:
            remedy = "Free some space." if error.errno in FULL else "Make the run folder writable."
            raise RunError(f"{folder}: cannot be claimed: {error.strerror}. {remedy}") from None
        return cls(folder, number, token)

    def is_newest(self) -> bool:
        """Returns False once another attempt has claimed the folder. Raises OSError if the claims cannot be read, for
        example on a full disk. After this error, the caller must not commit or delete anything, and tries again
        later."""
        # An NFS client may answer a listing from its cache for a minute. A change that this process makes in the folder
        # forces the client to compare its cache with the server's folder. After this, the client sees the claims of
        # other attempts.
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
    with os.fdopen(fd, "w") as file:  # on a full disk an empty file stays, and the next try takes the next number
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return number


def _newest(folder: Path) -> int:
    return max((int(entry.name) for entry in os.scandir(folder) if entry.name.isdecimal()), default=0)
