"""LeNet and its input: bytes of 32 x 32 pixels, read from the files of the data set that the config names, in the form
in which their authors publish them. No file is downloaded, and no pickle is read."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from clusterdp.errors import ConfigError

SIZE = 32
KINDS = ("digits", "mnist", "cifar10", "folder")
RECORD = 1 + 3 * 32 * 32
CLASSES = 10
TRAIN = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
TEST = ("test_batch.bin",)
ARCHIVE = "cifar-10-binary.tar.gz"
ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
UNSIGNED_BYTE = 8


@dataclass(frozen=True)
class Images:
    train: TensorDataset | ImageFolder  # pairs (image, label): image as uint8 of channels x 32 x 32
    test: TensorDataset | ImageFolder
    channels: int
    classes: int


def load(kind: str, path: str | Path | None = None) -> Images:
    """Returns the data set that `kind` names. kind: digits, which needs no files; or mnist, cifar10 or folder, with
    files at `path`."""
    if kind not in KINDS:
        raise ConfigError(f"params.data: {kind!r} is not known. Use one of {', '.join(KINDS)}.")
    if kind == "digits":
        return _digits()
    if path is None:
        raise ConfigError(f"params.path: {kind} needs the folder of its files. Add params.path=FOLDER.")
    folder = Path(path).expanduser()
    if kind == "folder":
        train, test = ImageFolder(folder / "train", SIZE), ImageFolder(folder / "test", SIZE)
        if train.classes != test.classes:
            odd = sorted(set(train.classes) ^ set(test.classes))[0]
            raise ConfigError(f"{folder}: the class {odd} is only in one of train and test. Give both the same.")
        return Images(train, test, 3, len(train.classes))
    if kind == "cifar10":
        pairs = [read_batches(folder, names) for names in (TRAIN, TEST)]
        return Images(_set(*pairs[0]), _set(*pairs[1]), 3, CLASSES)
    sets = [_framed(*read_pair(folder, part)) for part in ("train", "t10k")]
    return Images(sets[0], sets[1], 1, 10)


def _framed(images: torch.Tensor, labels: torch.Tensor) -> TensorDataset:
    """Returns MNIST's 28 x 28 pixels in the middle of a dark frame, as LeCun did."""
    sides = [(SIZE - images.shape[2]) // 2, (SIZE - images.shape[1]) // 2]
    if images.shape[1:] != (SIZE - 2 * sides[1], SIZE - 2 * sides[0]) or min(sides) < 0 or int(labels.max()) > 9:
        raise ConfigError(
            f"mnist: images of {tuple(images.shape[1:])} pixels and labels up to {int(labels.max())}. "
            "LeNet takes even sizes up to 32, and ten classes."
        )
    return _set(functional.pad(images, (sides[0], sides[0], sides[1], sides[1]))[:, None], labels)


def _digits() -> Images:
    """Returns scikit-learn's images of 8 x 8 pixels with values of 0 to 16, enlarged four times in width and height."""
    from clusterdp.recipes.digits import load_digits

    parts = []
    for part in load_digits():
        images, labels = part.tensors
        large = functional.interpolate(images, size=(SIZE, SIZE), mode="bilinear")
        parts.append(_set((large * 255).round().to(torch.uint8), labels))
    return Images(parts[0], parts[1], 1, 10)


def _set(images: torch.Tensor, labels: torch.Tensor) -> TensorDataset:
    return TensorDataset(images, labels.long())


class LeNet(nn.Module):
    """LeCun et al., 1998, with ReLU and max-pooling. The input is bytes, which take a quarter of the space of
    floats."""

    def __init__(self, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images.float() / 255)
        return logits


def read_batches(folder: Path, names: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (images, labels) of CIFAR-10's binary version. A record has one byte for the label, and 3 x 32 x 32 for
    the image. The version for Python is a set of pickles, and reading a pickle runs code in it.

    folder: the folder that contains the files, or the unpacked archive. https://www.cs.toronto.edu/~kriz
    """
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


class ImageFolder(Dataset[tuple[torch.Tensor, int]]):
    """Images that are read on demand, and resized to `size` x `size` pixels of three colours, as bytes."""

    def __init__(self, folder: Path, size: int):
        self.size = size
        self.classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
        self.files = [
            (file, label)
            for label, name in enumerate(self.classes)
            for file in sorted((folder / name).rglob("*"))
            if file.suffix.lower() in ENDINGS
        ]
        if not self.files:
            raise ConfigError(f"{folder}: there are no images in it. Put them there, in a folder for each class.")
        self._open = _opener()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        file, label = self.files[index]
        try:
            with self._open(file) as picture:
                pixels = numpy.asarray(picture.convert("RGB").resize((self.size, self.size)))
        except OSError as error:  # Pillow raises OSErrors
            raise ConfigError(f"{file}: {error}. Replace or remove the file.") from None
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), label


def _opener() -> Callable[[Path], Any]:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("data: folder: reading images needs Pillow. pip install 'clusterdp[images]'.") from None
    return Image.open


def read_idx(file: Path) -> torch.Tensor:
    """Returns an array of unsigned bytes, with the shape that the file names (http://yann.lecun.com/exdb/mnist). The
    file has two zero bytes, the type (8 is a byte), the number of dimensions, each dimension as a big-endian uint32,
    and the values. Raises ConfigError if the file has another format, or is too short or too long."""
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
    """Returns (images, labels) of MNIST. part: train, or t10k for the held-out images."""
    images, labels = read_idx(_find(folder, f"{part}-images", 3)), read_idx(_find(folder, f"{part}-labels", 1))
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise ConfigError(
            f"{folder}: {part}: images {tuple(images.shape)} and labels {tuple(labels.shape)} do not belong together. "
            "Put the files of one data set there."
        )
    return images, labels


def _find(folder: Path, name: str, dimensions: int) -> Path:
    """Returns the path of a file, which may have its published name (train-images-idx3-ubyte.gz), be unpacked, or have
    a dot in its name, as some tools unpack it."""
    kind = f"idx{dimensions}-ubyte"
    files = [folder / f"{name}{mark}{kind}{end}" for mark in "-." for end in ("", ".gz")]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise ConfigError(f"{folder}: there is no {name}-{kind}, nor with .gz. Give the folder of the original files.")
    return found
