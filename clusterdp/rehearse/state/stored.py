"""Stored: a tensor that is still in its file. The tensor's bytes are read on demand, and not kept in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterdp.errors import CheckpointError

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


def of_array(array: NDArray[Any], must_be_unchanged: Callable[[], None] = lambda: None) -> Stored:
    """Returns a Stored for a numpy array of any order."""

    def read() -> Bytes:
        must_be_unchanged()
        return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)

    return Stored(array.dtype.name, array.shape, read)


def mapped(path: Path) -> Callable[[], None]:
    """Returns a function that raises CheckpointError if the file has changed since this call. To read a mapped file
    that was cut would end this process."""

    def stamp() -> tuple[int, int, int] | None:
        try:
            about = path.stat()
        except OSError:
            return None
        return about.st_ino, about.st_size, about.st_mtime_ns

    def must_be_unchanged() -> None:
        if stamp() != before:
            raise CheckpointError(f"{path}: it was changed after it was read. Keep the files of each run apart.")

    before = stamp()
    return must_be_unchanged


def unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be read: {error.strerror or error}. Look at the path.")
