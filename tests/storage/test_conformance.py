"""What every storage must do, whatever it lies on: one suite, run on disks, in memory, and on real servers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from clusterdp.storage import Storage
from clusterdp.storage.base import read_pieces


def test_storage_lists_and_reads_back_written_and_published_files(storage: Storage) -> None:
    storage.make_folder("a/b")
    storage.make_folder("a/b")
    storage.write("a/b/x", [memoryview(b"one"), memoryview(b""), memoryview(b"two")])
    storage.write("a/b/empty", [])
    storage.publish("a/b/y", b"whole")
    storage.sync_folder("a/b")
    assert storage.list("a/b") == ["empty", "x", "y"]
    assert storage.list("a/b/x") == [], "a file has nothing in it"
    assert (storage.size("a/b/x"), storage.read("a/b/x"), storage.read("a/b/y", 2)) == (6, b"onetwo", b"wh")
    assert (storage.size("a/b/empty"), storage.read("a/b/empty"), storage.read("a/b/empty", 9)) == (0, b"", b"")
    assert storage.read("a/b/x", 100) == b"onetwo"
    assert storage.modified("a/b/y") >= storage.modified("a/b/x") > 1e9


def test_read_at_returns_any_requested_range_of_an_opened_file(storage: Storage) -> None:
    storage.make_folder("a")
    storage.write("a/x", [memoryview(b"onetwo")])
    for said in ((0, None), (0, 6), (2, 5), (6, 9)):
        with storage.open("a/x", *said) as file:
            for start, length in ((2, 3), (0, 6), (2, 10), (6, 1), (9, 1), (3, 0)):
                target = memoryview(bytearray(length))
                expected = b"onetwo"[start : start + length]
                assert file.read_at(start, target) == len(expected)
                assert bytes(target[: len(expected)]) == expected


@pytest.mark.parametrize("sizes", [(2, 4), (1, 0, 3), (0, 6), (4, 9, 2)])
def test_read_at_fills_pieces_one_after_the_other(storage: Storage, sizes: tuple[int, ...]) -> None:
    storage.make_folder("a")
    storage.write("a/x", [memoryview(b"onetwothree")])
    pieces = [memoryview(bytearray(size)) for size in sizes]
    with storage.open("a/x", 1, 11) as file:
        assert file.read_at(1, *pieces) == min(10, sum(sizes))
    assert b"".join(pieces).rstrip(b"\0") == b"netwothree"[: sum(sizes)]


def test_read_pieces_goes_on_after_short_reads() -> None:
    data, pieces = b"onetwothree", [memoryview(bytearray(size)) for size in (2, 5, 3)]

    def short(rooms: list[memoryview], start: int) -> int:
        count = min(3, len(rooms[0]))
        rooms[0][:count] = data[start : start + count]
        return count

    assert read_pieces(short, 1, pieces) == 10
    assert b"".join(pieces) == b"netwothree"


def test_write_and_publish_refuse_an_existing_name(storage: Storage) -> None:
    storage.make_folder("a")
    storage.write("a/x", [memoryview(b"first")])
    storage.publish("a/y", b"first")
    for name in ("a/x", "a/y"):
        with pytest.raises(FileExistsError):
            storage.write(name, [memoryview(b"second")])
        with pytest.raises(FileExistsError):
            storage.publish(name, b"second")
    assert (storage.read("a/x"), storage.read("a/y")) == (b"first", b"first")
    assert storage.list("a") == ["x", "y"], "no temporary file stays"


@pytest.mark.parametrize("kind", ["path", "sftp", "keeper"])  # the S3 server for tests looks first, and writes later
def test_concurrent_publish_of_the_same_name_succeeds_exactly_once(
    kind: str, open_kind: Callable[..., Storage]
) -> None:
    storage = open_kind(kind)
    storage.make_folder("a")
    start, outcomes = threading.Barrier(4), []

    def publish(content: bytes) -> None:
        start.wait()
        try:
            storage.publish("a/x", content)
            outcomes.append(content)
        except FileExistsError:
            outcomes.append(None)

    contents = [bytes([65 + n]) * 1000 for n in range(4)]
    threads = [threading.Thread(target=publish, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [content for content in outcomes if content]
    assert (storage.read("a/x"), len(outcomes)) == (winner, 4)
    assert storage.list("a") == ["x"]


def test_missing_file_is_an_error_for_read_but_not_for_remove(storage: Storage) -> None:
    assert storage.list() == []
    assert storage.list("none") == []
    assert storage.tree(lambda name: True) == {}
    storage.make_folder("a")
    storage.remove("a/none")
    storage.remove_folder("none")
    storage.forget("a/none")
    storage.drop_unfinished(lambda name: True, 1e12)
    for ask in (storage.size, storage.read, storage.modified, lambda name: storage.read(name, 10)):
        with pytest.raises(FileNotFoundError):
            ask("a/none")  # type: ignore[operator]


def test_remove_folder_removes_only_empty_folders(storage: Storage) -> None:
    storage.make_folder("a")
    storage.write("a/x", [memoryview(b"x")])
    storage.remove_folder("a")
    assert storage.read("a/x") == b"x"
    storage.remove("a/x")
    storage.remove_folder("a")
    assert storage.list() == []


def test_tree_lists_the_same_names_as_list(storage: Storage) -> None:
    for folder in ("step_1", "step_2", "other"):
        storage.make_folder(folder)
        for name in ("x", "y"):
            storage.publish(f"{folder}/{name}{folder}", b"1")
    storage.publish("step_file", b"1")
    storage.make_folder("step_2/deeper")
    storage.publish("step_2/deeper/z", b"1")
    found = {folder: list(names) for folder, names in storage.tree(lambda name: name.startswith("step_")).items()}
    assert found.pop("step_file", []) == [], "a file has nothing in it"
    assert found == {"step_1": storage.list("step_1"), "step_2": ["deeper", "xstep_2", "ystep_2"]}


def test_storage_refuses_names_outside_its_root_and_malformed_names(storage: Storage) -> None:
    asks = (storage.list, storage.size, storage.read, storage.remove, storage.make_folder, storage.modified)
    for name in ("../x", "a/../../x", "/etc/x", "a//x", "./x", "a/", "a\\x", "a\0x", ".."):
        for ask in (*asks, lambda name: storage.write(name, []), lambda name: storage.publish(name, b"")):
            with pytest.raises(OSError, match="not a name inside the storage"):
                ask(name)  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["path", "s3", "sftp", "keeper"])
def test_storage_accepts_names_with_spaces_and_special_characters(kind: str, open_kind: Callable[..., Storage]) -> None:
    storage = open_kind(kind)
    name = "a b/ü+%20 #?*[x]&'\"$(x);"
    storage.make_folder("a b")
    storage.publish(name, b"1")
    assert storage.list("a b") == [name.partition("/")[2]]
    assert storage.read(name) == b"1"
    storage.remove(name)
    assert storage.list("a b") == []


def test_interrupted_write_leaves_at_most_a_truncated_file(storage: Storage) -> None:
    """On stores there is no file then; in a folder there is one that is too short, as after a kill."""

    def torn() -> Iterator[memoryview]:
        yield memoryview(bytes(100))
        raise OSError(5, "as the test wants it")

    storage.make_folder("a")
    with pytest.raises(OSError, match="as the test wants it"):
        storage.write("a/x", torn())
    assert storage.list("a") == [] or storage.size("a/x") <= 100


@pytest.mark.parametrize("kind", ["path", "s3", "sftp", "keeper"])
def test_concurrent_threads_read_back_their_own_files_from_one_storage(
    kind: str, open_kind: Callable[..., Storage]
) -> None:
    storage = open_kind(kind)
    storage.make_folder("a")
    data = [os.urandom(300_000) for _ in range(6)]
    errors: list[object] = []

    def work(number: int) -> None:
        try:
            storage.write(f"a/{number}", [memoryview(data[number])])
            if storage.read(f"a/{number}") != data[number]:
                errors.append(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
