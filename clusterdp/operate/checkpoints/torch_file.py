"""A file for `torch.load(..., weights_only=True)`, written tensor by tensor and without torch.

torch.save would want the whole state in memory. Its format is a zip archive that stores the bytes of each storage as
they are, beside a pickle of what refers to them. torch reads its old files for ever; the tests hold this one to that.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from clusterdp.checkpoint.format.layout import Entry, align
from clusterdp.checkpoint.format.payload import Payload
from clusterdp.operate.checkpoints.torch_pickle import Pickle

_HEADER, _LARGE = 30, 20  # bytes before a record's name, and after it if there may be 4 GiB (APPNOTE.TXT, 4.3.7, 4.5.3)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same checkpoint gives the same file


def write(file: BinaryIO, state: Any, payload: Payload, advance: Callable[[int], None]) -> None:
    """`state` is a skeleton. numpy arrays become tensors: the restricted reader takes no arrays."""
    pickled = Pickle({entry.name: entry for entry in payload.entries})
    pickled.add(state)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "data.pkl", [pickled.finish()])
        _add(archive, "byteorder", [b"little"])
        for entry in payload.entries:
            if entry.name in pickled.keys:
                _add(archive, f"data/{pickled.keys[entry.name]}", _read(payload, entry, advance), entry.nbytes)
        _add(archive, "version", [b"3\n"])


def _read(payload: Payload, entry: Entry, advance: Callable[[int], None]) -> Iterable[memoryview]:
    for piece in payload.read(entry):
        yield piece
        advance(len(piece))


def _add(archive: zipfile.ZipFile, name: str, pieces: Iterable[bytes | memoryview], nbytes: int = 0) -> None:
    """A record whose data is aligned, so that torch.load(mmap=True) can use it where it lies."""
    info = zipfile.ZipInfo(f"archive/{name}", _EPOCH)
    large = nbytes > zipfile.ZIP64_LIMIT
    assert archive.fp is not None
    data_at = archive.fp.tell() + _HEADER + len(info.filename) + 4 + (_LARGE if large else 0)
    padding = align(data_at) - data_at
    info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding  # as torch pads
    with archive.open(info, "w", force_zip64=large) as record:
        for piece in pieces:
            record.write(piece)
