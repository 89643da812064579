"""The bytes of a tensor, however many ranks wrote them and wherever the slices and blocks are cut."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from clusterdp.checkpoint import list_checkpoints
from clusterdp.checkpoint.format import layout, verified_reads
from clusterdp.checkpoint.format.checksum import checksums
from clusterdp.checkpoint.format.chunks import Chunk, Chunks
from clusterdp.checkpoint.format.layout import FlatLayout
from clusterdp.checkpoint.format.manifest import CheckpointInfo, FileRecord, Manifest
from clusterdp.checkpoint.format.payload import Payload, own_payload, shared_payload, whole
from clusterdp.checkpoint.format.read_targets import ReadTarget
from clusterdp.checkpoint.state.tree import as_bytes, memory_of
from clusterdp.errors import DamagedError
from clusterdp.storage import LocalStorage

SHAPES = {"empty": (0, 3), "one": (), "small": (17,), "middle": (300_000,), "large": (5_000_000,), "last": (3,)}
RANKS = 3  # their cuts run through `large`


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.rand(shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As three ranks leave it, without three processes."""
    tensors = {f"x/{name}": tensor for name, tensor in state().items()}
    plan = FlatLayout.of({name: ("float32", tuple(tensor.shape)) for name, tensor in tensors.items()})
    flat = torch.zeros(plan.total, dtype=torch.uint8)
    for entry in plan.entries:
        flat[entry.offset : entry.end] = as_bytes(tensors[entry.name])
    token, files = "0123456789ab-0001", {}
    for rank in range(RANKS):
        start, stop = plan.span(rank, RANKS)
        files[layout.slice_name(token, rank, RANKS)] = sealed(flat[start:stop])
        mine = FlatLayout.of({"objects/own/mine": ("float32", (3,))})
        files[layout.local_name(token, rank)] = sealed(
            torch.cat([as_bytes(torch.full((3,), float(rank))), torch.zeros(52, dtype=torch.uint8)])
        )
        content = {"state": {"objects": {"own": {"mine": {"$tensor": "objects/own/mine"}}}}, "index": mine.to_json()}
        files[layout.rank_name(token, rank)] = json.dumps(content).encode()
    return written(tmp_path_factory.mktemp("payload"), token, files, plan)


def written(folder: Path, token: str, files: dict[str, bytes], plan: FlatLayout, chunks: Chunks | None = None) -> Path:
    info = CheckpointInfo(1, token, token, 1, 0.0, RANKS, sum(map(len, files.values())), "")
    records = {name: FileRecord(len(data), checksums(memoryview(data))) for name, data in files.items()}
    (folder / info.folder).mkdir()
    for name, data in files.items():
        (folder / info.folder / name).write_bytes(data)
    (folder / info.name).write_bytes(Manifest(info, records, plan, {}, {}, chunks).encode())
    return folder


def sealed(data: torch.Tensor) -> bytes:
    return layout.safetensors_header(data.numel(), {}) + bytes(memory_of(data.contiguous()))


def tensor(payload: Payload, name: str) -> torch.Tensor:
    (entry,) = [entry for entry in payload.entries if entry.name == name]
    data = whole(payload, entry)
    return torch.frombuffer(data, dtype=torch.float32) if data else torch.empty(0)


def test_payload_returns_each_tensor_in_any_order_of_access(folder: Path) -> None:
    storage = LocalStorage(folder)
    manifest = verified_reads.read_manifest(storage, list_checkpoints(folder)[0])
    expected = state()
    names = list(expected)
    with shared_payload(storage, manifest) as payload:
        for seed in range(4):
            random.Random(seed).shuffle(names)
            for name in names if seed else sorted(names):
                assert torch.equal(tensor(payload, f"x/{name}"), expected[name].flatten()), name


