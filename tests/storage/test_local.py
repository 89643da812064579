"""A folder on a local or shared file system: when the disk, or somebody else, does not play along."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp.storage import LocalStorage


def test_a_file_is_published_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)

    def fail(fd: int) -> None:
        (temporary,) = tmp_path.iterdir()
        assert temporary.name != "manifest", "it is visible before it is durable"
        raise OSError(errno.EIO, "fsync failed")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="fsync failed"):
        storage.publish("manifest", b"data")
    assert storage.list() == [], "not even the temporary file stays"


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    storage = LocalStorage(tmp_path)
    storage.publish("manifest", b"data")
    with pytest.raises(FileExistsError):
        storage.publish("manifest", b"other")
    assert (storage.list(), storage.read("manifest")) == (["manifest"], b"data")


def test_a_symlink_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        LocalStorage(tmp_path).read("link")


def test_a_plain_path_loads_neither_fsspec_nor_what_it_needs() -> None:
    program = "import sys, clusterdp.storage as s; s.open_storage('/x'); s.open_storage('file:///x'); "
    program += "assert not sys.modules.keys() & {'fsspec', 'asyncio', 's3fs', 'paramiko', 'concurrent.futures'}"
    subprocess.run([sys.executable, "-c", program], check=True)
