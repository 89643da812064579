"""Sessions: SFTP clients of one server, each lent to one thread at a time.

A client of paramiko's serves one thread: with two, one may take the other's answer. And fsspec's `sftp` has one client
for all, believes any host key, and cannot ask for an fsync; so sftp:// is served from here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from clusterdp.errors import ConfigError
from clusterdp.storage.address import masked


class Sessions:
    """What ssh itself would do for the host: ~/.ssh/config, known_hosts, the agent and the keys there."""

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
        """A client of the caller's own. One that has failed to answer is not used again."""
        if os.getpid() != self._process:  # the parent talks on the same connections
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
        client.ssh = ssh  # what ends with it
        return client

    def _end(self, client: Any) -> None:
        with contextlib.suppress(Exception):
            client.ssh.close()


def _is_an_answer(error: OSError) -> bool:
    """Whether the server has answered at all: paramiko raises an OSError for a refusal, and for no answer too."""
    return not isinstance(error, (TimeoutError, ConnectionError)) and error.args[:1] != ("Socket is closed",)


def _target(url: str, paramiko: Any) -> dict[str, Any]:
    """The arguments of connect(), the command to connect through, and whether unknown hosts are to be trusted."""
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:  # its text would show a password that was taken for a port
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
