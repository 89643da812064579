"""Bytes at a URL: the one place that knows whether they lie in a folder or in an object store.

    storage = open_storage("/scratch/run/checkpoints")        or file://, s3://, gs://, memory://, ... (fsspec)

Names are relative to the URL and have forward slashes (`step_00000010/x.json`). Nothing here overwrites: a name is
created once, or FileExistsError. What a method has created is durable when it returns: on a file system the file has
been fsynced (and its folder, after `sync_folder`), on an object store the size that arrived has been read back.
Errors are OSError, as Python's own file functions raise them.
"""

from __future__ import annotations

import errno
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import unquote, urlsplit


class Readable(Protocol):
    def read_at(self, start: int, into: memoryview) -> int:
        """Fill `into` from byte `start` on; returns how many bytes there were, fewer only at the end of the file."""


class Storage(ABC):
    url: str

    @abstractmethod
    def list(self, folder: str = "") -> list[str]:
        """Sorted names in a folder; none if there is no such folder."""

    @abstractmethod
    def size(self, name: str) -> int: ...

    @abstractmethod
    def modified(self, name: str) -> float:
        """When it was written, by the clock of who stores it: compare it with other files' only."""

    @abstractmethod
    def open(self, name: str) -> Any:
        """A context manager that yields a Readable."""

    @abstractmethod
    def make_folder(self, folder: str) -> None: ...

    @abstractmethod
    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        """Create a file. A reader may see it half-written; after an error it may be left there."""

    @abstractmethod
    def publish(self, name: str, data: bytes) -> None:
        """Create a file that is seen whole or not at all, also after a crash; its folder is synced too."""

    @abstractmethod
    def sync_folder(self, folder: str) -> None: ...

    @abstractmethod
    def remove(self, name: str) -> None:
        """No error if it is not there."""

    @abstractmethod
    def remove_folder(self, folder: str) -> None:
        """Only if it is empty; no error otherwise."""

    @abstractmethod
    def forget(self, name: str) -> None:
        """Drop cached bytes, so that the next read asks the disk or the server again. Best effort."""

    def read(self, name: str, limit: int | None = None) -> bytes:
        """The whole file, or its first `limit` bytes."""
        size = self.size(name)
        buffer = bytearray(size if limit is None else min(size, limit))
        with self.open(name) as file:
            count = file.read_at(0, memoryview(buffer))
        return bytes(buffer[:count])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def open_storage(url: str | os.PathLike[str]) -> Storage:
    """A plain path or `file://` is served by `os`; any other scheme by fsspec, which is imported only then."""
    text = os.fspath(url)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return LocalStorage(text)
    if scheme == "file":
        return LocalStorage(unquote(urlsplit(text).path))
    return UrlStorage(text)


