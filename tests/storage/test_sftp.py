"""sftp:// against a real OpenSSH server: threads, lost connections, hosts that are not trusted."""

from __future__ import annotations

import logging
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterdp.errors import ConfigError
from clusterdp.storage import RetryPolicy, open_storage
from clusterdp.storage.sftp import SftpStorage
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
    import paramiko

    asked = []
    request = paramiko.SFTPClient._request

    def spy(client: object, kind: int, *words: object) -> object:
        asked.append(words[0])
        return request(client, kind, *words)

    monkeypatch.setattr(paramiko.SFTPClient, "_request", spy)
    data = os.urandom(5 * MIB + 3)
    storage.write("a/x", [memoryview(data[: 3 * MIB]), memoryview(data[3 * MIB :])])
    assert (tmp_path / "far/a/x").read_bytes() == data
    assert storage.read("a/x") == data
    assert asked.count("fsync@openssh.com") == 1


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


def test_sftp_publish_succeeds_if_the_rename_response_is_lost(
    storage: SftpStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    import paramiko

    rename, lost = paramiko.SFTPClient.rename, []

    def lose(client: object, old: str, new: str) -> None:
        rename(client, old, new)
        if not lost:
            lost.append(new)
            raise EOFError

    monkeypatch.setattr(paramiko.SFTPClient, "rename", lose)
    storage.publish("a/m", b"ours")
    assert (storage.read("a/m"), storage.list("a"), len(lost)) == (b"ours", ["m"], 1)


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
    for known in ("", f"[127.0.0.1]:{sftp_server.port} {_other_key()}\n"):
        (tmp_path / ".ssh/known_hosts").write_text(known)
        with pytest.raises(PermissionError, match="its host key is not the one in"):
            open_storage(sftp_server.url(tmp_path)).list()


def _other_key() -> str:
    import paramiko

    key = paramiko.RSAKey.generate(2048)
    return f"{key.get_name()} {key.get_base64()}"


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


def test_sftp_reads_host_port_and_key_from_the_ssh_config(
    sftp_server: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/config").write_text(
        f"Host store\n HostName 127.0.0.1\n Port {sftp_server.port}\n StrictHostKeyChecking accept-new\n"
        f" IdentityFile {sftp_server.home}/.ssh/id_ed25519\n"
    )
    monkeypatch.setenv("HOME", str(home))
    assert open_storage(f"sftp://store{tmp_path}").list() == ["home"]


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


def test_sftp_threads_reuse_an_idle_connection(storage: SftpStorage) -> None:
    storage.publish("a/m", b"1")
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(storage.read("a/m")))
    thread.start()
    thread.join()
    assert (seen, len(storage._sessions._idle)) == ([b"1"], 1)
