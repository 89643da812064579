"""Storage: the interface of every storage."""

from __future__ import annotations

import errno
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\\0]+"  # one part of a name: not empty, and neither "." nor ".."
_INSIDE = re.compile(rf"{_PART}(?:/{_PART})*").fullmatch


class Readable(Protocol):
    def read_at(self, start: int, *into: memoryview) -> int:
        """Fills these pieces of memory, one after the other, with the file's bytes from `start` on. Returns the number
        of bytes read, which is smaller than that of the pieces only at the end of the file."""


class Storage(ABC):
    """Names are relative to the URL, have forward slashes, and cannot name anything outside of it. Errors are
    OSErrors."""

    url: str  # for messages: without a password
    rereads = False  # whether a read is worth another try later: a store's client has already tried for long enough
    verifies_first = False  # whether all bytes are read and verified before the first one reaches a tensor
    parallel = 1  # useful number of requests at the same time
    # On at most so many nodes, each rank reads all bytes. On more nodes, each rank reads a share, and sends it.
    nodes_that_read_all = 0
    is_divided = False  # True if a rank finds only files that ranks of its own node have written
    has_shared_files = False  # whether several processes of a machine can write one file with write_at()

    @abstractmethod
    def list(self, folder: str = "") -> list[str]:
        """Returns the sorted names in a folder; an empty list if the folder does not exist."""

    def tree(self, wanted: Callable[[str], bool]) -> dict[str, Sequence[str]]:
        """Returns the folders of the storage whose names are `wanted`, sorted, each with the names that `list` returns
        for it."""
        folders = [name for name in self.list() if wanted(name)]
        return dict(zip(folders, self.each(self.list, folders), strict=True))

    @abstractmethod
    def size(self, name: str) -> int: ...

    @abstractmethod
    def modified(self, name: str) -> float:
        """Returns the time of a file's last write, by the storage's clock. Such a time may be compared only with times
        of the same storage."""

    @abstractmethod
    def open(self, name: str, start: int = 0, stop: int | None = None) -> AbstractContextManager[Readable]:
        """Opens a file for reading. If [start, stop) is given, a server sends these bytes in one answer."""

    @abstractmethod
    def make_folder(self, folder: str) -> None: ...

    @abstractmethod
    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        """Creates a file. A reader may see the file half-written. After an error, a part of the file may remain."""

    def write_at(self, name: str, size: int, start: int, chunks: Iterable[memoryview]) -> None:
        """Writes bytes of a file from `start` on, beside other processes of this machine that write other bytes of it.
        If the file does not exist, it is created with `size` zeros. The bytes are durable after sync()."""
        raise NotImplementedError

    def sync(self, name: str) -> None:
        """Makes all bytes durable that processes of this machine have written with write_at()."""
        raise NotImplementedError

    @abstractmethod
    def publish(self, name: str, data: bytes) -> None:
        """Creates a file that readers see whole or not at all, even after a crash. The file's folder is synced, too."""

    def sync_folder(self, folder: str) -> None:  # noqa: B027  # a store has nothing to sync
        """Makes the names of a folder's files durable."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file. A file that does not exist is not an error."""

    @abstractmethod
    def remove_folder(self, folder: str) -> None:
        """Removes a folder if it is empty. A folder that is not empty is not an error."""

    def forget(self, name: str) -> None:  # noqa: B027  # a store has no cache here
        """Drops cached bytes, so that the next read asks the disk or the server again. Best effort."""

    def drop_unfinished(self, ours: Callable[[str], bool], before: float) -> None:  # noqa: B027  # most have none
        """Deletes the parts of killed uploads, which no listing shows. An upload is deleted if `ours` is true for its
        file, and if it began before the time `before` of the storage's own clock."""

    def read(self, name: str, limit: int | None = None) -> bytes:
        """Returns the bytes of the whole file, or its first `limit` bytes."""
        size = self.size(name)
        buffer = bytearray(size if limit is None else min(size, limit))
        with self.open(name, 0, len(buffer)) as file:
            count = file.read_at(0, memoryview(buffer))
        return bytes(buffer[:count])

    def each(self, ask: Callable[[T], R], things: Iterable[T]) -> Sequence[R]:
        """Returns the results of `ask` for all names in their order. `parallel` calls run at a time. Raises the first
        call's error."""
        things = tuple(things)
        threads = min(self.parallel, len(things))
        if threads <= 1:
            return tuple(ask(thing) for thing in things)
        from concurrent.futures import ThreadPoolExecutor  # imported here, because the import takes 10 ms

        with ThreadPoolExecutor(threads, thread_name_prefix="storage") as pool:
            return tuple(pool.map(ask, things))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def checked(name: str) -> str:
    """Returns the name if it is inside the storage, else raises OSError. The name "" is the storage itself."""
    if name and not _INSIDE(name):
        raise OSError(errno.EINVAL, "not a name inside the storage", name)
    return name


def temporary_name(name: str) -> str:
    """Returns a file's name during its creation: hidden, and unique to this thread. Clean-up after crashes recognizes
    such a name."""
    return f".{name}.{os.getpid()}{threading.get_native_id():08d}.tmp"


def already_there(url: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "already there", url)


def read_pieces(read: Callable[[list[memoryview], int], int], start: int, into: Sequence[memoryview]) -> int:
    """Does the work of Readable.read_at() with read(pieces, start), which may read less than there is room for, as
    preadv(2)."""
    pieces, done = [piece for piece in into if len(piece)], 0
    while pieces:
        count = read(pieces, start + done)
        if not count:
            break
        done += count
        while pieces and count >= len(pieces[0]):
            count -= len(pieces.pop(0))
        if count:
            pieces[0] = pieces[0][count:]
    return done


class RangeReader:
    """Reads a remote file. The range [start, stop) is fetched in one request, at the first read within this range."""

    def __init__(self, fetch: Callable[[int, int], bytes], start: int, stop: int | None):
        self._fetch = fetch
        self._start, self._stop = start, stop if stop is not None else start
        self._piece: memoryview | None = None

    def read_at(self, start: int, *into: memoryview) -> int:
        stop = start + sum(map(len, into))
        if not self._start <= start <= stop <= self._stop:
            data = memoryview(self._fetch(start, stop)) if stop > start else memoryview(b"")
        else:
            if self._piece is None:
                self._piece = memoryview(self._fetch(self._start, self._stop))
            data = self._piece[start - self._start : stop - self._start]
        done = 0
        for piece in into:
            part = data[done : done + len(piece)]
            piece[: len(part)] = part
            done += len(part)
        return len(data)
