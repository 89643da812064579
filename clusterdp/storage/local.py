"""LocalStorage: a folder on this machine's disk or on a shared file system."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO

from clusterdp.plainfile import open_plain, sync_folder
from clusterdp.storage.base import Readable, Storage, checked, read_pieces, temporary_name


class LocalStorage(Storage):
    """A folder on a local or shared POSIX file system."""

    rereads = True
    # A file system can serve so few nodes, and the ranks of a node share its page cache, faster than a network.
    nodes_that_read_all = 8

    def __init__(self, path: str | os.PathLike[str]):
        self.root = Path(path).absolute()
        self.url = str(self.root)

    @cached_property
    def has_shared_files(self) -> bool:  # type: ignore[override]
        """False on FUSE, because some of its file systems upload a file as a whole whenever a process closes it."""
        return not (mount_of(self.root) or ("", "fuse"))[1].startswith("fuse")

    def path(self, name: str) -> Path:
        return self.root / checked(name)

    def _path(self, name: str) -> str:
        """Returns path() as a string. pathlib is not used, because it would take a third of the time of `checkpoint
        ls`."""
        return f"{self.url}/{checked(name)}"

    def list(self, folder: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self._path(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, name: str) -> int:
        return os.lstat(self._path(name)).st_size

    def modified(self, name: str) -> float:
        return os.lstat(self._path(name)).st_mtime

    @contextmanager
    def open(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Readable]:
        with os.fdopen(self._open(name), "rb", buffering=0) as file:
            yield _File(file)

    def read(self, name: str, limit: int | None = None) -> bytes:
        with os.fdopen(self._open(name), "rb", buffering=0) as file:
            if limit is None:
                return file.read()
            buffer = memoryview(bytearray(limit))
            return bytes(buffer[: _File(file).read_at(0, buffer)])

    def _open(self, name: str) -> int:
        # clusterdp never makes links in a checkpoint folder: a link there may lead anywhere.
        return open_plain(self._path(name), os.O_RDONLY | os.O_NOFOLLOW)

    def make_folder(self, folder: str) -> None:
        missing = [path for path in (self.path(folder), *self.path(folder).parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)  # makes the new folder's name durable, as for a new file

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        _create(self.path(name), chunks)

    def write_at(self, name: str, size: int, start: int, chunks: Iterable[memoryview]) -> None:
        with self._writable(name, os.O_CREAT) as fd:
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
            _fill(fd, start, chunks)

    def sync(self, name: str) -> None:
        with self._writable(name) as fd:  # CIFS does not sync a file that is open for reading
            _sync(fd)

    @contextmanager
    def _writable(self, name: str, flags: int = 0) -> Iterator[int]:
        fd = os.open(self.path(name), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o644)
        try:
            yield fd
        finally:
            os.close(fd)

    def publish(self, name: str, data: bytes) -> None:
        path = self.path(name)
        temporary = path.with_name(temporary_name(path.name))
        temporary.unlink(missing_ok=True)
        try:
            _create(temporary, [memoryview(data)])
            _link(temporary, path)
        finally:
            with suppress(OSError):  # a temporary link that stays is harmless; keeps the first error
                temporary.unlink()
        sync_folder(path.parent)

    def sync_folder(self, folder: str) -> None:
        sync_folder(self.path(folder))

    def remove(self, name: str) -> None:
        folder, _, file = checked(name).rpartition("/")
        with suppress(FileNotFoundError), self._inside(folder) as fd:
            os.unlink(file, dir_fd=fd)

    def remove_folder(self, folder: str) -> None:
        outer, _, inner = checked(folder).rpartition("/")
        with suppress(OSError), self._inside(outer) as fd:
            os.rmdir(inner, dir_fd=fd)

    @contextmanager
    def _inside(self, folder: str) -> Iterator[int]:
        """Yields a descriptor of a folder, for deleting files in the folder. Raises OSError if the folder's path has a
        link, because the link's target may belong to another run. The root itself may be a link, because the user has
        named the root."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in filter(None, folder.split("/")):
                inner = _open_folder(part, fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    def forget(self, name: str) -> None:
        if sys.platform != "linux":
            return
        with suppress(OSError):
            fd = self._open(name)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def mount_of(folder: Path, mounts: Path = Path("/proc/mounts")) -> tuple[str, str] | None:
    """Returns (mount point, type) of the file system that contains a folder; None if /proc does not list this file
    system."""
    try:
        rows = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    path = Path(os.path.realpath(folder))
    found = [(row[1].replace("\\040", " "), row[2]) for row in rows if len(row) > 2]
    of_it = [row for row in found if path.is_relative_to(row[0])]
    # If several file systems have one mount point, autofs is first.
    return max(of_it, key=lambda row: len(row[0]), default=None)


def _open_folder(name: str, within: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    except OSError as error:
        if stat.S_ISLNK(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode):
            raise OSError(error.errno, f"{name} is a link, and what it leads to is left alone") from None
        raise


def _create(path: Path, chunks: Iterable[memoryview]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _fill(fd, 0, chunks)
        _sync(fd)
    finally:
        os.close(fd)


def _fill(fd: int, at: int, chunks: Iterable[memoryview]) -> None:
    for chunk in chunks:
        while chunk:
            count = os.pwrite(fd, chunk, at)
            _start_writing(fd, at, count)
            chunk, at = chunk[count:], at + count


def _start_writing(fd: int, start: int, length: int) -> None:
    """Makes the disk write while the next bytes are copied to the page cache, and not only at fsync: writing 300 MB
    takes 200 ms instead of 320. If pages are marked as not needed, Linux begins to write them, and drops no page before
    it is written."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.posix_fadvise(fd, start, length, os.POSIX_FADV_DONTNEED)


def _link(temporary: Path, path: Path) -> None:
    """Calls link(2), not rename(2), because link(2) fails if the name exists, even on NFS."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        if path.exists():  # some FUSE and FAT file systems have no links: the best alternative
            raise FileExistsError(errno.EEXIST, "already there", str(path)) from None
        temporary.rename(path)


def _sync(fd: int) -> None:
    os.fsync(fd)
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync of macOS leaves the bytes in the drive's cache


class _File:
    def __init__(self, file: IO[bytes]):
        self.file = file

    def read_at(self, start: int, *into: memoryview) -> int:
        return read_pieces(self._read, start, into)

    def _read(self, pieces: list[memoryview], start: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.file.fileno(), pieces, start)
        self.file.seek(start)  # macOS before 11
        count: int = self.file.readinto(pieces[0])  # type: ignore[attr-defined]  # typeshed's IO lacks it
        return count
