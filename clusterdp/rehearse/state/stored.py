"""Stored: a tensor that is still in its file. The tensor's bytes are read on demand, and not kept in memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterdp.errors import CheckpointError
from clusterdp.plainfile import reading

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Stored:
    """A tensor whose bytes are read on demand."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Bytes]  # returns the elements' bytes in order; raises CheckpointError if the file is gone
    digest: int | None = None  # the digest of the elements' bytes, if known


def of_bytes(dtype: str, shape: tuple[int, ...], data: bytes | bytearray | memoryview) -> Stored:
    """Returns a Stored whose bytes are already in memory."""
    return Stored(dtype, shape, lambda: np.frombuffer(data, np.uint8))


def of_array(data: Any, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool = False) -> Stored:
    """Returns a Stored for a numpy array, from bytes in C order or in Fortran order.

    Raises ValueError if the number of bytes is wrong.
    """
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    return of_bytes(dtype.name, shape, np.ascontiguousarray(array, dtype.newbyteorder("=")).tobytes())


def read_range(path: Path, start: int, size: int) -> Bytes:
    """Returns `size` bytes of the file from `start` on. Raises CheckpointError if the file is too short."""
    try:
        with reading(path) as file:
            # Checks the size first, because a damaged file may ask for more memory than the machine has.
            if os.fstat(file.fileno()).st_size >= start + size:
                file.seek(start)
                data = np.fromfile(file, np.uint8, size)
                if len(data) == size:
                    return data
    except OSError as error:
        raise unreadable(path, error) from None
    raise CheckpointError(f"{path}: it is cut: bytes {start} to {start + size - 1} are not all there. Save it again.")


def unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be read: {error.strerror or error}. Look at the path.")


def strided(
    read: Callable[[int, int], Bytes], item: int, start: int, shape: Sequence[int], strides: Sequence[int], room: int
) -> Callable[[], Bytes]:
    """Returns a function that reads the elements of a view of a storage. The storage has `room` elements of `item`
    bytes. `start` and `strides` are in elements. Raises ValueError if the view is larger than the storage, or not
    inside it."""
    # A dimension with stride 0 (made by expand()) repeats one element, which is read only once.
    sizes = [1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True)]
    count = math.prod(sizes)
    if min([start, *shape, *strides, room]) < 0 or count > room:
        raise ValueError(
            f"a tensor of shape {list(shape)} and strides {list(strides)} is not a view of {room} elements"
        )
    if count == 0:
        return lambda: np.empty(0, np.uint8)
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if start + span > room:
        raise ValueError(f"a tensor of shape {list(shape)} reaches out of its storage of {room} elements")

    def look() -> Bytes:
        data = read(start * item, span * item)
        if span == count and _row_by_row(sizes, strides):
            return data
        elements = data.view(np.dtype((np.void, item)))
        view = np.lib.stride_tricks.as_strided(elements, sizes, [stride * item for stride in strides])
        return np.ascontiguousarray(view).reshape(-1).view(np.uint8)

    return look


def _row_by_row(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
