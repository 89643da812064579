"""sftp:// against a real OpenSSH server: threads, lost connections, hosts that are not trusted."""

from __future__ import annotations

import gc
import getpass
import logging
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest
from asyncssh.sftp import SFTPClientHandler

from clusterdp.errors import ConfigError
from clusterdp.storage import RetryPolicy, open_storage
from clusterdp.storage.sftp import SftpStorage
from tests.ports import free_port
from tests.storage.servers import SftpServer

MIB = 1 << 20


@pytest.fixture
def storage(open_kind: Callable[..., SftpStorage]) -> SftpStorage:
    storage = open_kind("sftp", retry_policy=RetryPolicy(timeout_s=10, retry_s=30))
    storage.make_folder("a")
    return storage


def test_sftp_write_stores_a_large_file_and_fsyncs_it_once(
    storage: SftpStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    fsync = SFTPClientHandler.fsync

    async def spy(client: SFTPClientHandler, handle: bytes) -> None:
        assert client._supports_fsync
        asked.append(handle)
        await fsync(client, handle)

    monkeypatch.setattr(SFTPClientHandler, "fsync", spy)
    data = os.urandom(5 * MIB + 3)
    storage.write("a/x", [memoryview(data[: 3 * MIB]), memoryview(data[3 * MIB :])])
    assert (tmp_path / "far/a/x").read_bytes() == data
    assert storage.read("a/x") == data
    assert len(asked) == 1


def test_sftp_write_succeeds_on_a_server_without_fsync(storage: SftpStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, "fsync", asyncssh.SFTPOpUnsupported("fsync not supported"))
    storage.write("a/x", [memoryview(b"1")])
    assert storage.read("a/x") == b"1"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (asyncssh.SFTPFailure("Failure"), "the server says 'Failure', which may be a full disk or quota"),
        (asyncssh.SFTPPermissionDenied("Permission denied"), "access denied. Check the owner and the mode"),
    ],
)
def test_refused_sftp_write_is_an_error_with_remedy_after_one_try(
    storage: SftpStorage, monkeypatch: pytest.MonkeyPatch, answer: Exception, message: str
) -> None:
    asked = _answer(monkeypatch, "write", answer)
    with pytest.raises(OSError, match=message) as caught:
        storage.write("a/x", [memoryview(b"1")])
    assert (caught.value.filename, len(asked)) == (f"{storage.url}/a/x", 1)


def _answer(monkeypatch: pytest.MonkeyPatch, request: str, error: Exception, times: int = 9) -> list[object]:
    """The server does each request of a kind, and gives this answer. Returns the requests so far."""
    real, asked = getattr(SFTPClientHandler, request), list[object]()

    async def do(client: SFTPClientHandler, *words: object) -> object:
        asked.append(words)
        done = await real(client, *words)
        if len(asked) <= times:
            raise error
        return done

    monkeypatch.setattr(SFTPClientHandler, request, do)
    return asked


def test_sftp_write_read_and_publish_reconnect_after_a_lost_connection(
    storage: SftpStorage, sftp_server: SftpServer, tmp_path: Path
) -> None:
    data = os.urandom(4 * MIB)

    def cut_off():  # type: ignore[no-untyped-def]
        yield memoryview(data[:MIB])
        sftp_server.cut()
        yield memoryview(data[MIB : 3 * MIB])
        sftp_server.cut()
        yield memoryview(data[3 * MIB :])

    storage.write("a/x", cut_off())
    assert (tmp_path / "far/a/x").read_bytes() == data
    sftp_server.cut()
    assert storage.read("a/x") == data
    sftp_server.cut()
    storage.publish("a/m", b"manifest")
    assert storage.list("a") == ["m", "x"]


