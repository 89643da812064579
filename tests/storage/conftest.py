"""The servers: started once, when the first test needs them."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from clusterdp.storage import MemoryStorage, RetryPolicy, Storage, open_storage, retry
from tests.keepers import Node, keepers
from tests.storage.proxy import Proxy
from tests.storage.servers import KEYS, S3Server, SftpServer, why_no_sshd

PATIENCE = RetryPolicy(timeout_s=20, retry_s=20)
KINDS = ("path", "file", "memory", "s3", "sftp", *(["keeper"] if sys.platform == "linux" else []))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def sftp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    """Where it cannot be: skipped, but under CI failed."""
    if reason := why_no_sshd():
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    server = SftpServer(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of our own, and nobody else's configuration."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="session")
def one_proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """One, so that the tests share a client too: to make one takes longer than most tests."""
    proxy = Proxy(s3_server.port)
    yield proxy
    proxy.stop()


@pytest.fixture
def proxy(one_proxy: Proxy, keys: None) -> Iterator[Proxy]:
    """Before the S3 server. At first everything passes."""
    yield one_proxy
    one_proxy.reset()


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.02)


@pytest.fixture(scope="session")
def bucket(s3_server: S3Server) -> str:
    """One for all tests: each has a prefix of its own."""
    keys = {"key": KEYS["AWS_ACCESS_KEY_ID"], "secret": KEYS["AWS_SECRET_ACCESS_KEY"]}
    fsspec.filesystem("s3", endpoint_url=s3_server.endpoint, **keys).mkdir("tests")
    return "tests"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with keepers(tmp_path, "n1", key=uuid.uuid4().hex) as (one,):
        yield one


@pytest.fixture
def open_kind(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Storage]:
    """open_storage() of an empty place of a kind; twice of the same test: of the same place."""
    fresh = uuid.uuid4().hex

    def open_it(kind: str, **options: Any) -> Storage:
        options = {"retry_policy": PATIENCE, **options}
        if kind == "memory":
            return open_storage(f"memory://{fresh}/checkpoints", **options)
        if kind == "s3":
            request.getfixturevalue("keys")
            server, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("bucket")
            return open_storage(f"s3://{bucket}/{fresh}", **{"endpoint_url": server.endpoint, **options})
        if kind == "keeper":
            node = request.getfixturevalue("node")
            return MemoryStorage(node.key, node.name)
        if kind == "sftp":
            server = request.getfixturevalue("sftp_server")
            monkeypatch.setenv("HOME", server.environ["HOME"])
            return open_storage(server.url(tmp_path / "far"), **options)
        path = tmp_path / "with space"
        return open_storage(path if kind == "path" else path.as_uri())

    return open_it


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, open_kind: Callable[..., Storage]) -> Storage:
    return open_kind(request.param)
