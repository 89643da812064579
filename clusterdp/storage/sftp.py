"""SftpStorage: a folder on another machine, over ssh.

A file is made durable by fsync@openssh.com, which OpenSSH's server has. On any other server only the file's size is
read back. A folder cannot be synced over SFTP. By the protocol, RENAME does not replace an existing file; OpenSSH's
server makes a link and removes the old name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from clusterdp.errors import ConfigError
from clusterdp.storage.address import masked
from clusterdp.storage.base import RangeReader, Readable, Storage, already_there, checked, temporary_name
from clusterdp.storage.retry import RetryPolicy, StorageFault

T = TypeVar("T")
_PIECE = 1 << 20


class SftpStorage(Storage):
    parallel = 8

    def __init__(self, url: str, retry_policy: RetryPolicy, options: Mapping[str, Any]):
        self.url = masked(url).rstrip("/")
        self.retry_policy = retry_policy
        self.root = PurePosixPath(unquote(urlsplit(url).path) or "/")
        self._sessions = Sessions(url, self.retry_policy.timeout_s, options)

    def _path(self, name: str) -> str:
        return str(self.root / checked(name))

    def _ask(self, name: str, ask: Callable[[Any], T]) -> T:
        """Calls `ask` with a client, and returns the result. If the connection is lost, `ask` is called again with a
        new client."""

        def once() -> T:
            with self._sessions.session() as client:
                return ask(client)

        return self.retry_policy.call(once, lambda error: self._judge(error, name))

    def _judge(self, error: Exception, name: str) -> StorageFault:
        import paramiko

        url = f"{self.url}/{name}" if name else self.url
        text = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
        if isinstance(error, (paramiko.AuthenticationException, paramiko.PasswordRequiredException)):
            why = "the server does not let this user in. Check that `ssh` to it works from this node without a question"
            return StorageFault(OSError(errno.EACCES, f"{why} (checkpoint.url)", url), transient=False)
        if isinstance(error, paramiko.BadHostKeyException) or "not found in known_hosts" in text:
            why = "its host key is not the one in ~/.ssh/known_hosts. Connect with `ssh` once, and look at the key"
            return StorageFault(OSError(errno.EACCES, f"{why} (checkpoint.url)", url), transient=False)
        if isinstance(error, TimeoutError):
            return StorageFault(OSError(errno.ETIMEDOUT, "the server does not answer", url), transient=True)
        if isinstance(error, OSError) and "Name or service not known" in text:
            return StorageFault(OSError(errno.EIO, f"{text}. Check the host in checkpoint.url", url), transient=False)
        lost = (paramiko.SSHException, paramiko.ssh_exception.NoValidConnectionsError, EOFError, ConnectionError)
        if isinstance(error, lost) or text == "Socket is closed":
            return StorageFault(OSError(errno.ECONNRESET, f"no connection ({text})", url), transient=True)
        if isinstance(error, OSError):
            if error.errno is None:  # SFTP has one code for all errors that have no code of their own
                text = f"the server says {text!r}, which may be a full disk or quota"
            return StorageFault(OSError(error.errno or errno.EIO, error.strerror or text, url), transient=False)
        return StorageFault(OSError(errno.EIO, f"{type(error).__name__}: {text}", url), transient=False)

    def list(self, folder: str = "") -> list[str]:
        path = self._path(folder)
        try:
            return sorted(self._ask(folder, lambda client: client.listdir(path)))
        except FileNotFoundError:  # OpenSSH also gives this answer if the folder is a file
            return []

    def _stat(self, name: str) -> Any:
        path = self._path(name)
        return self._ask(name, lambda client: client.lstat(path))

    def size(self, name: str) -> int:
        return int(self._stat(name).st_size)

    def modified(self, name: str) -> float:
        return float(self._stat(name).st_mtime)

    @contextmanager
    def open(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Readable]:
        found = self._stat(name)
        if not stat.S_ISREG(found.st_mode):  # clusterdp makes no links; a link may lead anywhere
            raise OSError(errno.ELOOP, "not a file, and symbolic links are not followed", f"{self.url}/{name}")
        yield RangeReader(lambda first, last: self._range(name, first, min(last, found.st_size)), start, stop)

    def _range(self, name: str, start: int, stop: int) -> bytes:
        path = self._path(name)
        if stop <= start:
            return b""

        def fetch(client: Any) -> bytes:
            # All requests for one piece of the file, of 32 KiB each, are sent at once. With the requests for the whole
            # file, paramiko would take minutes, because it searches all open requests at every answer.
            pieces = [(at, min(_PIECE, stop - at)) for at in range(start, stop, _PIECE)]
            with client.open(path, "rb") as file:
                return b"".join(data for piece in pieces for data in file.readv([piece]))

        return self._ask(name, fetch)

    def make_folder(self, folder: str) -> None:
        path = PurePosixPath(self._path(folder))
        self._ask(folder, lambda client: _make_folders(client, path))

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        self._create(self._path(name), name, chunks)

    def _create(self, path: str, name: str, chunks: Iterable[memoryview]) -> None:
        tries = 0

        def create(client: Any) -> None:
            nonlocal tries
            tries += 1
            try:
                client.open(path, "x").close()
            except OSError:
                found = _lstat(client, path)
                if found is None:
                    raise
                if tries == 1 or found.st_size:  # else an earlier try created it, and its answer was lost
                    raise already_there(f"{self.url}/{name}") from None

        self._ask(name, create)
        total = 0
        for chunk in chunks:
            self._ask(name, lambda client, chunk=chunk, at=total: _write_at(client, path, at, chunk))  # type: ignore[misc]
            total += len(chunk)
        self._ask(name, lambda client: _sync(client, path))
        arrived = self._ask(name, lambda client: client.lstat(path)).st_size
        if arrived != total:
            raise OSError(errno.EIO, f"{arrived} of {total} bytes arrived", f"{self.url}/{name}")

    def publish(self, name: str, data: bytes) -> None:
        path = self._path(name)
        folder, _, file = path.rpartition("/")
        temporary = f"{folder}/{temporary_name(file)}"
        self._ask(name, lambda client: _remove(client, temporary))
        try:
            self._create(temporary, name, [memoryview(data)])
            try:
                self._ask(name, lambda client: _rename(client, temporary, path))
            except FileExistsError:
                # If an answer was lost and the request repeated, the existing file is our own. No two published files
                # are equal.
                if self.read(name) != data:
                    raise already_there(f"{self.url}/{name}") from None
        finally:
            with suppress(OSError):  # a leftover file is harmless; keeps the first error
                self._ask(name, lambda client: _remove(client, temporary))

    def remove(self, name: str) -> None:
        path = self._path(name)
        folder = name.rpartition("/")[0]
        found = self._ask(folder, lambda client: _lstat(client, self._path(folder))) if folder else None
        if found is not None and stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, f"{folder} is a link, and what it leads to is left alone")
        self._ask(name, lambda client: _remove(client, path))

    def remove_folder(self, folder: str) -> None:
        path = self._path(folder)
        with suppress(OSError):
            self._ask(folder, lambda client: client.rmdir(path))


def _lstat(client: Any, path: str) -> Any:
    try:
        return client.lstat(path)
    except FileNotFoundError:
        return None


def _make_folders(client: Any, path: PurePosixPath) -> None:
    missing = []
    for each in (path, *path.parents):
        if _lstat(client, str(each)) is not None:
            break
        missing.append(str(each))
    for name in reversed(missing):
        try:
            client.mkdir(name)
        except OSError:
            if _lstat(client, name) is None:  # else another rank made the folder first
                raise


def _write_at(client: Any, path: str, at: int, chunk: memoryview) -> None:
    with client.open(path, "r+b") as file:
        file.seek(at)
        file.set_pipelined(True)  # one round trip for a chunk, not for each 32 KiB of it
        file.write(chunk)
        while file._reqs:  # paramiko leaves the last answers unread; one may report a full disk
            client._read_response(file._reqs.popleft())


def _sync(client: Any, path: str) -> None:
    from paramiko.sftp import CMD_EXTENDED

    with client.open(path, "r+b") as file:
        try:
            client._request(CMD_EXTENDED, "fsync@openssh.com", file.handle)
        except OSError as error:
            if "unsupported" not in str(error).lower():
                raise


def _rename(client: Any, old: str, new: str) -> None:
    try:
        client.rename(old, new)
    except OSError:
        if _lstat(client, new) is not None:
            raise FileExistsError(errno.EEXIST, "already there", new) from None
        raise


def _remove(client: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        client.remove(path)


class Sessions:
    """Opens SSH sessions with the user's settings of ssh: ~/.ssh/config, known_hosts, the agent and the keys."""

    def __init__(self, url: str, timeout_s: float, options: Mapping[str, Any]):
        try:
            import paramiko
        except ImportError as error:
            raise ConfigError(
                f"checkpoint.url: {masked(url)} needs a package that is not installed: pip install 'clusterdp[sftp]'"
            ) from error
        self._paramiko = paramiko
        self._timeout_s = timeout_s
        self._connect_to = _target(url, paramiko) | dict(options)
        self._trusting = self._connect_to.pop("trusting")
        self._proxy = self._connect_to.pop("proxy")
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._process = os.getpid()

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Yields a client that no other caller uses meanwhile. A session that has failed to answer is not used
        again."""
        if os.getpid() != self._process:  # after a fork, the parent process uses the connections
            raise OSError(errno.EINVAL, "this process was forked from the one that opened it. Open it anew here")
        with self._lock:
            client = self._idle.pop() if self._idle else None
        if client is None:
            client = self._connect()
        try:
            yield client
        except OSError as error:
            if _is_an_answer(error):
                self._idle.append(client)
            else:
                self._end(client)
            raise
        except BaseException:
            self._end(client)
            raise
        self._idle.append(client)

    def _connect(self) -> Any:
        ssh = self._paramiko.SSHClient()
        ssh.load_system_host_keys()
        with contextlib.suppress(OSError):
            ssh.load_system_host_keys("/etc/ssh/ssh_known_hosts")
        policy = self._paramiko.AutoAddPolicy if self._trusting else self._paramiko.RejectPolicy
        ssh.set_missing_host_key_policy(policy())
        limits = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), self._timeout_s)
        proxy = {"sock": self._paramiko.ProxyCommand(self._proxy)} if self._proxy else {}
        try:
            ssh.connect(**(limits | proxy | self._connect_to))
            client = ssh.open_sftp()
            client.get_channel().settimeout(self._timeout_s)
        except BaseException:
            ssh.close()
            raise
        client.ssh = ssh  # _end() closes the SSH client, too
        return client

    def _end(self, client: Any) -> None:
        with contextlib.suppress(Exception):
            client.ssh.close()


def _is_an_answer(error: OSError) -> bool:
    """Returns whether the error is an answer of the server: paramiko raises OSError for a refusal, but also if no
    answer comes."""
    return not isinstance(error, (TimeoutError, ConnectionError)) and error.args[:1] != ("Socket is closed",)


def _target(url: str, paramiko: Any) -> dict[str, Any]:
    """Returns the arguments of connect(), with two additions: `proxy` is the command to connect through, and `trusting`
    is True if unknown hosts are trusted."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:  # the error's text would show a password that was parsed as a port
        host = port = None
    if not host:
        raise ConfigError(f"checkpoint.url: {masked(url)} has no host. Write sftp://user@host:port/folder.")
    known = _configured(paramiko, host)
    target: dict[str, Any] = {"hostname": known.get("hostname", host), "port": port or int(known.get("port", 22))}
    user = unquote(parts.username) if parts.username else known.get("user")
    if user:
        target["username"] = user
    if parts.password is not None:
        target["password"] = unquote(parts.password)
    if keys := [path for path in known.get("identityfile", []) if Path(path).expanduser().is_file()]:
        target["key_filename"] = keys
    target["proxy"] = known.get("proxycommand")
    target["trusting"] = known.get("stricthostkeychecking", "ask") in ("no", "off", "accept-new")
    return target


def _configured(paramiko: Any, host: str) -> Mapping[str, Any]:
    path = Path("~/.ssh/config").expanduser()
    if not path.is_file():
        return {}
    try:
        found: Mapping[str, Any] = paramiko.SSHConfig.from_path(path).lookup(host)
    except (paramiko.ConfigParseError, ImportError) as error:
        raise ConfigError(f"{path}: {error}. checkpoint.url is read with it.") from error
    return found
