"""CIFAR-10, the binary version: records of one byte for the label, and 3 x 32 x 32 for the image.

The version for Python is a set of pickles, and reading a pickle runs what is in it. https://www.cs.toronto.edu/~kriz
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from clusterdp.errors import ConfigError

RECORD = 1 + 3 * 32 * 32
CLASSES = 10
TRAIN = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
TEST = ("test_batch.bin",)
ARCHIVE = "cifar-10-binary.tar.gz"


def read_batches(folder: Path, names: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """(images, labels), as bytes. folder: that of the files, or the one in which the archive was unpacked."""
    inner = folder / "cifar-10-batches-bin"
    parts = [_read(inner if inner.is_dir() else folder, name) for name in names]
    records = torch.cat(parts)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _read(folder: Path, name: str) -> torch.Tensor:
    file = folder / name
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        if (folder / file.stem).exists() or (folder / "cifar-10-batches-py").exists():
            raise ConfigError(f"{folder}: has CIFAR-10's pickles; they are not read. Unpack {ARCHIVE} there.") from None
        raise ConfigError(f"{file}: there is no such file. Unpack {ARCHIVE}, and give its folder.") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}. Unpack {ARCHIVE} again.") from None
    if not data or len(data) % RECORD:
        raise ConfigError(f"{file}: {len(data)} bytes are not whole records of {RECORD}. Unpack {ARCHIVE} again.")
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, RECORD)
    if (worst := int(records[:, 0].max())) >= CLASSES:
        raise ConfigError(f"{file}: it has a label {worst}; CIFAR-10's end at {CLASSES - 1}. Unpack {ARCHIVE} again.")
    return records