def test_own_payload_reads_the_tensors_of_each_rank(folder: Path) -> None:
    storage = LocalStorage(folder)
    manifest = verified_reads.read_manifest(storage, list_checkpoints(folder)[0])
    for rank in range(3):
        with own_payload(storage, manifest, rank) as (skeleton, payload):
            assert skeleton["objects"] == {"own": {"mine": {"$tensor": "objects/own/mine"}}}
            assert tensor(payload, "objects/own/mine").tolist() == [rank] * 3


def test_shared_payload_reads_each_block_range_only_once_in_entry_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(folder)
    manifest = verified_reads.read_manifest(storage, list_checkpoints(folder)[0])
    seen: list[tuple[str, int]] = []
    read = verified_reads.read_range

    def noted(storage: LocalStorage, run: verified_reads.BlockRange, target: ReadTarget) -> None:
        seen.append((run.name, run.first))
        read(storage, run, target)

    monkeypatch.setattr(verified_reads, "read_range", noted)
    with shared_payload(storage, manifest) as payload:
        for entry in payload.entries:
            whole(payload, entry)
    assert len(seen) > 5
    assert len(seen) == len(set(seen))


def test_payload_raises_damagederror_instead_of_returning_flipped_bits(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    storage = LocalStorage(tmp_path / "copy")
    manifest = verified_reads.read_manifest(storage, list_checkpoints(storage.root)[0])
    (path,) = storage.root.glob("step_*/*-r0001-of-0003.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with shared_payload(storage, manifest) as payload:
        assert torch.equal(tensor(payload, "x/one"), state()["one"].flatten())  # of another rank's file
        with pytest.raises(DamagedError, match=path.name):
            tensor(payload, "x/large")


def test_sharded_tensors_are_assembled_from_chunks_cut_in_any_dimension(tmp_path: Path) -> None:
    """Cut by rows, by columns, in both ways, in the middle, and not at all."""
    token, whole_ones = "0123456789ab-0001", {}
    cuts: dict[str, list[tuple[int, ...]]] = {  # (first, last) of each dimension
        "rows": [(0, 2, 0, 5), (2, 4, 0, 5), (4, 6, 0, 5)],
        "columns": [(0, 6, 0, 2), (0, 6, 2, 5)],
        "both": [(0, 3, 0, 2), (0, 3, 2, 5), (3, 6, 0, 2), (3, 6, 2, 5)],
        "middle": [(0, 2, 0, 1, 0, 700_000), (0, 2, 1, 3, 0, 700_000)],
        "one": [(0, 4)],
        "scalar": [()],
    }
    data = [bytearray(b"head") for _ in range(RANKS)]
    chunks: dict[str, tuple[Chunk, ...]] = {}
    for name, boxes in cuts.items():
        shape = tuple(max(box[2 * dim + 1] for box in boxes) for dim in range(len(boxes[0]) // 2))
        whole_ones[name] = torch.rand(shape)
        found = []
        for number, box in enumerate(boxes):
            rank = number % RANKS
            spans = [slice(box[i], box[i + 1]) for i in range(0, len(box), 2)]
            piece = whole_ones[name][tuple(spans)].contiguous()
            found.append(Chunk(rank, len(data[rank]), tuple(s.start for s in spans), tuple(piece.shape)))
            data[rank] += bytes(memory_of(as_bytes(piece)))
        chunks[name] = tuple(found)
    files = {layout.slice_name(token, rank, RANKS): bytes(data[rank]) for rank in range(RANKS)}
    files |= {layout.rank_name(token, rank): b"{}" for rank in range(RANKS)}
    plan = FlatLayout.of({name: ("float32", tuple(tensor.shape)) for name, tensor in whole_ones.items()})
    storage = LocalStorage(written(tmp_path, token, files, plan, chunks))
    manifest = verified_reads.read_manifest(storage, list_checkpoints(tmp_path)[0])
    with shared_payload(storage, manifest) as payload:
        for name, expected in whole_ones.items():
            assert torch.equal(tensor(payload, name), expected.flatten()), name
