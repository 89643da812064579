"""Files beside the end state that two undisturbed runs left alike, and that a drill's run did not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from clusterdp.errors import CheckpointError
from clusterdp.rehearse.state import compare, of_files

LOGS = (".log", ".txt", ".csv", ".tsv", ".jsonl")
STATES = (".pt", ".pth", ".ckpt", ".safetensors", ".npz", ".npy")
LARGEST = 1 << 26  # bytes: larger ones are not read


def other_files(first: Path, second: Path, got: Path, compared: Sequence[str]) -> list[str]:
    """Words on each: `ema.pt differs in 2 values`, `metrics.csv lacks 10 lines`, `a.pt is missing`. first, second, got:
    the working folders. compared: files of the end state."""
    said = []
    for name in _names(first):
        if name in compared or not (second / name).is_file():
            continue
        with suppress(OSError, CheckpointError):
            if (
                words := _of_log(first, second, got, name)
                if name.endswith(LOGS)
                else _of_state(first, second, got, name)
            ):
                said.append(words)
    return said


def _names(folder: Path) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith((".", "__")))
        for name in sorted(names):
            path = Path(root, name)
            if name.endswith((*LOGS, *STATES)) and path.stat().st_size <= LARGEST:
                yield str(path.relative_to(folder))


def _of_state(first: Path, second: Path, got: Path, name: str) -> str:
    expected = of_files(first, [name])
    if compare(expected, of_files(second, [name])):
        return ""
    if not (got / name).is_file():
        return f"{name} is missing"
    values = len(compare(expected, of_files(got, [name])))
    return f"{name} differs in {values} value{'s' if values > 1 else ''}" if values else ""


def _of_log(first: Path, second: Path, got: Path, name: str) -> str:
    """Lines that both undisturbed runs have. Those that are there twice after a resume are usual."""
    lines = set((first / name).read_bytes().splitlines()) & set((second / name).read_bytes().splitlines())
    there = set((got / name).read_bytes().splitlines()) if (got / name).is_file() else set()
    lost = len(lines - there)
    return f"{name} lacks {lost} line{'s' if lost > 1 else ''}" if lost else ""
