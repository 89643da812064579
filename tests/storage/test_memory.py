"""Files in a node's memory, as the keeper holds them for ranks that come and go."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from clusterdp.batch.nodes import keeper
from clusterdp.storage import MemoryStorage
from tests.keepers import Node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")

WRITER = """\
import os
from clusterdp.storage import MemoryStorage
MemoryStorage.of_this_node(os.environ["CLUSTERDP_MEMORY"].partition(" ")[2]).write("step_1/x", [memoryview(b"kept")])
os.kill(os.getpid(), 9)
"""


def storage_of(node: Node) -> MemoryStorage:
    return MemoryStorage(node.key, node.name)


def test_file_outlives_the_process_of_its_writer(node: Node) -> None:
    done = subprocess.run([sys.executable, "-c", WRITER], env={**os.environ, **node.environ})
    assert done.returncode == -signal.SIGKILL
    assert storage_of(node).read("step_1/x") == b"kept"


def test_connection_collected_before_its_storage_is_closed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [keeper.connect(node.key, node.name)]  # older than the storage, so that the collector finalizes it first
    monkeypatch.setattr(keeper, "connect", lambda *words: lines.pop())
    storage = storage_of(node)
    storage.names()
    storage.itself = storage  # type: ignore[attr-defined]
    del storage
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(each.message) for each in caught] == []


def test_killed_writer_and_keeper_leave_no_memory_in_use(node: Node) -> None:
    subprocess.run(
        [sys.executable, "-c", WRITER.replace("step_1/x", f"1/{node.key}")], env={**os.environ, **node.environ}
    )
    name = f"/memfd:clusterdp-{node.key} (deleted)"
    assert [*holders(name)] == [node.process.pid]
    node.end()
    assert [*holders(name)] == []


def holders(name: str) -> dict[int, str]:
    """The processes that have a file open; the kernel frees a memfd when there is none."""
    found = {}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == name:
                found[int(link.parts[2])] = name
        except OSError:
            pass  # ended meanwhile
    return found


def test_node_without_a_keeper_is_an_oserror(node: Node) -> None:
    storage = storage_of(node)
    storage.write("1/x", [])
    node.end()
    for ask in (storage.names, lambda: storage.write("1/y", []), lambda: storage.size("1/x")):
        with pytest.raises(OSError, match=f"memory of {node.name}"):
            ask()


def test_nodes_of_one_job_have_separate_files(node: Node, tmp_path: Path) -> None:
    other = Node(node.key, "n2", tmp_path)
    try:
        storage_of(node).write("1/x", [])
        assert storage_of(other).names() == []
    finally:
        other.end()


def test_storage_uses_the_memory_of_a_removed_file_again(node: Node) -> None:
    storage = storage_of(node)
    inodes = []
    for number, size in enumerate((3000, 3000, 10, 5000)):
        name = f"1/{'0' * 12}-{number:04d}-r0000.json"
        storage.write(name, [memoryview(bytes([number]) * size)])
        assert storage.read(name) == bytes([number]) * size
        inodes.append(os.fstat(storage._descriptor(name)).st_ino)
        storage.remove(name)
    assert len({*inodes}) == 1


def test_held_file_is_not_written_again(node: Node) -> None:
    storage = storage_of(node)
    for number in range(2):
        storage.write(f"1/{'0' * 12}-{number:04d}-r0000.json", [memoryview(bytes([number]))])
    assert storage.read(f"1/{'0' * 12}-0000-r0000.json") == b"\0"


def test_keeper_refuses_processes_of_other_users(node: Node) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    lines = f"""\
import os, sys
from clusterdp.batch.nodes import keeper
os.setuid(65534)
try:
    keeper.connect({node.key!r}, {node.name!r})
except PermissionError:
    pass
keeper._is_ours = lambda line: True
line = keeper.connect({node.key!r}, {node.name!r})
try:
    keeper.ask(line, {{"do": "list", "folder": ""}})
