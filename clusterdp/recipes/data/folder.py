"""One's own images: PATH/train/CLASS/*.png (or .jpg, ...), and PATH/test likewise. Needs Pillow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset

from clusterdp.errors import ConfigError

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class ImageFolder(Dataset[tuple[torch.Tensor, int]]):
    """Each image is read when it is asked for, and brought to `size` x `size` pixels of three colours, as bytes."""

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
        except OSError as error:  # Pillow's own errors are OSErrors
            raise ConfigError(f"{file}: {error}. Replace or remove the file.") from None
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1), label


def _opener() -> Callable[[Path], Any]:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("data: folder: reading images needs Pillow. pip install 'clusterdp[images]'.") from None
    return Image.open
