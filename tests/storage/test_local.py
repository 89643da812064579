"""A folder on a local or shared file system: when the disk, or somebody else, does not play along."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp.storage import LocalStorage


def test_local_publish_leaves_no_file_if_fsync_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)

    def fail(fd: int) -> None:
        (temporary,) = tmp_path.iterdir()
        assert temporary.name != "manifest", "it is visible before it is durable"
        raise OSError(errno.EIO, "fsync failed")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="fsync failed"):
        storage.publish("manifest", b"data")
    assert storage.list() == [], "not even the temporary file stays"


def test_local_publish_needs_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    storage = LocalStorage(tmp_path)
    storage.publish("manifest", b"data")
    with pytest.raises(FileExistsError):
        storage.publish("manifest", b"other")
    assert (storage.list(), storage.read("manifest")) == (["manifest"], b"data")


def test_local_read_refuses_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        LocalStorage(tmp_path).read("link")


@pytest.mark.parametrize("name", ["link/file", "a/link/file", "link/b/file"])
def test_local_remove_deletes_no_file_behind_a_symbolic_link(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "b").mkdir(parents=True)
    for file in (theirs / "file", theirs / "b" / "file"):
        file.touch()
    (tmp_path / "ours" / "a").mkdir(parents=True)
    (tmp_path / "ours" / name[: name.index("link")] / "link").symlink_to(theirs)
    storage = LocalStorage(tmp_path / "ours")
    with pytest.raises(OSError, match="link is a link"):
        storage.remove(name)
    storage.remove_folder(name.rpartition("/")[0])
    assert sorted(theirs.rglob("*")) == [theirs / "b", theirs / "b" / "file", theirs / "file"]


def test_local_remove_under_a_symlinked_root_deletes_files_and_links(tmp_path: Path) -> None:
    (tmp_path / "far" / "step").mkdir(parents=True)
    (tmp_path / "far" / "step" / "file").touch()
    (tmp_path / "far" / "step" / "link").symlink_to(tmp_path)
    (tmp_path / "near").symlink_to("far")
    storage = LocalStorage(tmp_path / "near")
    for name in ("step/file", "step/link", "step/none", "none/none"):
        storage.remove(name)
    storage.remove_folder("step")
    assert list((tmp_path / "far").iterdir()) == []


def test_open_storage_of_a_plain_path_imports_no_fsspec() -> None:
    program = "import sys, clusterdp.storage as s; s.open_storage('/x'); s.open_storage('file:///x'); "
    program += "assert not sys.modules.keys() & {'fsspec', 'asyncio', 's3fs', 'asyncssh', 'concurrent.futures'}"
    subprocess.run([sys.executable, "-c", program], check=True)
