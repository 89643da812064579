"""Files of torch.save() and plain pickles as trees, without torch and without running anything of theirs."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from clusterdp.errors import CheckpointError
from clusterdp.plainfile import reading
from clusterdp.rehearse.state import inert_pickle
from clusterdp.rehearse.state.inert_pickle import PlainValues
from clusterdp.rehearse.state.stored import Bytes, ReadRange, read_range, unreadable

ZIP = b"PK\x03\x04"
LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")  # how files began before torch 1.6


def read(path: Path, read_bytes: ReadRange = read_range) -> tuple[Any, PlainValues]:
    """The tree, and what gives its values. read_bytes: of tensors. Raises CheckpointError, which names the file."""
    try:
        with reading(path) as file:
            begin = file.read(len(LEGACY))
        if begin.startswith(ZIP):
            return _zip(path, read_bytes)
        if begin == LEGACY:
            raise CheckpointError(
                f"{path}: torch.save() wrote it in the format of before torch 1.6, which is not compared. "
                "Save it without _use_new_zipfile_serialization=False."
            )
        return inert_pickle.load(path.read_bytes()), PlainValues()
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: no file of torch.save(), or a damaged one: {error}. Save it again.") from None


def _zip(path: Path, read_bytes: ReadRange) -> tuple[Any, PlainValues]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        if "data.pkl" not in members:
            raise ValueError("it has no data.pkl")
        if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
            raise ValueError("a machine of the other byte order wrote it")
        tree = inert_pickle.load(archive.read(members["data.pkl"]))

    def storage(key: str) -> tuple[Callable[[int, int], Bytes], int]:
        info = members[f"data/{key}"]
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{info.filename} is compressed, and torch.save() compresses nothing")
        # What follows the member's own header, whose length the archive's list does not say.
        header = read_range(path, info.header_offset, 30)
        begin = info.header_offset + 30 + sum(int.from_bytes(header[i : i + 2].tobytes(), "little") for i in (26, 28))
        return partial(_read, read_bytes, path, begin), info.file_size

    return tree, PlainValues(storage)


def _read(read_bytes: ReadRange, path: Path, begin: int, start: int, size: int) -> Bytes:
    return read_bytes(path, begin + start, size)
