"""MemoryStorage: files in the memory of this node, which outlive the process that writes them (batch/nodes/keeper.py).

Each node has its own files: a rank finds those that ranks of its node have written. Linux only.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from clusterdp.batch.nodes import keeper
from clusterdp.storage.base import Readable, Storage, already_there, checked, read_pieces

HELD = keeper.HELD


class MemoryStorage(Storage):
    """The files that this node's keeper holds. The connection is made at the first use, and again after an error.

    The memory of a file that this process has written and removed is used for the next such file, because a new page
    costs five times as much as its content."""

    nodes_that_read_all = 1
    is_divided = True

    def __init__(self, key: str, node: str, life: int = 0, *, may_lose_nodes: bool = False):
        """life: number of the attempt in this allocation. Files of an earlier life are refused after those of a
        later one. may_lose_nodes: whether another node may take this one's place in the same allocation."""
        self.url = f"memory of {node}"
        self.may_lose_nodes = may_lose_nodes
        self._key, self._node, self._life = key, node, life
        self._line: Any = None
        self._lock = threading.Lock()
        self._open_files: dict[str, int] = {}  # descriptors that are read from
        self._written: dict[str, int] = {}  # descriptors of files that this process has written
        self._spare: dict[str, int] = {}  # descriptors of removed files, by the part of the name after the token

    @classmethod
    def of_this_node(cls, url: str, environ: Mapping[str, str] = os.environ) -> MemoryStorage | None:
        """Returns the storage if this job has keepers for the checkpoints in `url`. (A training within a training has
        other checkpoints, and the same variables.)"""
        key, _, kept = environ.get(keeper.KEY, "").partition(" ")
        if not key or kept != url:
            return None
        life = environ.get("CLUSTERDP_ATTEMPT", "").split(".")[2:]  # <job>.<restart>.<number>
        node = environ.get("SLURMD_NODENAME") or socket.gethostname()
        # CLUSTERDP_NODES is set in a job with spare nodes (batch/nodes/placement.py).
        return cls(key, node, int(life[0]) if life else 0, may_lose_nodes="CLUSTERDP_NODES" in environ)

    def _ask(self, do: str, name: str, descriptor: int | None = None) -> tuple[dict[str, Any], int | None]:
        request = {"do": do, "life": self._life, "folder" if do == "list" else "name": checked(name)}
        with self._lock:
            try:
                if self._line is None:
                    self._line = keeper.connect(self._key, self._node)
                    # __del__ is too late: the collector may finalize the socket first, which warns.
                    self._close_line = weakref.finalize(self, self._line.close)
                    self._close_line.atexit = False  # a save may still be written then
                return keeper.ask(self._line, request, descriptor)
            except OSError as error:
                if self._line is not None:
                    self._close_line()
                    self._line = None
                raise OSError(error.errno or errno.EIO, error.strerror or str(error), self.url) from None

    def _sizes(self, folder: str) -> dict[str, int]:
        return self._ask("list", folder)[0]["sizes"]  # type: ignore[no-any-return]

    def names(self) -> list[str]:
        """Returns the names of all files, with their folders."""
        return sorted(self._sizes(""))

    def list(self, folder: str = "") -> list[str]:
        start = len(folder) + 1 if folder else 0
        return sorted({name[start:].partition("/")[0] for name in self._sizes(folder)})

    def size(self, name: str) -> int:
        return os.fstat(self._descriptor(name)).st_size

    def modified(self, name: str) -> float:
        return os.fstat(self._descriptor(name)).st_mtime

    def _descriptor(self, name: str) -> int:
        if name not in self._open_files:
            answer, found = self._ask("get", name)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, f"not in memory ({answer.get('error')})", f"{self.url}/{name}")
            with self._lock:
                if self._open_files.setdefault(name, found) != found:
                    os.close(found)  # another thread was quicker
        return self._open_files[name]

    @contextmanager
    def open(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Readable]:
        yield _File(self._descriptor(name))

    def mapped(self, name: str) -> memoryview:
        """Returns the bytes of a file, without a copy. They stay when the file is removed."""
        try:
            file = self._descriptor(name)
            return memoryview(mmap.mmap(file, 0) if os.fstat(file).st_size else b"")
        finally:
            self.forget(name)

    def make_folder(self, folder: str) -> None:
        checked(folder)

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        file = self._spare.pop(_kind(checked(name)), None)
        if file is None:
            file = _new_file(name.rpartition("/")[2])
        try:
            at = 0
            for chunk in chunks:
                while chunk:
                    count = os.pwrite(file, chunk, at)
                    chunk, at = chunk[count:], at + count
            os.ftruncate(file, at)
            refused = self._ask("put", name, file)[0].get("error")
            if refused == "exists":
                raise already_there(f"{self.url}/{name}")
            if refused:
                why = (
                    "a later attempt has files here" if refused == "replaced" else "the keeper has too many open files"
                )
                raise OSError(errno.ESTALE, why, f"{self.url}/{name}")
        except BaseException:
            os.close(file)
            raise
        self._written[name] = file

    def publish(self, name: str, data: bytes) -> None:
        self.write(name, [memoryview(data)])

    def remove(self, name: str) -> None:
        if self._ask("remove", name)[0].get("error"):
            return  # a later attempt has files here, and this memory must not be written again
        self.forget(name)
        file = self._written.pop(name, None)
        if file is not None:
            self._close(self._spare.pop(_kind(name), None))
            self._spare[_kind(name)] = file

    @property
    def spare_bytes(self) -> int:
        """The memory that the next files use again."""
        return sum(os.fstat(file).st_size for file in self._spare.values())

    def free_spares(self) -> None:
        while self._spare:
            self._close(self._spare.popitem()[1])

    @staticmethod
    def _close(file: int | None) -> None:
        if file is not None:
            os.close(file)

    def remove_folder(self, folder: str) -> None:
        checked(folder)

    def forget(self, name: str) -> None:
        with suppress(KeyError):
            os.close(self._open_files.pop(name))

    def forget_all(self) -> None:
        """Closes all files that were read, so that their memory is freed when they are removed."""
        for name in [*self._open_files]:
            self.forget(name)

    def __del__(self) -> None:
        self.forget_all()
        self.free_spares()
        for file in self._written.values():
            os.close(file)


def _new_file(name: str) -> int:
    """Returns the descriptor of a new file that no folder names. Some builds of Python lack memfd_create."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"clusterdp-{name}", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(dir="/dev/shm", buffering=0) as file:
        return os.dup(file.fileno())


def _kind(name: str) -> str:
    return name.rpartition("/")[2].partition("-r")[2]


class _File:
    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def read_at(self, start: int, *into: memoryview) -> int:
        return read_pieces(partial(os.preadv, self._descriptor), start, into)