class LocalStorage(Storage):
    """A folder on a local or shared POSIX file system."""

    def __init__(self, path: str | os.PathLike[str]):
        self.root = Path(path).absolute()
        self.url = str(self.root)

    def path(self, name: str) -> Path:
        return self.root / name

    def list(self, folder: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self.path(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, name: str) -> int:
        return self.path(name).stat(follow_symlinks=False).st_size

    def modified(self, name: str) -> float:
        return self.path(name).stat(follow_symlinks=False).st_mtime

    @contextmanager
    def open(self, name: str) -> Iterator[Readable]:
        # A link in a checkpoint folder was not put there by us, and may lead anywhere.
        fd = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb", buffering=0) as file:
            yield _File(file)

    def make_folder(self, folder: str) -> None:
        missing = [path for path in (self.path(folder), *self.path(folder).parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            _sync_folder(path.parent)  # the entry of a new folder is no more durable than that of a new file

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        fd = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            for chunk in chunks:
                _write_all(fd, chunk)
            _sync(fd)
        finally:
            os.close(fd)

    def publish(self, name: str, data: bytes) -> None:
        path = self.path(name)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        try:
            self.write(str(temporary), [memoryview(data)])
            _link(temporary, path)
        finally:
            with suppress(OSError):  # a leftover link is harmless, and must not hide the error that brought us here
                temporary.unlink()
        _sync_folder(path.parent)

    def sync_folder(self, folder: str) -> None:
        _sync_folder(self.path(folder))

    def remove(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        with suppress(FileNotFoundError, OSError):
            self.path(folder).rmdir()

    def forget(self, name: str) -> None:
        if sys.platform != "linux":
            return
        with suppress(OSError):
            fd = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _link(temporary: Path, path: Path) -> None:
    """link(2), not rename(2): it fails if the name is taken, on NFS too."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        if path.exists():  # no links here (some FUSE and FAT file systems): the best that is left
            raise FileExistsError(errno.EEXIST, "already there", str(path)) from None
        temporary.rename(path)


def _write_all(fd: int, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[os.write(fd, chunk) :]


def _sync(fd: int) -> None:
    os.fsync(fd)
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # macOS's fsync leaves the bytes in the drive's cache


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot fsync a folder: theirs is durable as it is
            raise
    finally:
        os.close(fd)


class UrlStorage(Storage):
    """Any other URL, through fsspec. Folders are prefixes there, and a file is seen only when it is complete."""

    def __init__(self, url: str):
        import fsspec  # deferred: 30 ms that a plain path need not pay

        self.url = url.rstrip("/")
        self.fs, root = fsspec.core.url_to_fs(url)
        self.root = root.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def list(self, folder: str = "") -> list[str]:
        self.fs.invalidate_cache()
        try:
            entries = self.fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted({entry.rstrip("/").rpartition("/")[2] for entry in entries})

    def size(self, name: str) -> int:
        return int(self.fs.size(self._path(name)))

    def modified(self, name: str) -> float:
        return float(self.fs.modified(self._path(name)).timestamp())

    @contextmanager
    def open(self, name: str) -> Iterator[Readable]:
        with self.fs.open(self._path(name), "rb") as file:
            yield _File(file)

    def make_folder(self, folder: str) -> None:
        self.fs.makedirs(self._path(folder), exist_ok=True)

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        path = self._path(name)
        if self.fs.exists(path):
            raise FileExistsError(errno.EEXIST, "already there", f"{self.url}/{name}")
        total = 0
        with self.fs.open(path, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                total += len(chunk)
        self._check_size(name, total)

    def publish(self, name: str, data: bytes) -> None:
        # Put-if-absent where the store has it. Where it has not, nobody else makes this name: it holds a random token.
        path = self._path(name)
        try:
            self.fs.pipe_file(path, data, mode="create")
        except (TypeError, NotImplementedError, ValueError):
            if self.fs.exists(path):
                raise FileExistsError(errno.EEXIST, "already there", f"{self.url}/{name}") from None
            self.fs.pipe_file(path, data)
        self._check_size(name, len(data))

    def _check_size(self, name: str, expected: int) -> None:
        self.fs.invalidate_cache()
        arrived = self.size(name)
        if arrived != expected:
            raise OSError(errno.EIO, f"{arrived} of {expected} bytes arrived", f"{self.url}/{name}")

    def sync_folder(self, folder: str) -> None:
        pass

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.fs.rm_file(self._path(name))

    def remove_folder(self, folder: str) -> None:
        with suppress(OSError):
            self.fs.rmdir(self._path(folder))

    def forget(self, name: str) -> None:
        self.fs.invalidate_cache()


class _File:
    def __init__(self, file: IO[bytes]):
        self.file = file

    def read_at(self, start: int, into: memoryview) -> int:
        self.file.seek(start)
        done = 0
        while done < len(into):
            count: int = self.file.readinto(into[done:])  # type: ignore[attr-defined]  # typeshed's IO lacks it
            if not count:
                break
            done += count
        return done