except ConnectionError:
    sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", lines]).returncode == 7


def test_keeper_outlives_bad_requests_and_slurms_signals(node: Node) -> None:
    for request in ({}, {"do": "get"}, {"do": "dance", "name": "x"}, [], 3):
        line = keeper.connect(node.key, node.name)
        try:
            keeper.ask(line, request)  # type: ignore[arg-type]
        except OSError:
            pass
        line.close()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
        node.process.send_signal(number)
    assert storage_of(node).names() == []


def test_keeper_ends_with_its_stdin(node: Node) -> None:
    assert node.process.stdin is not None
    node.process.stdin.close()
    assert node.process.wait(10) == 0


def test_keeper_writes_the_files_of_a_save_to_the_disk(node: Node, tmp_path: Path) -> None:
    storage, token = storage_of(node), "0123456789ab-0003"
    files = {f"{token}-r0000.json": b"rank", f"{token}-r0000-of-0001.safetensors": os.urandom(40_000_000)}
    for name, data in {**files, "0123456789ab-0002-r0000.json": b"old", f"MANIFEST.{token}.json": b"{}"}.items():
        storage.write(f"step_00000007/{name}", [memoryview(data)])
    assert node.order(f"write step_00000007 {token}") == "wrote n1 2"
    assert {path.name: path.read_bytes() for path in (tmp_path / "step_00000007").iterdir()} == files
    assert node.order(f"write step_00000007 {token}").startswith("failed n1 [Errno 17] File exists")
    assert node.order(f"write step_00000008 {token}") == "wrote n1 0"


def test_training_with_other_checkpoints_does_not_find_the_keeper(node: Node, tmp_path: Path) -> None:
    assert MemoryStorage.of_this_node(str(tmp_path), {}) is None
    assert MemoryStorage.of_this_node(str(tmp_path / "inner"), node.environ) is None
    found = MemoryStorage.of_this_node(str(tmp_path), {**node.environ, "CLUSTERDP_ATTEMPT": "7_3.2.4"})
    assert found is not None
    assert (found._life, found.names()) == (4, [])


def test_file_of_a_replaced_life_is_refused(node: Node) -> None:
    old, new = (MemoryStorage(node.key, node.name, life) for life in (1, 2))
    old.write("1/x", [])
    new.write("1/y", [])
    with pytest.raises(OSError, match="a later attempt has files here"):
        old.write("1/z", [])
    for name in ("1/x", "1/y"):
        old.remove(name)
    assert (new.names(), old.spare_bytes, old._spare) == (["1/x", "1/y"], 0, {})


def test_python_without_memfd_create_uses_an_unlinked_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    before = sorted(os.listdir("/dev/shm"))
    storage = storage_of(node)
    storage.write("1/x", [memoryview(b"kept")])
    assert storage.read("1/x") == b"kept"
    assert sorted(os.listdir("/dev/shm")) == before


def test_removed_files_leave_no_descriptor_open(node: Node) -> None:
    storage = storage_of(node)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(4):
        storage.write(f"1/{'0' * 12}-{number:04d}-r0000.json", [memoryview(bytes(10))])
    for number in range(4):
        storage.remove(f"1/{'0' * 12}-{number:04d}-r0000.json")
    assert storage.spare_bytes == 10
    storage.free_spares()
    assert len(os.listdir("/proc/self/fd")) == before + 1, "the connection"


def test_failed_write_to_the_disk_leaves_no_file(node: Node, tmp_path: Path) -> None:
    storage, token = storage_of(node), "0123456789ab-0003"
    for name in (f"{token}-r0000.json", f"{token}-r0001.json"):
        storage.write(f"step_00000007/{name}", [memoryview(b"rank")])
    (tmp_path / f"step_00000007/{token}-r0001.json").mkdir(parents=True)
    assert node.order(f"write step_00000007 {token}").startswith("failed n1 ")
    assert [path.name for path in (tmp_path / "step_00000007").iterdir()] == [f"{token}-r0001.json"]
