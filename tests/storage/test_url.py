"""What a user reads who wrote a URL that does not work, and what nobody may read."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import Any

import pytest

from clusterdp.errors import ConfigError
from clusterdp.storage import RetryPolicy, has_password, masked, open_storage
from clusterdp.storage.url import UrlStorage


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sftp://me:secret@host/run", "sftp://me:***@host/run"),
        ("sftp://me:se:c@r@et@host:22/run", "sftp://me:***@host:22/run"),
        ("sftp://me:sec/ret@host/run", "sftp://me:***@host/run"),
        ("ftp://:secret@host/run", "ftp://:***@host/run"),
        ("abfs://c@a.net/run?sig=abc%3D&x=1", "abfs://c@a.net/run?sig=***&x=1"),
        ("https://host/run?AccessKeyId=1&SecretKey=2", "https://host/run?AccessKeyId=***&SecretKey=***"),
        *((same, same) for same in ("sftp://me@host:22/a@b:c@d", "s3://bucket/a:b@c", "/a:b@c", "s3://b/x?y=z")),
    ],
)
def test_masked_hides_only_the_secrets_of_a_url(url: str, shown: str) -> None:
    assert masked(url) == shown
    assert has_password(url) == (url != shown)


def test_storage_errors_do_not_contain_the_password_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage("memory://me:secret@host/x")
    assert isinstance(storage, UrlStorage)

    def leak(path: str) -> int:
        raise ValueError("cannot talk to me:secret@host")

    monkeypatch.setattr(storage.fs, "size", leak)
    with pytest.raises(OSError, match="ValueError") as caught:
        storage.read("x")
    for text in (repr(storage), storage.url, str(caught.value)):
        assert "secret" not in text


@pytest.mark.parametrize("url", ["s4://bucket/run", "nonsense://x"])
def test_unknown_url_scheme_is_an_error_with_its_config_key(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^checkpoint\.url: .* has an unknown scheme, '\w+'\. Give a path, file"):
        open_storage(url)


def test_missing_storage_package_is_an_error_with_the_package_to_install() -> None:
    program = """
import sys
from clusterdp.storage import open_storage
from clusterdp.errors import ConfigError
sys.modules |= {"s3fs": None, "sshfs": None, "gcsfs": None}  # an import of None fails
for url in "s3://bucket/run", "sftp://host/run", "gs://bucket/run":
    try:
        open_storage(url)
    except ConfigError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    s3, sftp, gs = done.stdout.splitlines()
    needs = "needs a package that is not installed: "
    assert s3 == f"checkpoint.url: s3://bucket/run {needs}pip install 'clusterdp[s3]'"
    assert sftp == f"checkpoint.url: sftp://host/run {needs}pip install 'clusterdp[sftp]'"
    assert gs.startswith(f"checkpoint.url: gs://bucket/run {needs}") and "gcsfs" in gs


def test_write_and_publish_fail_if_the_stored_size_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    assert isinstance(storage, UrlStorage)
    storage.make_folder("a")
    real = storage.size
    monkeypatch.setattr(storage, "size", lambda name: real(name) - 1)
    for create in (lambda: storage.write("a/x", [memoryview(b"four")]), lambda: storage.publish("a/y", b"four")):
        with pytest.raises(OSError, match="3 of 4 bytes arrived"):
            create()


def test_url_storage_retries_only_temporary_errors() -> None:
    storage = open_storage(f"memory://{uuid.uuid4().hex}", retry_policy=RetryPolicy(retry_s=30))
    assert isinstance(storage, UrlStorage)
    storage.publish("x", b"1")
    for error, tries in ((ConnectionResetError(), 3), (TimeoutError(), 3), (PermissionError("no"), 1), (KeyError(), 1)):
        calls = []

        def fail(path: str, error: Exception = error, calls: list[str] = calls) -> int:
            calls.append(path)
            if len(calls) < 3:
                raise error
            return 1

        storage.fs = _Sizes(fail)
        if tries == 1:
            with pytest.raises(OSError, match=r"access denied|KeyError"):
                storage.size("x")
        else:
            assert storage.size("x") == 1
        assert len(calls) == tries


class _Sizes:
    async_impl = False

    def __init__(self, size: Any):
        self.size = size
