"""Images as LeNet takes them: bytes of 32 x 32 pixels, of whichever set the config names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.recipes.data import cifar, idx
from clusterdp.recipes.data.folder import ImageFolder

SIZE = 32
KINDS = ("digits", "mnist", "cifar10", "folder")


@dataclass(frozen=True)
class Images:
    train: TensorDataset | ImageFolder  # (uint8 of channels x 32 x 32, label)
    test: TensorDataset | ImageFolder
    channels: int
    classes: int


def load(kind: str, path: str | Path | None = None) -> Images:
    """kind: digits, which is at hand; or mnist, cifar10 or folder, whose files lie at `path`."""
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
        pairs = [cifar.read_batches(folder, names) for names in (cifar.TRAIN, cifar.TEST)]
        return Images(_set(*pairs[0]), _set(*pairs[1]), 3, cifar.CLASSES)
    sets = [_framed(*idx.read_pair(folder, part)) for part in ("train", "t10k")]
    return Images(sets[0], sets[1], 1, 10)


def _framed(images: torch.Tensor, labels: torch.Tensor) -> TensorDataset:
    """MNIST's 28 x 28 in the middle of a dark frame, as LeCun did."""
    sides = [(SIZE - images.shape[2]) // 2, (SIZE - images.shape[1]) // 2]
    if images.shape[1:] != (SIZE - 2 * sides[1], SIZE - 2 * sides[0]) or min(sides) < 0 or int(labels.max()) > 9:
        raise ConfigError(
            f"mnist: images of {tuple(images.shape[1:])} pixels and labels up to {int(labels.max())}. "
            "LeNet takes even sizes up to 32, and ten classes."
        )
    return _set(functional.pad(images, (sides[0], sides[0], sides[1], sides[1]))[:, None], labels)


def _digits() -> Images:
    """scikit-learn's 8 x 8 pixels of 0 to 16, four times as large."""
    from clusterdp.recipes.digits import load_digits

    parts = []
    for part in load_digits():
        images, labels = part.tensors
        large = functional.interpolate(images, size=(SIZE, SIZE), mode="bilinear")
        parts.append(_set((large * 255).round().to(torch.uint8), labels))
    return Images(parts[0], parts[1], 1, 10)


def _set(images: torch.Tensor, labels: torch.Tensor) -> TensorDataset:
    return TensorDataset(images, labels.long())
