"""SftpStorage: a folder on another machine, over ssh, through sshfs (fsspec) and asyncssh.

A file is made durable by fsync@openssh.com, which OpenSSH's server has. On any other server only the file's size is
read back. A folder cannot be synced over SFTP. By the protocol, RENAME does not replace an existing file; OpenSSH's
server makes a link and removes the old name. posix-rename@openssh.com would replace it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import stat
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import asyncssh
from fsspec.asyn import sync_wrapper
from sshfs import SSHFileSystem

from clusterdp.errors import ConfigError
from clusterdp.storage.address import masked
from clusterdp.storage.base import already_there, temporary_name
from clusterdp.storage.retry import RetryPolicy, StorageFault
from clusterdp.storage.url import UrlStorage

T = TypeVar("T")
_LOST = (
    *(asyncssh.DisconnectError, asyncssh.ChannelOpenError, asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost),
    *(ConnectionError, EOFError),
)
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, None}  # asyncio has no number if several addresses have failed
_FINAL = (asyncssh.KeyExchangeFailed, asyncssh.ProtocolNotSupported, asyncssh.IllegalUserName)
_HOST_KEY = "its host key is not the one in ~/.ssh/known_hosts. Connect with `ssh` once, and look at the key"
_LOGIN = "the server does not let this user in. Check that `ssh` to it works from this node without a question"


class SftpStorage(UrlStorage):
    def __init__(self, url: str, retry_policy: RetryPolicy, options: Mapping[str, Any]):
        self.url = masked(url).rstrip("/")
        self.retry_policy = retry_policy
        self.root = unquote(urlsplit(url).path).rstrip("/")
        self._had_password = masked(url) != url
        alive = {"keepalive_interval": retry_policy.timeout_s / 3, "keepalive_count_max": 3}
        self._connect_to = alive | _target(url) | dict(options)
        self._lock = threading.Lock()
        self.fs: Any = None

    def _path(self, name: str) -> str:
        return super()._path(name) or "/"

    @contextmanager
    def _session(self) -> Iterator[Any]:
        """Yields the connected file system. All threads share a connection. A connection that was lost, or has not
        answered in time, is not used again."""
        fs = self.fs or self._connected()
        try:
            yield fs
        except Exception as error:
            if self.judge(error, "").transient:
                if self.fs is fs:
                    self.fs = None
                fs.loop.call_soon_threadsafe(fs.client.abort)
            raise

    def _connected(self) -> Any:
        limit_s = self.retry_policy.timeout_s
        if not self._lock.acquire(timeout=limit_s):  # another thread waits for the server
            raise TimeoutError
        try:
            if self.fs is None:
                names = {"path_errors": "surrogateescape"}  # as Python lists a folder
                self.fs = SshFileSystem(
                    **self._connect_to, timeout=limit_s, sftp_client_kwargs=names, skip_instance_cache=True
                )
            return self.fs
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and not error.filename:
                raise
            # The error is not ENOENT, because a missing file would mean a damaged checkpoint, or no checkpoint yet.
            why = f"{error}. See ~/.ssh: each IdentityFile and ProxyCommand of config, each line of known_hosts"
            raise OSError(errno.ENXIO, why) from error
        finally:
            self._lock.release()

    def limit_s(self, nbytes: int) -> float:
        """A slow network is not a silent server: 64 KiB a second are enough. Keep-alive messages find a lost server."""
        return super().limit_s(16 * nbytes)

    def judge(self, error: Exception, name: str) -> StorageFault:
        url = f"{self.url}/{name}" if name else self.url
        text = getattr(error, "reason", "") or getattr(error, "strerror", "") or str(error) or type(error).__name__

        def fault(number: int, why: str, transient: bool = False) -> StorageFault:
            return StorageFault(OSError(number, why, url), transient)

        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            return fault(errno.EACCES, f"{_HOST_KEY} (checkpoint.url)")
        if isinstance(error.__cause__ or error, asyncssh.PermissionDenied):
            return fault(errno.EACCES, f"{_LOGIN} (checkpoint.url)")
        if isinstance(error, socket.gaierror):
            return fault(errno.EIO, f"{text}. Check the host in checkpoint.url")
        if isinstance(error, asyncssh.SFTPNoSuchFile):
            return fault(errno.ENOENT, "not there")
        if isinstance(error, asyncssh.SFTPPermissionDenied):
            return fault(errno.EACCES, "access denied. Check the owner and the mode of the folder in checkpoint.url")
        unreachable = isinstance(error, OSError) and error.errno in _UNREACHABLE and not isinstance(error, TimeoutError)
        if isinstance(error, _LOST) or unreachable or "create any SFTP connections" in text:
            return fault(errno.ECONNRESET, f"no connection ({text})", transient=not isinstance(error, _FINAL))
        if isinstance(error, asyncssh.SFTPError):  # SFTP has one code for all errors that have no code of their own
            return fault(errno.EIO, f"the server says {text!r}, which may be a full disk or quota")
        if isinstance(error, OSError) and error.errno is not None:
            return fault(error.errno, text)
        return super().judge(error, name)

    def make_folder(self, folder: str) -> None:
        if not self._exists(folder):
            super().make_folder(folder)

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        path, total = self._path(name), 0
        self._ask(name, "create", path, [])
        for chunk in chunks:
            self._ask(name, "write_at", path, total, chunk, nbytes=len(chunk))
            total += len(chunk)
        self._ask(name, "fsync", path)
        self._check_size(name, total)

    def _put(self, name: str, data: bytes) -> None:
        folder, slash, file = name.rpartition("/")
        temporary = f"{folder}{slash}{temporary_name(file)}"
        self.remove(temporary)
        try:
            self.write(temporary, [memoryview(data)])
            self._ask(name, "rename", self._path(temporary), self._path(name))
        finally:
            with suppress(OSError):  # a leftover file is harmless; keeps the first error
                self.remove(temporary)

    def remove(self, name: str) -> None:
        folder = name.rpartition("/")[0]
        with suppress(FileNotFoundError):
            if folder and self._ask(folder, "info", self._path(folder))["type"] == "link":
                raise OSError(errno.ELOOP, f"{folder} is a link, and what it leads to is left alone")
        super().remove(name)

    def forget(self, name: str) -> None:
        pass  # sshfs has no cache


class SshFileSystem(SSHFileSystem):  # type: ignore[misc]
    """sshfs, but no file is replaced, no link is followed, and a file reaches the disk. sshfs reads whole files where a
    range is asked for, and its rmdir() does nothing."""

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        async with self._pool.get() as sftp:
            return dict(self._decode_attributes(await sftp.lstat(path)), name=path)

    async def _cat_file(self, path: str, start: int = 0, end: int = 0, **_: Any) -> bytes:
        async with self._pool.get() as sftp:
            if not stat.S_ISREG((await sftp.lstat(path)).permissions):  # clusterdp makes no links
                raise OSError(errno.ELOOP, "not a file, and symbolic links are not followed")
            async with sftp.open(path, "rb") as file:
                data: bytes = await _uncancelled(file.read(end - start, start))
                return data

    async def _create(self, path: str, tries: list[str]) -> None:
        tries.append(path)
        async with self._pool.get() as sftp:
            try:
                async with sftp.open(path, "xb"):
                    pass
            except _LOST:
                raise
            except asyncssh.SFTPError as error:
                try:
                    found = await sftp.lstat(path)
                except asyncssh.SFTPNoSuchFile:
                    raise error from None
                if len(tries) == 1 or found.size:  # else an earlier try created it, and its answer was lost
                    raise already_there(path) from None

    async def _write_at(self, path: str, at: int, data: memoryview) -> None:
        async with self._pool.get() as sftp, sftp.open(path, "r+b") as file:
            await _uncancelled(file.write(data, at))

    async def _fsync(self, path: str) -> None:
        async with self._pool.get() as sftp, sftp.open(path, "r+b") as file:
            with suppress(asyncssh.SFTPOpUnsupported):
                await file.fsync()

    async def _rename(self, old: str, new: str) -> None:
        async with self._pool.get() as sftp:
            try:
                await sftp.rename(old, new)
            except _LOST:
                raise
            except asyncssh.SFTPError:
                if await sftp.lexists(new):
                    raise already_there(new) from None
                raise

    create, write_at, fsync = sync_wrapper(_create), sync_wrapper(_write_at), sync_wrapper(_fsync)
    rename, rmdir = sync_wrapper(_rename), sync_wrapper(SSHFileSystem._rmdir)


async def _uncancelled(requests: Coroutine[Any, Any, T]) -> T:
    """Awaits requests that a time-out does not cancel, because asyncio would print a traceback for each of them. They
    end with the connection."""
    task = asyncio.ensure_future(requests)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return await asyncio.shield(task)


def _target(url: str) -> dict[str, Any]:
    """Returns the arguments of asyncssh's connect() that are not in ~/.ssh/config."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:  # the error's text would show a password that was parsed as a port
        host = port = None
    if not host:
        raise ConfigError(f"checkpoint.url: {masked(url)} has no host. Write sftp://user@host:port/folder.")
    target: dict[str, Any] = {"host": host}
    if port:
        target["port"] = port
    if parts.username:
        target["username"] = unquote(parts.username)
    try:
        config: Any = asyncssh.SSHClientConnectionOptions(**target, client_keys=None, config=()).config
    except ValueError as error:
        raise ConfigError(f"{error}. checkpoint.url: {masked(url)} is read with it.") from error
    if parts.password is not None:
        target["password"] = unquote(parts.password)
    target["known_hosts"] = _known_keys(
        [
            *config.get("UserKnownHostsFile", ["~/.ssh/known_hosts"]),
            *config.get("GlobalKnownHostsFile", ["/etc/ssh/ssh_known_hosts"]),
        ]
    )
    if keys := config.get("IdentityFile"):  # asyncssh raises an error for a missing file, which ssh passes over
        target["client_keys"] = _files(keys)
    # By default, asyncssh offers only types of known keys, and a server without such a key ends the connection.
    target["server_host_key_algs"] = config.get("HostKeyAlgorithms", "+*")
    return target | {"ignore_encrypted": True}


def _known_keys(paths: Iterable[str]) -> Callable[..., Any]:
    """Returns what looks up a host's keys at each connection. sshfs would accept any key, asyncssh any known key of the
    host's address."""
    return lambda host, address, port: asyncssh.read_known_hosts(_files(paths)).match(host, "", port)


def _files(paths: Iterable[str]) -> list[str]:
    return [str(path) for each in paths if (path := Path(each).expanduser()).is_file()]
