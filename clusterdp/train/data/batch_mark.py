"""The mark of a batch: a checksum of a few values, which shows on resume whether the batch that is read again is the
same.

A mark costs some 20 µs. Therefore the mark is computed only at a save, if torch can show that the batch has not been
written to. A mark leaves out values that are expensive to read, such as those on a GPU.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch

from clusterdp.checkpoint.state.tree import as_bytes, memory_of

PARTS = 16  # parts of a batch that are read
VALUES = 64  # values of a part that are read
_SCALARS = (bool, int, float, str, bytes)


class LastBatch:
    """The batch that the program is using, and its mark."""

    def __init__(self, batch: Any):
        self._batch, self._versions = batch, _versions(batch)
        self._mark = mark_of(batch) if self._versions is None else None

    @property
    def mark(self) -> int | None:
        """The mark of the batch; None if a tensor of the batch has been changed in place."""
        if self._versions is None:
            return self._mark
        return mark_of(self._batch) if _versions(self._batch) == self._versions else None


def _versions(batch: Any) -> list[int] | None:
    """Returns torch's count of writes to each tensor; None for a tensor without a count, and for other values."""
    parts = batch if type(batch) in (tuple, list) else batch.values() if type(batch) is dict else (batch,)
    try:
        return [part._version for part in parts]
    except (AttributeError, RuntimeError):
        return None


def mark_of(batch: Any) -> int:
    found = 0
    for part in islice(_parts(batch), PARTS):
        found = zlib.crc32(part, found)
    return found


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" and value.layout == torch.strided and not value.is_quantized and value.numel():
            yield memory_of(as_bytes(_some_of(value.detach())))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _parts(item)
    elif isinstance(value, (list, tuple)):
        if len(value) > PARTS and isinstance(value[0], _SCALARS):
            yield repr(value[:VALUES]).encode(errors="replace")
        else:
            for item in value:
                yield from _parts(item)
    elif isinstance(value, _SCALARS):
        yield repr(value[:VALUES] if isinstance(value, (str, bytes)) else value).encode(errors="replace")
    elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.ndarray):
        yield value.flat[:: max(1, value.size // VALUES)][:VALUES].tobytes() if value.dtype.kind in "biufc" else b""


def _some_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns values from all parts of the tensor. If the tensor is not contiguous, returns one value per sample."""
    if tensor.is_contiguous():
        return tensor.view(-1)[:: max(1, tensor.numel() // VALUES)][:VALUES]
    for size in reversed(tensor.shape[1:]):
        tensor = tensor.select(-1, size // 2)
    return tensor[:VALUES]
