"""The file of a node: its ranks write one file together, and only the last of them syncs it."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer, CheckpointError, list_checkpoints
from clusterdp.checkpoint.format.layout import HEADER, FlatLayout
from clusterdp.checkpoint.format.manifest import FileRecord, Manifest, Section, decode
from clusterdp.checkpoint.format.node_file import MOST_OWN, Room
from clusterdp.checkpoint.format.verified_reads import read_manifest
from clusterdp.checkpoint.save.node_writer import NodeWriter
from clusterdp.checkpoint.save.state_snapshot import StatePart
from clusterdp.checkpoint.save.writer import Staged, StagingMemory
from clusterdp.checkpoint.state import rank_group
from clusterdp.cli import main
from clusterdp.errors import DamagedError
from clusterdp.storage import LocalStorage, local
from tests.checkpoint.faulty import Faulty, fail_with, fill, state, try_to_save, until_clean
from tests.checkpoint.gang import on_ranks
from tests.checkpoint.training import Counter


def files_of(folder: Path, step: int) -> list[str]:
    """The names without tokens."""
    (newest,) = [info for info in list_checkpoints(folder) if info.step == step]
    found = sorted(path.name.replace(f"{newest.token}", "") for path in folder.glob(f"step_{step:08d}/*"))
    assert found.pop(-1) == "MANIFEST..json"
    return found


def manifest_of(folder: Path) -> Manifest:
    return read_manifest(LocalStorage(folder), list_checkpoints(folder)[-1])


def save(rank: int, size: int, folder: str, nodes: str = "", steps: int = 2) -> None:
    if nodes:
        os.environ["SLURMD_NODENAME"] = nodes[rank]
    live = state(0.0)
    checkpointer = Checkpointer(folder, live)
    for step in range(1, 1 + steps):
        fill(live, float(step))
        live["own"].state["mine"] += rank
        checkpointer.save(step)


def save_a_file_a_rank(rank: int, size: int, folder: str) -> None:
    LocalStorage.has_shared_files = False  # type: ignore[assignment,method-assign]
    save(rank, size, folder)


def load(rank: int, size: int, folder: str) -> tuple[int, float, float]:
    """Returns the step, the shared value, and this rank's own; -1 if it is not restored."""
    live = state(-1.0)
    restored = Checkpointer(folder, live).restore()
    assert restored is not None
    assert restored.skipped == ()
    tensor = live["shared"].state["tensor"]
    assert bool((tensor == tensor[0]).all())
    return restored.step, float(tensor[-1]), float(live["own"].state["mine"][-1])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_of_a_node_write_one_file_for_any_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    on_ranks(3, save, str(tmp_path))
    assert files_of(tmp_path, 2) == ["-n0000.safetensors"]
    own = [2.0, 3.0, 4.0] if ranks == 3 else [-1.0] * ranks
    assert on_ranks(ranks, load, str(tmp_path)) == [(2, 2.0, mine) for mine in own]


def test_ranks_in_any_order_on_uneven_nodes_restore_their_own_state(tmp_path: Path) -> None:
    on_ranks(4, save, str(tmp_path), "abbb")
    assert files_of(tmp_path, 2) == ["-n0001.safetensors", *(f"-r0000{end}" for end in REST_OF_FOUR)]
    on_ranks(4, save, str(tmp_path / "2"), "baba")
    assert files_of(tmp_path / "2", 2) == ["-n0000.safetensors", "-n0001.safetensors"]
    for folder in (tmp_path, tmp_path / "2"):
        assert on_ranks(4, load, str(folder)) == [(2, 2.0, 2.0 + rank) for rank in range(4)]


def save_on_twins(rank: int, size: int, folder: str) -> None:
    rank_group.procfs.read = lambda path: f"{path} of machine {rank // 2}"  # type: ignore[assignment]
    save(rank, size, folder, "aaaa")


def test_machines_of_the_same_name_write_a_file_each(tmp_path: Path) -> None:
    on_ranks(4, save_on_twins, str(tmp_path))
    assert files_of(tmp_path, 2) == ["-n0000.safetensors", "-n0001.safetensors"]
    assert on_ranks(4, load, str(tmp_path)) == [(2, 2.0, 2.0 + rank) for rank in range(4)]


REST_OF_FOUR = ("-of-0004.safetensors", ".json", ".local.safetensors")


def go_on(rank: int, size: int, folder: str) -> tuple[int, float]:
    live = state(-1.0)
    checkpointer = Checkpointer(folder, live)
    restored = checkpointer.restore()
    assert restored is not None
    for step in (3, 4):
        checkpointer.save(step)
    return restored.step, float(live["own"].state["mine"][-1])


def test_checkpoint_with_files_of_ranks_is_resumed_into_files_of_nodes(tmp_path: Path) -> None:
    on_ranks(2, save_a_file_a_rank, str(tmp_path))
    assert len(files_of(tmp_path, 2)) == 6
    assert json.loads((tmp_path / list_checkpoints(tmp_path)[-1].name).read_bytes())["head"]["format"] == 1
    assert on_ranks(2, go_on, str(tmp_path)) == [(2, 2.0), (2, 3.0)]
    assert files_of(tmp_path, 3) == files_of(tmp_path, 4) == ["-n0000.safetensors"]
    assert json.loads((tmp_path / list_checkpoints(tmp_path)[-1].name).read_bytes())["head"]["format"] == 3


