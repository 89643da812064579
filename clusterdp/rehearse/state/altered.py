"""alter(): gives tensors in a checkpoint other values, in place. A program that reads them ends in another state."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterdp.rehearse.state import torch_zip
from clusterdp.rehearse.state.files import read_safetensors
from clusterdp.rehearse.state.flatten import leaves_of
from clusterdp.rehearse.state.stored import Bytes, Stored, read_range

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


def alter(path: Path, keys: Collection[str]) -> int:
    """How many of these tensors it has altered. Only those of numpy's own types can be, in files of torch and of
    safetensors. CheckpointError where it cannot be read."""
    places: list[tuple[int, int]] = []

    def read(file: Path, start: int, size: int) -> Bytes:
        places.append((start, size))
        return read_range(file, start, size)

    if path.suffix == ".safetensors":
        leaves = leaves_of(read_safetensors(path, read), path.name)
    else:
        tree, plain = torch_zip.read(path, read)
        leaves = leaves_of(tree, path.name, "", plain)
    count = 0
    for key in keys:
        leaf = leaves.get(key)
        if leaf and leaf.stored and leaf.kind == "tensor" and leaf.dtype in (*FLOATS, *INTEGERS):
            places.clear()
            count += _write(path, leaf.stored, places)
    return count


def _write(path: Path, stored: Stored, places: list[tuple[int, int]]) -> bool:
    """Whether it could be written: a tensor that its storage has in one piece. places: filled as that is read."""
    data = stored.read()
    if len(places) != 1 or places[0][1] != data.nbytes:
        return False
    with path.open("r+b") as file:
        file.seek(places[0][0])
        file.write(_others(data, stored.dtype).tobytes())
    return True


def _others(data: Bytes, dtype: str) -> NDArray[Any]:
    """Of the same size, and positive where these are: a second moment has a root."""
    values: NDArray[Any] = data.view(dtype)
    others: NDArray[Any] = values * 1.25 + 0.125 if dtype in FLOATS else values ^ np.array(1, dtype)
    return others.astype(dtype)