def test_sftp_publish_waits_for_a_stopped_server_to_return(storage: SftpStorage, sftp_server: SftpServer) -> None:
    class ComeBack(logging.Handler):
        """When the storage says that it will ask again."""

        said = 0

        def emit(self, record: logging.LogRecord) -> None:
            self.said += 1
            if self.said == 1:
                sftp_server.start()

    logger, handler = logging.getLogger("clusterdp.storage"), ComeBack()
    logger.addHandler(handler)
    sftp_server.stop()
    try:
        storage.publish("a/m", b"there")
    finally:
        logger.removeHandler(handler)
        if not handler.said:
            sftp_server.start()
    assert (storage.read("a/m"), handler.said) == (b"there", 1)


def test_unanswered_sftp_request_fails_after_the_retry_limit(
    open_kind: Callable[..., SftpStorage], sftp_server: SftpServer
) -> None:
    storage = open_kind("sftp", retry_policy=RetryPolicy(timeout_s=0.5, retry_s=0.1))
    storage.list()
    sftp_server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(OSError, match=r"for 0\.1 s\. See whether the server is up"):
            storage.list()
    finally:
        sftp_server.signal(signal.SIGCONT)


def test_large_sftp_read_logs_no_traceback_after_a_time_out(
    open_kind: Callable[..., SftpStorage], sftp_server: SftpServer, caplog: pytest.LogCaptureFixture
) -> None:
    storage = open_kind("sftp", retry_policy=RetryPolicy(timeout_s=10, retry_s=0))
    storage.make_folder("")
    storage.publish("x", bytes(MIB))
    read = SFTPClientHandler.read

    async def freeze(client: SFTPClientHandler, *words: object) -> object:
        sftp_server.signal(signal.SIGSTOP)
        return await read(client, *words)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "limit_s", lambda nbytes: 0.3)
        patch.setattr(SFTPClientHandler, "read", freeze)
        with pytest.raises(TimeoutError, match="the server does not answer"):
            storage.read("x", MIB)
    sftp_server.signal(signal.SIGCONT)
    assert storage.list() == ["x"]
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.parametrize("request_", ["open", "rename"])
def test_sftp_publish_succeeds_if_a_response_is_lost(
    storage: SftpStorage, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    asked = _answer(monkeypatch, request_, asyncssh.SFTPConnectionLost("lost"), times=1)
    storage.publish("a/m", b"ours")
    assert (storage.read("a/m"), storage.list("a"), len(asked) > 1) == (b"ours", ["m"], True)


def test_sftp_read_refuses_a_symbolic_link(storage: SftpStorage, tmp_path: Path) -> None:
    (tmp_path / "far/a/link").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links are not followed"):
        storage.read("a/link")
    storage.remove("a/link")
    assert stat.S_ISREG(os.stat("/etc/passwd").st_mode)


def test_sftp_remove_deletes_no_file_behind_a_symbolic_link(storage: SftpStorage, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/file").touch()
    (tmp_path / "far/a/step").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="a/step is a link"):
        storage.remove("a/step/file")
    storage.remove_folder("a/step")
    assert (tmp_path / "theirs/file").exists()


def test_sftp_refuses_an_unknown_or_changed_host_key(
    sftp_server: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    host = f"[127.0.0.1]:{sftp_server.port}"
    (tmp_path / ".ssh/config").write_text("StrictHostKeyChecking no\n")
    others = [
        asyncssh.generate_private_key(kind).export_public_key() for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256")
    ]
    for known in ("", *(f"{host} {key.decode()}" for key in others)):
        (tmp_path / ".ssh/known_hosts").write_text(known)
        with pytest.raises(PermissionError, match="its host key is not the one in"):
            open_storage(sftp_server.url(tmp_path)).list()


def test_sftp_host_key_of_the_address_alone_is_not_accepted(
    sftp_server: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(sftp_server.home))
    with pytest.raises(PermissionError, match="its host key is not the one in"):
        open_storage(sftp_server.url(tmp_path).replace("127.0.0.1", "localhost")).list()


@pytest.mark.parametrize("option", ["UserKnownHostsFile none", "UserKnownHostsFile ~/missing"])
def test_ssh_config_cannot_turn_the_sftp_host_key_check_off(
    sftp_server: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    _home(sftp_server, tmp_path, monkeypatch, f"Host store\n {option}\n")
    with pytest.raises(PermissionError, match="its host key is not the one in"):
        open_storage(f"sftp://store{tmp_path}").list()


def _home(server: SftpServer, folder: Path, monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    """A home folder whose config names the server `store`, with the key of the server."""
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/known_hosts").write_bytes((server.home / ".ssh/known_hosts").read_bytes())
    key = f"Host *\n HostName 127.0.0.1\n Port {server.port}\n IdentityFile {server.home}/.ssh/id_ed25519\n"
    (home / ".ssh/config").write_text(config + key)
    monkeypatch.setenv("HOME", str(home))


def test_sftp_login_error_shows_no_password(
    sftp_server: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/known_hosts").write_bytes((sftp_server.home / ".ssh/known_hosts").read_bytes())
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    storage = open_storage(sftp_server.url(tmp_path).replace("@", ":very%20secret@"))
    with pytest.raises(PermissionError, match="Check that `ssh` to it works") as caught:
        storage.list()
    assert ":***@127.0.0.1" in repr(storage)
    for text in (str(caught.value), repr(storage), caplog.text):
        assert "secret" not in text


@pytest.mark.parametrize("option", ["User {user}", "IdentityFile ~/.ssh/missing", "ProxyJump jump"])
def test_sftp_reads_host_port_key_and_jump_from_the_ssh_config(
    sftp_server: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    _home(sftp_server, tmp_path, monkeypatch, f"Host store\n {option.format(user=getpass.getuser())}\n")
    assert open_storage(f"sftp://store{tmp_path}").list() == ["home"]


@pytest.mark.parametrize(
    "option", ["ProxyCommand no-such-command %h", "ProxyJump jump\nHost jump\n IdentityFile ~/none"]
)
def test_missing_file_of_the_ssh_config_is_not_an_empty_storage(
    sftp_server: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    _home(sftp_server, tmp_path, monkeypatch, f"Host store\n {option}\n")
    with pytest.raises(OSError, match=r"No such file .* See ~/\.ssh: each IdentityFile and ProxyCommand of config"):
        open_storage(f"sftp://store{tmp_path}").list()


def test_invalid_ssh_config_is_an_error_with_its_line(
    sftp_server: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _home(sftp_server, tmp_path, monkeypatch, "Host store\n ConnectTimeout soon\n")
    with pytest.raises(ConfigError, match=r"config line 2: .* checkpoint\.url: sftp://store/x is read with it\.$"):
        open_storage("sftp://store/x")


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("no.such.host.invalid", r"Check the host in checkpoint\.url"),
        ("localhost:{port}", r"no connection .*, for 0\.1 s\. See whether the server is up"),
    ],
)
def test_sftp_host_without_a_server_is_an_error_with_remedy(host: str, message: str) -> None:
    with pytest.raises(OSError, match=message) as caught:
        open_storage(f"sftp://{host.format(port=free_port())}/x", retry_policy=RetryPolicy(5, 0.1)).list()
    assert not isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("url", ["sftp:///x", "sftp://user:pa/ss@host/x", "sftp://me:secret@host:port/x"])
def test_invalid_sftp_url_is_refused_without_printing_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"Write sftp://user@host:port/folder\.") as caught:
        open_storage(url)
    assert "pa/ss" not in str(caught.value) and "secret" not in str(caught.value)


def test_sftp_storage_refuses_use_in_a_forked_child(storage: SftpStorage) -> None:
    storage.publish("a/m", b"1")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            storage.list()
        except OSError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert b"this process was forked" in os.read(reader, 1000)
    os.close(reader)
    assert storage.read("a/m") == b"1"


def test_sftp_threads_share_a_connection(storage: SftpStorage) -> None:
    storage.publish("a/m", b"1")
    connected, seen = storage.fs, list[object]()
    thread = threading.Thread(target=lambda: seen.append(storage.read("a/m")))
    thread.start()
    thread.join()
    assert (seen, storage.fs) == ([b"1"], connected)