def test_safetensors_opens_the_file_of_a_node(tmp_path: Path) -> None:
    from safetensors import safe_open

    on_ranks(2, save, str(tmp_path))
    manifest = manifest_of(tmp_path)
    (path,) = tmp_path.glob("step_00000002/*.safetensors")
    with safe_open(path, framework="pt") as file:
        assert sorted(file.keys()) == ["own-r0000", "own-r0001", "slice-r0000", "slice-r0001"]
        flat = torch.cat([file.get_tensor("slice-r0000"), file.get_tensor("slice-r0001")])
        own = bytes(file.get_tensor("own-r0001").numpy())
        assert file.metadata() == {"format": "clusterdp", "token": manifest.info.token, "world_size": "2"}
    (entry,) = [entry for entry in manifest.layout.entries if entry.name == "shared/tensor"]
    assert flat[entry.offset : entry.end].view(torch.float32).tolist() == [2.0] * 50_000
    assert json.loads(own[: own.index(b"}   ") + 1])["rank"] == "1"


class Counted(LocalStorage):
    """Notes the names that it syncs, and the first byte of each write."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.synced: list[str] = []
        self.written: list[int] = []

    def write_at(self, name: str, size: int, start: int, chunks: Iterable[memoryview]) -> None:
        self.written.append(start)
        super().write_at(name, size, start, chunks)

    def sync(self, name: str) -> None:
        self.synced.append(name)
        super().sync(name)


@pytest.mark.parametrize("read_back", [False, True])
def test_last_rank_of_a_node_syncs_the_file_and_reports_its_header(tmp_path: Path, read_back: bool) -> None:
    storage, reports = Counted(tmp_path), []
    part = StatePart.of({"x": {"tensor": torch.arange(9000.0)}})
    for rank in (2, 0, 1):
        ranks: Any = SimpleNamespace(rank=rank, size=3, node=4, beside=[0, 1, 2])
        writer = NodeWriter(Room(), storage, "step_00000001", "0123456789ab-0001", ranks)
        staged = writer.stage(StagingMemory(), part, StatePart.of({"own": {"rank": rank}}))
        reports.append(report := writer.write(staged, read_back=read_back))
        own = report[f"0123456789ab-0001-r000{rank}.json"].start
        assert (storage.written.count(own), storage.written[-1]) == (1, own), "its first byte comes last"
        assert len(storage.synced) == (len(reports) if read_back else rank == 1), "a save that is read back is synced"
    file = "0123456789ab-0001-n0004.safetensors"
    assert [file in report for report in reports] == [False, False, True]
    records = {name: record for report in reports for name, record in report.items()}
    assert {record.section.file for record in records.values() if record.section} == {file}
    covered = sum(record.size for record in records.values())
    assert covered == (tmp_path / "step_00000001" / file).stat().st_size, "each byte is in one section"


def save_unseen(rank: int, size: int, folder: str) -> str:
    NodeWriter._all_have_written = lambda *_: False  # type: ignore[method-assign]
    checkpointer = Checkpointer(folder, state(1.0))
    error = try_to_save(checkpointer, 1, beside=False)[1]
    until_clean()
    return error


def test_file_of_a_node_without_a_complete_sync_is_not_committed(tmp_path: Path) -> None:
    for error in on_ranks(2, save_unseen, str(tmp_path)):
        assert "n0000.safetensors: no rank of this node has found all bytes written" in error
    assert not [*tmp_path.iterdir()]


def save_large(rank: int, size: int, folder: str) -> None:
    live = state(0.0)
    checkpointer = Checkpointer(folder, live, keep_last=5)
    live["own"].state |= {"many": torch.zeros(20_000 * rank)}
    for step in (1, 2):
        checkpointer.save(step)
    live["own"].state |= {"many": torch.zeros(MOST_OWN)}
    checkpointer.save(3)
    live["own"].state |= {"words": "x" * (60_000 if rank else 1)}
    checkpointer.save(4)
    checkpointer.save(5)


def test_own_state_beyond_its_room_is_a_file_until_the_next_save(tmp_path: Path) -> None:
    on_ranks(2, save_large, str(tmp_path))
    node, local = "-n0000.safetensors", [f"-r000{rank}.local.safetensors" for rank in (0, 1)]
    assert files_of(tmp_path, 1) == [node, local[1]]
    assert files_of(tmp_path, 2) == [node]
    assert files_of(tmp_path, 3) == [node, *local]
    assert files_of(tmp_path, 4) == [node, local[0], "-r0001.json", local[1]]
    assert files_of(tmp_path, 5) == [node, *local]
    assert on_ranks(2, load, str(tmp_path)) == [(5, 0.0, 0.0)] * 2


def save_with_a_failure(rank: int, size: int, folder: str) -> str:
    logging.disable()
    storage = Faulty(folder)
    checkpointer = Checkpointer(storage, state(1.0))
    if rank == 1:
        storage.arm("write: in the middle", 0, 1, partial(fail_with, errno.EIO))
    error = try_to_save(checkpointer, 1, beside=True)[1]
    until_clean()
    for step in (2, 3):
        checkpointer.save(step)
    return error


def test_save_after_a_failure_has_a_file_for_each_rank(tmp_path: Path) -> None:
    for error in on_ranks(2, save_with_a_failure, str(tmp_path)):
        assert "n0000.safetensors: Input/output error" in error
    assert len(files_of(tmp_path, 2)) == 6
    assert files_of(tmp_path, 3) == ["-n0000.safetensors"]


@pytest.mark.parametrize(("kind", "shared"), [("ext4", True), ("nfs4", True), ("lustre", True), ("fuse.s3fs", False)])
def test_processes_write_one_file_together_except_on_fuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shared: bool
) -> None:
    monkeypatch.setattr(local, "mount_of", lambda folder: ("/", kind))
    assert LocalStorage(tmp_path).has_shared_files is shared


def test_write_at_keeps_the_bytes_and_size_of_other_writers(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for start, data in ((6, b"xyz"), (0, b"ab"), (4, b"c")):
        storage.write_at("file", 12, start, [memoryview(data)])
    storage.sync("file")
    assert storage.read("file") == b"ab\0\0c\0xyz\0\0\0"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        storage.write_at("link", 1, 0, [memoryview(b"x")])


def test_room_is_for_the_largest_own_state_and_each_ranks_pieces() -> None:
    assert Room.of([(8000, 0)] * 2) == Room(3 * HEADER, ())
    assert Room.of([(8000, 0), (67_000, 0)]) == Room(19 * HEADER, ())
    assert Room.of([(0, 0)] * 2).own == HEADER, "each rank has a byte that it writes last"
    assert Room.of([(2, 10), (2, 0)]) == Room(HEADER, (10, 0))


@pytest.mark.parametrize(("json", "local", "own"), [(5000, 3000, 8000), (5000, MOST_OWN, 5000), (MOST_OWN + 1, 0, 0)])
def test_own_state_beyond_a_megabyte_needs_no_room(json: int, local: int, own: int) -> None:
    staged = Staged(memoryview(bytes(10)), memoryview(bytes(local)), bytes(json), ())
    assert staged.needs == (own, 10)
    assert replace(staged, flat=FlatLayout.of({})).needs == (own, 0)


def move(one: Manifest, part: str, **to: Any) -> Manifest:
    """Changes the section of the first file whose name has this part."""
    name = next(name for name in one.files if part in name)
    section = one.files[name].section
    assert section is not None
    files = {**one.files, name: replace(one.files[name], section=replace(section, **to))}
    return replace(one, files=files)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: move(one, "r0000-of", start=HEADER),
        lambda one: move(one, "r0001-of", start=1 << 40),
        lambda one: move(one, "r0001-of", start=-64),
        lambda one: move(one, "r0001.json", start=HEADER),
        lambda one: move(one, "n0000", start=64),
        lambda one: move(one, "n0000", node=1),
        lambda one: replace(one, files={name: of for name, of in one.files.items() if "-n0000" not in name}),
        lambda one: replace(one, files={**one.files, "n0000": FileRecord(0, (), Section(0, 0, "n0000", 1))}),
    ],
)
def test_manifest_with_impossible_sections_is_refused(tmp_path: Path, change: Callable[[Manifest], Manifest]) -> None:
    on_ranks(2, save, str(tmp_path), "", 1)
    one = manifest_of(tmp_path)
    assert decode(one.encode(), one.info.name) == one
    with pytest.raises(DamagedError):
        decode(change(one).encode(), one.info.name)


def test_verbs_read_files_of_nodes_and_name_a_damaged_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file

    on_ranks(2, save, str(tmp_path))
    assert main(["checkpoint", "verify", str(tmp_path)]) == 0
    assert main(["checkpoint", "diff", str(tmp_path), "1", "2"]) == 1
    assert main(["checkpoint", "export", f"{tmp_path}@2", str(tmp_path / "all.safetensors")]) == 0
    assert load_file(tmp_path / "all.safetensors")["shared.tensor"].tolist() == [2.0] * 50_000
    (path,) = tmp_path.glob("step_00000002/*.safetensors")
    data = bytearray(path.read_bytes())
    for at in (9, HEADER + 100, -5):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[len(data) + at + 1 if at < 0 else at + 1 :])
        capsys.readouterr()
        assert main(["checkpoint", "verify", str(tmp_path)]) == 1
        assert f"{path.name}: the checksum of bytes " in capsys.readouterr().out
    path.unlink()
    assert main(["checkpoint", "verify", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count(path.name) == 1


def test_error_of_a_cut_file_of_a_node_has_its_sizes(tmp_path: Path) -> None:
    on_ranks(2, save, str(tmp_path), "", 1)
    (path,) = tmp_path.glob("step_00000001/*.safetensors")
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(CheckpointError, match=f"{path.name}: it has {size - 1} bytes instead of {size}"):
        Checkpointer(tmp_path, {"shared": Counter(), "own": Counter(per_rank=True)}).restore()
