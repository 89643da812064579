"""UrlStorage: a storage at any URL that fsspec knows. S3 and SFTP have subclasses, which promise more (s3.py,
sftp.py)."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from clusterdp.errors import ConfigError
from clusterdp.storage.address import masked
from clusterdp.storage.base import RangeReader, Readable, Storage, already_there, checked
from clusterdp.storage.retry import RetryPolicy, StorageFault

_SLOWEST = 1 << 20  # bytes a second; a server that is slower counts as silent
# Schemes that need a package: scheme -> extra. fsspec itself names the package for other schemes.
_EXTRAS = {"s3": "s3", "s3a": "s3", "sftp": "sftp", "ssh": "sftp"}


class UrlStorage(Storage):
    """A storage at a URL, through fsspec. A folder may be only a prefix of names. Listings are not cached, because
    other ranks write to the same storage."""

    parallel = 8

    def __init__(self, url: str, retry_policy: RetryPolicy, options: Mapping[str, Any]):
        self.url = masked(url).rstrip("/")
        self.retry_policy = retry_policy
        self._had_password = masked(url) != url
        self.fs, root = _filesystem(url, options)
        self.root = root.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if checked(name) else self.root

    @contextmanager
    def _session(self) -> Iterator[Any]:
        yield self.fs

    def _ask(self, name: str, call: str, *args: Any, nbytes: int = 0, **options: Any) -> Any:
        """Calls a method of the file system, and repeats the call as the retry policy allows. The call must be safe to
        repeat."""

        def once() -> Any:
            with self._session() as fs:
                limit = {"timeout": self.limit_s(nbytes)} if fs.async_impl else {}
                return getattr(fs, call)(*args, **limit, **options)

        return self.retry_policy.call(once, lambda error: self.judge(error, name))

    def limit_s(self, nbytes: int) -> float:
        return self.retry_policy.timeout_s + nbytes / _SLOWEST

    def judge(self, error: Exception, name: str) -> StorageFault:
        import asyncio  # imported here: takes 40 ms, and a plain path needs no asyncio

        url = f"{self.url}/{name}" if name else self.url
        if isinstance(error, RuntimeError) and "fork-safe" in str(error):
            what = "this process was forked from the one that opened it. Open it anew here"
            return StorageFault(OSError(errno.EINVAL, what, url), transient=False)
        if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
            return StorageFault(OSError(errno.ETIMEDOUT, "the server does not answer", url), transient=True)
        if isinstance(error, ConnectionError):
            return StorageFault(
                OSError(error.errno or errno.ECONNRESET, "the connection was lost", url), transient=True
            )
        # The text of a library's error may contain the URL, with a password.
        text = type(error).__name__ if self._had_password else f"{type(error).__name__}: {error}"
        number = error.errno if isinstance(error, OSError) else None
        for kind, natural in ((FileNotFoundError, errno.ENOENT), (FileExistsError, errno.EEXIST)):
            if isinstance(error, kind):
                number, text = natural, "not there" if natural == errno.ENOENT else "already there"
        if isinstance(error, PermissionError):
            number, text = errno.EACCES, f"access denied ({text}). Check the credentials for checkpoint.url"
        return StorageFault(OSError(number or errno.EIO, text, url), transient=False)

    def list(self, folder: str = "") -> list[str]:
        try:
            entries = self._ask(folder, "ls", self._path(folder), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        # Some file systems list a file as its own content.
        return sorted({e.rstrip("/").rpartition("/")[2] for e in entries if e.rstrip("/") != self._path(folder)})

    def size(self, name: str) -> int:
        return int(self._ask(name, "size", self._path(name)))

    def modified(self, name: str) -> float:
        return float(self._ask(name, "modified", self._path(name)).timestamp())

    @contextmanager
    def open(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Readable]:
        yield RangeReader(lambda first, last: self._range(name, first, last), start, stop)

    def _range(self, name: str, start: int, stop: int) -> bytes:
        """Returns the bytes [start, stop), or fewer at the end of the file."""
        data: bytes = self._ask(name, "cat_file", self._path(name), start=start, end=stop, nbytes=stop - start)
        return data

    def read(self, name: str, limit: int | None = None) -> bytes:
        return self._range(name, 0, self.size(name) if limit is None else limit)

    def make_folder(self, folder: str) -> None:
        self._ask(folder, "makedirs", self._path(folder), exist_ok=True)

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        if self._exists(name):
            raise already_there(f"{self.url}/{name}")
        total = 0
        try:
            file = self.fs.open(self._path(name), "wb")
            try:
                for chunk in chunks:
                    file.write(chunk)
                    total += len(chunk)
            except BaseException:
                with suppress(Exception):  # not every file has both methods; close() would leave half a file
                    file.discard()
                    file.closed = True
                raise
            file.close()
        except Exception as error:
            raise self.judge(error, name).error from error
        self._check_size(name, total)

    def publish(self, name: str, data: bytes) -> None:
        # Put-if-absent, if the store supports it. Otherwise the random token in the name keeps other processes from
        # using the name.
        if self._exists(name):
            raise already_there(f"{self.url}/{name}")
        try:
            self._put(name, data)
        except FileExistsError:
            # If an answer was lost and the request repeated, the existing file is our own. No two published files are
            # equal.
            if self.read(name) != data:
                raise
        self._check_size(name, len(data))

    def _put(self, name: str, data: bytes) -> None:
        def put() -> None:
            try:
                self.fs.pipe_file(self._path(name), data, mode="create")
            except (TypeError, NotImplementedError, ValueError):
                self.fs.pipe_file(self._path(name), data)

        self.retry_policy.call(put, lambda error: self.judge(error, name))

    def _exists(self, name: str) -> bool:
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def _check_size(self, name: str, expected: int) -> None:
        arrived = self.size(name)
        if arrived != expected:
            raise OSError(errno.EIO, f"{arrived} of {expected} bytes arrived", f"{self.url}/{name}")

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._ask(name, "rm_file", self._path(name))

    def remove_folder(self, folder: str) -> None:
        with suppress(OSError):
            self._ask(folder, "rmdir", self._path(folder))

    def forget(self, name: str) -> None:
        self.fs.invalidate_cache()


def _filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Returns fsspec's file system for the URL, and the path in this file system."""
    import fsspec  # imported here: takes 30 ms, and a plain path needs no fsspec

    with explained(url):
        return fsspec.core.url_to_fs(url, use_listings_cache=False, **options)  # type: ignore[no-any-return]


def check_scheme(url: str) -> None:
    """Raises ConfigError if fsspec does not know the scheme, or if the scheme needs a package that is missing. Opens
    nothing."""
    import fsspec

    with explained(url):
        for scheme in url.partition("://")[0].split("::"):  # schemes may be nested: simplecache::gs
            fsspec.get_filesystem_class(scheme)


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turns errors of an import, or of fsspec, into a ConfigError that names the package to install."""
    import fsspec

    scheme, shown = url.partition("://")[0], masked(url)
    try:
        yield
    except ImportError as error:
        remedy = f"pip install 'clusterdp[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else str(error)
        raise ConfigError(f"checkpoint.url: {shown} needs a package that is not installed: {remedy}") from error
    except ValueError as error:
        if scheme in fsspec.available_protocols():
            raise ConfigError(f"checkpoint.url: {shown} is not a URL that {scheme} understands.") from None
        known = "a path, file://, memory://, s3://, sftp://, or another that fsspec knows"
        raise ConfigError(f"checkpoint.url: {shown} has an unknown scheme, {scheme!r}. Give {known}.") from error
