"""StoreNotes: authenticated messages between ranks through the job's store, which anybody on the network can write to.

A note is one line of text with a digest (HMAC-SHA256) that binds its name, the attempt and the rank that wrote it. The
key of the digest is a file in the attempt's folder that only the job's owner can read. A note without a valid
digest is ignored. If there is no run folder, there is no key, and notes are neither written nor read.
"""

from __future__ import annotations

import hmac
import os
from contextlib import suppress
from pathlib import Path

from torch.distributed import Store  # type: ignore[attr-defined]

from clusterdp.plainfile import open_plain

KEY_BYTES = 32
MOST = 400  # the largest number of characters in a note


class StoreNotes:
    def __init__(self, store: Store, key: bytes | None, attempt: str):
        self.store, self.key, self.attempt = store, key, attempt

    def leave(self, name: str, rank: int, text: str = "") -> None:
        """Writes a note, unless a valid note with this name exists. Raises RuntimeError if the store is gone."""
        if self.key is None:
            return
        line = plain(f"{rank} {text}")
        note = f"{self._digest(name, line)} {line}"
        if self._read(name, self.store.compare_set(_key(name), "", note)) is None:
            self.store.set(_key(name), note)  # replaces an invalid note of somebody else

    def find(self, name: str) -> tuple[int, str] | None:
        """Returns the writer's rank and the text of a valid note, or None. Raises RuntimeError if the store is gone."""
        return self._read(name, self.store.get(_key(name))) if self.store.check([_key(name)]) else None

    def _read(self, name: str, note: bytes) -> tuple[int, str] | None:
        digest, _, line = note.decode(errors="replace").partition(" ")
        if self.key is None or not hmac.compare_digest(digest.encode(), self._digest(name, line).encode()):
            return None
        rank, _, text = line.partition(" ")
        return int(rank), text

    def _digest(self, name: str, line: str) -> str:
        assert self.key is not None
        return hmac.new(self.key, f"{self.attempt}\n{name}\n{line}".encode(), "sha256").hexdigest()


def make_key(path: Path) -> None:
    """Writes a new key, on rank 0 before the rendezvous, so that no other rank reads the key of an earlier start.
    On a full disk no key is written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(os.urandom(KEY_BYTES))


def read_key(path: Path) -> bytes | None:
    """Returns the key; None if there is no complete key."""
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            key = file.read(KEY_BYTES)
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def plain(text: str) -> str:
    """Returns the text as one short line without control characters, safe for a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MOST])


def _key(name: str) -> str:
    return f"clusterdp/{name}"
