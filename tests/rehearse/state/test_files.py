"""of_files(): each format, the patterns, and the errors that name the file."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from clusterdp.errors import CheckpointError, ConfigError
from clusterdp.rehearse.state import compare, of_files
from clusterdp.rundir import RunDir


def values(folder: Path, *patterns: str, run: RunDir | None = None) -> dict[str, object]:
    found = of_files(folder, patterns, run).values
    return {key: leaf.value if leaf.stored is None else leaf.stored.read().tolist() for key, leaf in found.items()}


def test_safetensors_and_numpy_files_are_read_with_their_values(tmp_path: Path) -> None:
    save_file({"a.w": torch.ones(2, dtype=torch.bfloat16), "b": torch.arange(2)}, tmp_path / "model.safetensors")
    assert values(tmp_path, "model.safetensors") == {"a.w": [128, 63] * 2, "b": [*[0] * 8, 1, *[0] * 7]}
    leaf = of_files(tmp_path, ["model.safetensors"]).values["a.w"]
    assert (leaf.dtype, leaf.shape, leaf.part) == ("bfloat16", (2,), "model")
    np.save(tmp_path / "x.npy", np.asfortranarray(np.array([[1, 2], [3, 4]], np.uint8)))
    assert values(tmp_path, "x.npy") == {"value": [1, 2, 3, 4]}
    np.savez_compressed(tmp_path / "x.npz", y=np.array([5], np.uint8))
    assert values(tmp_path, "x.npz") == {"y": [5]}


def test_json_lines_keep_the_last_record_of_each_step(tmp_path: Path) -> None:
    first = '{"step": 1, "loss": 5}\n{"step": 2, "loss": 4}\n{"step": 1, "val_loss": 3}\n{"step": 2, "lo\n'
    (tmp_path / "metrics.jsonl").write_text(first + '{"step": 2, "loss": 2}\n')
    assert values(tmp_path, "metrics.jsonl") == {"step 1.loss": 5, "step 1.val_loss": 3, "step 2.loss": 2}
    (tmp_path / "x.jsonl").write_text("[1]\n2\n")
    assert values(tmp_path, "x.jsonl") == {"0.0": 1, "1": 2}


def test_text_files_are_read_by_line_and_bin_files_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("a\nb 2026-01-01 10:00:00\n")
    assert values(tmp_path, "out.txt") == {"line 1": "a", "line 2": "b 2026-01-01 10:00:00"}
    (tmp_path / "tokens.bin").write_bytes(b"\x01\x00\x02\x00")
    assert values(tmp_path, "tokens.bin") == {"value": [1, 0, 2, 0]}


def test_keys_include_the_file_name_if_a_pattern_may_match_several(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"out/{name}.json").write_text(json.dumps({"loss": name}))
    assert values(tmp_path, "out/a.json") == {"loss": "a"}
    both = {"out/a.json:loss": "a", "out/b.json:loss": "b"}
    for patterns in (["out/*.json"], ["out"], ["out/a.json", str(tmp_path / "out/b.json")], ["*/?.json"]):
        assert values(tmp_path, *patterns) == both
    (tmp_path / "out/b.json").unlink()
    one = of_files(tmp_path, ["out/*.json"])
    assert (set(one.values), one.source) == ({"out/a.json:loss"}, "out/a.json")
    assert of_files(tmp_path, ["out/a.json", "none/*"]).unmatched == ("none/*",)
    assert of_files(tmp_path, ["none"]).source == "no file"


def test_files_in_timestamped_folders_have_equal_keys(tmp_path: Path) -> None:
    for name in ("2026-11-23_10-39-46", "2026-11-24_11-00-00"):
        (tmp_path / name / "runs" / name).mkdir(parents=True)
        (tmp_path / name / "runs" / name / "last.json").write_text('{"loss": 1}')
    a, b = (of_files(tmp_path / name, ["runs/*/last.json"]) for name in sorted(os.listdir(tmp_path)))
    assert set(a.values) == {"runs/<...>/last.json:loss"}
    assert compare(a, b) == []


def test_newest_pattern_reads_only_the_last_modified_file(tmp_path: Path) -> None:
    for number, written in ((7, 200), (10, 100)):
        path = tmp_path / f"version_{number}/m.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"loss": number}))
        os.utime(path, (written, written))
    assert values(tmp_path, "newest:version_*/m.json") == {"newest:version_*/m.json:loss": 7}


def test_logs_pattern_takes_the_last_match_in_the_logs_of_rank_0(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for name, text in (("9.0", "val loss 3.0\n"), ("10.0", "val loss 2.5\nval loss 1.5 acc nan\n"), ("10.1", "")):
        run.attempt(name).logs.mkdir(parents=True)
        run.attempt(name).rank_log(0).write_text(text)
    assert values(tmp_path, r"logs:val loss (\S+)", run=run) == {r"logs:val loss (\S+)": 1.5}
    assert values(tmp_path, r"logs:val (?P<what>\w+) (?P<loss>\S+)", run=run) == {"logs:what": "loss", "logs:loss": 1.5}
    assert values(tmp_path, r"logs:^val \w+", run=run) == {r"logs:^val \w+": "val loss"}
    assert of_files(tmp_path, [r"logs:val loss (\S+)"], run).values[r"logs:val loss (\S+)"].part == "metrics"
    assert of_files(tmp_path, ["logs:none"], run).unmatched == ("logs:none",)
    with pytest.raises(ConfigError, match=r"rehearse\.compare: 'logs:\('"):
        of_files(tmp_path, ["logs:("], run)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.safetensors", b"\xff" * 20), ("a.safetensors", b"\x02" + b"\0" * 7 + b"[]"), ("a.npy", b"\x93NUMPY\x01"),
        ("a.npy", b""), ("a.npz", b"PK\x03\x04"), ("a.json", b"{"), ("a.json", b"[" * 100_000), ("a.jsonl", b"{\n"),
        ("a.pt", b"text"), ("a.ckpt", b"PK\x03\x04 and so on"), ("a.bin", b"\x80\x02"),
    ],
)  # fmt: skip
def test_damaged_file_is_an_error_with_its_name(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name}: "):
        of_files(tmp_path, [name])


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "pickle.npy"])
def test_objects_in_numpy_files_are_refused_and_not_unpickled(name: str, tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> object:
            return open, (str(tmp_path / "ran"), "w")

    array = np.array([Hostile()], object)
    if name == "pickle.npy":
        (tmp_path / name).write_bytes(pickle.dumps(Hostile()))
    else:
        np.save(tmp_path / name, array) if name == "a.npy" else np.savez(tmp_path / name, x=array)
    with pytest.raises(CheckpointError, match=rf"{name}: "):
        of_files(tmp_path, [name])
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.npy", "a.npz", "a.json", "a.txt"])
def test_named_pipe_is_refused_without_waiting_for_a_writer(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name}: "):
        of_files(tmp_path, [name])


def test_truncated_safetensors_and_numpy_files_are_errors_with_their_name(tmp_path: Path) -> None:
    save_file({"w": torch.ones(100)}, tmp_path / "a.safetensors")
    np.save(tmp_path / "a.npy", np.ones(100))
    for path in sorted(tmp_path.iterdir()):
        path.write_bytes(path.read_bytes()[:-8])
        with pytest.raises(CheckpointError, match=path.name):
            of_files(tmp_path, [path.name])
