"""MNIST, Fashion-MNIST and their like: idx files, as published or unpacked.

Two zero bytes, the type (8 is a byte), the number of dimensions; each dimension as a big-endian uint32; the values.
http://yann.lecun.com/exdb/mnist
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import torch

from clusterdp.errors import ConfigError

UNSIGNED_BYTE = 8


def read_idx(file: Path) -> torch.Tensor:
    """Unsigned bytes, in the shape that the file names. ConfigError if it is no such file, whole and no longer."""
    try:
        data = file.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{file}: {getattr(error, 'strerror', None) or error}. Fetch the file again.") from None
    if len(data) < 4 or data[:2] != b"\0\0":
        raise ConfigError(
            f"{file}: it begins with {data[:4].hex(' ') or 'nothing'}, unlike an idx file. Give the original."
        )
    kind, dimensions = data[2], data[3]
    start = 4 + 4 * dimensions
    if kind != UNSIGNED_BYTE or not dimensions:
        raise ConfigError(f"{file}: {dimensions} dimensions of type 0x{kind:02x}. Give one of bytes (0x08).")
    shape = struct.unpack(f">{dimensions}I", data[4:start]) if len(data) >= start else (0,)
    wanted = start + torch.Size(shape).numel()
    if len(data) != wanted or not wanted > start:
        raise ConfigError(f"{file}: {len(data)} bytes, {wanted} by its header. Fetch the file again.")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).reshape(shape)


def read_pair(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(images, labels). part: train, or t10k for those held out."""
    images, labels = read_idx(_find(folder, f"{part}-images", 3)), read_idx(_find(folder, f"{part}-labels", 1))
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise ConfigError(
            f"{folder}: {part}: images {tuple(images.shape)} and labels {tuple(labels.shape)} do not belong together. "
            "Put the files of one data set there."
        )
    return images, labels


def _find(folder: Path, name: str, dimensions: int) -> Path:
    """As published (train-images-idx3-ubyte.gz), unpacked, or with the dot that some unpack it to."""
    kind = f"idx{dimensions}-ubyte"
    files = [folder / f"{name}{mark}{kind}{end}" for mark in "-." for end in ("", ".gz")]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise ConfigError(f"{folder}: there is no {name}-{kind}, nor with .gz. Give the folder of the original files.")
    return found
