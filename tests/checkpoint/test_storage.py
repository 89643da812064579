"""Bytes at a URL: created once, whole and durable, on a file system and on an object store."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from clusterdp.storage import LocalStorage, Storage, UrlStorage, open_storage


@pytest.fixture(params=["path", "file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "memory":
        yield open_storage("memory://test/checkpoints")
        fsspec.filesystem("memory").rm("/test", recursive=True)
    else:
        path = tmp_path / "with space"
        yield open_storage(path if request.param == "path" else path.as_uri())


def test_what_is_written_is_there_with_its_size_and_bytes(storage: Storage) -> None:
    storage.make_folder("a/b")
    storage.write("a/b/x", [memoryview(b"one"), memoryview(b""), memoryview(b"two")])
    storage.publish("a/b/y", b"whole")
    storage.sync_folder("a/b")
    assert storage.list("a/b") == ["x", "y"]
    assert (storage.size("a/b/x"), storage.read("a/b/x"), storage.read("a/b/y", 2)) == (6, b"onetwo", b"wh")
    assert storage.modified("a/b/y") >= storage.modified("a/b/x") > 1e9
    target = memoryview(bytearray(10))
    with storage.open("a/b/x") as file:
        assert file.read_at(2, target) == 4
    assert bytes(target[:4]) == b"etwo"


def test_nothing_is_overwritten(storage: Storage) -> None:
    storage.make_folder("a")
    storage.write("a/x", [memoryview(b"first")])
    storage.publish("a/y", b"first")
    with pytest.raises(FileExistsError):
        storage.write("a/x", [memoryview(b"second")])
    with pytest.raises(FileExistsError):
        storage.publish("a/y", b"second")
    assert (storage.read("a/x"), storage.read("a/y")) == (b"first", b"first")
    assert storage.list("a") == ["x", "y"]


def test_what_is_missing_is_no_surprise(storage: Storage) -> None:
    assert storage.list() == []
    assert storage.list("none") == []
    storage.make_folder("a")
    storage.remove("a/none")
    storage.remove_folder("none")
    storage.forget("a/none")
    with pytest.raises(FileNotFoundError):
        storage.size("a/none")
    with pytest.raises(FileNotFoundError):
        storage.read("a/none")


def test_a_folder_goes_only_when_it_is_empty(storage: Storage) -> None:
    storage.make_folder("a")
    storage.write("a/x", [memoryview(b"x")])
    storage.remove_folder("a")
    assert storage.read("a/x") == b"x"
    storage.remove("a/x")
    storage.remove_folder("a")
    assert storage.list() == []


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


def test_bytes_that_did_not_arrive_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage("memory://test/lossy")
    assert isinstance(storage, UrlStorage)
    storage.make_folder("")
    monkeypatch.setattr(storage, "size", lambda name: 3)
    with pytest.raises(OSError, match="3 of 4 bytes arrived"):
        storage.write("x", [memoryview(b"four")])
    fsspec.filesystem("memory").rm("/test", recursive=True)


def test_a_plain_path_does_not_load_fsspec() -> None:
    program = "import sys, clusterdp.storage as s; s.open_storage('/x'); s.open_storage('file:///x'); "
    program += "assert 'fsspec' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
