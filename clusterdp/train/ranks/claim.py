"""Claim: decides which attempt owns the run folder: the newest attempt of the job that has claimed it last.

Two attempts of a run can be alive at once: after a job submitted by hand, a `resume` beside a pending requeue, or a
node that was cut off and came back. The newer attempt owns the folder. The older attempt notices the newer one before
it commits or deletes anything. Of two attempts of one job, the one with the higher name is the newer one: a rank that
was slow to start cannot take the folder from the attempt that has replaced its own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from clusterdp.errors import RunError
from clusterdp.rundir.names import place_of
from clusterdp.train.output.best_effort import FULL, retry_while_full

WRITTEN_S = 3.0  # seconds after which a claim is written


class Claim:
    def __init__(self, folder: Path, number: int, attempt: str, token: str):
        self.folder, self.number, self.attempt, self.token = folder, number, attempt, token
        self._is_replaced = any(_is_later(text, attempt) for text in _texts(folder, below=number))

    @classmethod
    def take(cls, folder: Path, attempt: str, token: str) -> Claim:
        """Writes a claim, on rank 0 only. The file is created exclusively, so that two simultaneous attempts get
        different numbers.
        Raises RunError if the claim cannot be written; on a full disk, after ten minutes."""
        try:
            number = retry_while_full(lambda: _create(folder, f"{attempt} {token}\n"), folder)
            return cls(folder, number, attempt, token)
        except OSError as error:
            remedy = "Free some space." if error.errno in FULL else "Make the run folder writable."
            raise RunError(f"{folder}: cannot be claimed: {error.strerror}. {remedy}") from None

    def is_newest(self) -> bool:
        """Returns False once another attempt has claimed the folder. Raises OSError if the claims cannot be read, for
        example on a full disk. After this error, the caller must not commit or delete anything, and tries again
        later."""
        # An NFS client may answer a listing from its cache for a minute. A change that this process makes in the folder
        # forces the client to compare its cache with the server's folder. After this, the client sees the claims of
        # other attempts.
        probe = self.folder / f".look-{self.token}"
        probe.touch()
        probe.unlink(missing_ok=True)  # another thread of this process may look at the same time
        above = _texts(self.folder, above=self.number)
        return not self._is_replaced and all(_is_later(self.attempt, text) for text in above)


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


def _texts(folder: Path, above: int = 0, below: int = 1 << 63) -> list[str]:
    """Returns the claims with a number in this range, both ends left out."""
    names = [entry.name for entry in os.scandir(folder) if entry.name.isdecimal() and above < int(entry.name) < below]
    return [_text(folder / name) for name in names]


def _text(path: Path) -> str:
    """Returns a claim, after a wait if another process is still writing it; empty if the disk was full then."""
    while not (text := path.read_text(errors="replace")) and time.time() - path.stat().st_mtime < WRITTEN_S:
        time.sleep(0.1)
    return text


def _is_later(claim: str, other: str) -> bool:
    """Returns whether both claims name attempts of one job, and the first attempt is the later one."""
    place, before = (place_of(text.partition(" ")[0]) for text in (claim, other))
    return place is not None and before is not None and place[0] == before[0] and place > before
