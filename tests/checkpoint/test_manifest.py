"""The manifest is the checkpoint: it is believed only if every byte of it is as it was written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.checkpoint.format.layout import HEADER, FlatLayout
from clusterdp.checkpoint.format.manifest import (
    CheckpointInfo,
    FileRecord,
    Manifest,
    decode,
    decode_head,
    expected_files,
    list_checkpoints,
    scan,
)
from clusterdp.errors import DamagedError
from clusterdp.storage import LocalStorage

TOKEN = "0123456789ab-0001"


def manifest(step: int = 3, token: str = TOKEN, order: int = 1, world_size: int = 2) -> Manifest:
    info = CheckpointInfo(step, token, token, order, 1700000000.25, world_size, 9999, "77.0")
    layout = FlatLayout.of({"model/w": ("float32", (40, 5)), "model/é": ("bool", ())})
    files = {}
    for rank, (slice_file, rank_file) in enumerate(expected_files(info)):
        start, stop = layout.span(rank, world_size)
        files[slice_file] = FileRecord(HEADER + stop - start, (rank + 7,))
        files[rank_file] = FileRecord(10, (0xDEADBEEF,))
    return Manifest(info, files, layout, {"model": {"w": {"$tensor": "model/w"}}}, {"epoch": 1})


def write(folder: Path, one: Manifest) -> Path:
    path = folder / one.info.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(one.encode())
    return path


def test_manifest_encodes_to_plain_json_and_decodes_unchanged() -> None:
    one = manifest()
    assert decode(one.encode(), one.info.name) == one
    assert decode_head(one.encode()[:1000], one.info.name) == one.info
    assert json.loads(one.encode())["head"]["step"] == 3
    named = replace(one, info=replace(one.info, phase="fold1"))
    assert decode(named.encode(), named.info.name) == named


def test_manifest_with_any_changed_byte_is_refused() -> None:
    one = manifest()
    data = one.encode()
    for position in range(len(data)):
        for bit in (0, 5):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(DamagedError, match=one.info.name):
                decode(bytes(damaged), one.info.name)


def test_truncated_or_extended_manifest_is_refused() -> None:
    one = manifest()
    data = one.encode()
    for length in range(len(data)):
        with pytest.raises(DamagedError):
            decode(data[:length], one.info.name)
    with pytest.raises(DamagedError):
        decode(data + b"\n", one.info.name)


def test_manifest_under_a_wrong_file_name_is_refused() -> None:
    one = manifest()
    for name in (f"step_00000004/MANIFEST.{TOKEN}.json", "step_00000003/MANIFEST.0123456789ab-0002.json"):
        with pytest.raises(DamagedError, match="it is the manifest of step_00000003"):
            decode(one.encode(), name)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, files={}),
        lambda one: replace(one, files={**one.files, "../../etc/passwd": FileRecord(1, (1,))}),
        lambda one: replace(one, files={**one.files, "ab-r0000.json": FileRecord(1, (1,))}),
        lambda one: replace(one, files={name: replace(record, size=1 << 40) for name, record in one.files.items()}),
        lambda one: replace(one, layout=FlatLayout.of({"huge": ("float32", (1 << 40,))})),
        lambda one: replace(one, info=replace(one.info, data="../0123456789ab-0001")),
        lambda one: replace(one, info=replace(one.info, world_size=10**9)),
        lambda one: replace(one, info=replace(one.info, world_size=0)),
        lambda one: replace(one, info=replace(one.info, phase="../b")),
        lambda one: replace(one, info=replace(one.info, phase=3)),
    ],
)
def test_intact_manifest_with_impossible_content_is_refused(change) -> None:
    one = change(manifest())
    with pytest.raises(DamagedError):
        decode(one.encode(), one.info.name)


def test_scan_lists_checkpoints_in_commit_order_and_names_damaged_manifests(tmp_path: Path) -> None:
    write(tmp_path, manifest(step=30, token="aaaaaaaaaaaa-0001", order=1))
    write(tmp_path, manifest(step=10, token="bbbbbbbbbbbb-0001", order=2))
    write(tmp_path, manifest(step=10, token="bbbbbbbbbbbb-0002", order=3))
    late = write(tmp_path, manifest(step=40, token="aaaaaaaaaaaa-0002", order=4))
    late.write_bytes(late.read_bytes().replace(b'"order":4', b'"order":0'))
    (tmp_path / "step_00000050").mkdir()
    (tmp_path / "step_00000050" / "aaaaaaaaaaaa-0003-r0000.json").write_text("torn")
    (tmp_path / "notes.txt").write_text("mine")
    good, bad = scan(LocalStorage(tmp_path))
    assert [info.token for info in good] == ["aaaaaaaaaaaa-0001", "bbbbbbbbbbbb-0001", "bbbbbbbbbbbb-0002"]
    assert [damage.name for damage in bad] == ["step_00000040/MANIFEST.aaaaaaaaaaaa-0002.json"]
    assert list_checkpoints(tmp_path) == good


def test_list_checkpoints_of_a_missing_folder_is_empty(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path / "none") == []
