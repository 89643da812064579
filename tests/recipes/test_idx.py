"""MNIST in its original files. Misread by one byte, it would still train, and badly."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch

from clusterdp.errors import ConfigError
from clusterdp.recipes import images
from clusterdp.recipes import images as idx


def idx_bytes(values: torch.Tensor) -> bytes:
    header = struct.pack(f">BBBB{values.dim()}I", 0, 0, 8, values.dim(), *values.shape)
    return header + values.numpy().tobytes()


def write_mnist(folder: Path, *, count: int = 3, gzipped: bool = True, side: int = 28) -> torch.Tensor:
    """Its four files. Returns the images to train on."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = torch.randint(0, 256, (count, side, side), dtype=torch.uint8)
    for part in ("train", "t10k"):
        for kind, values in (("images-idx3", pixels), ("labels-idx1", torch.arange(count).to(torch.uint8) % 10)):
            data = idx_bytes(values)
            name = f"{part}-{kind}-ubyte"
            (folder / (f"{name}.gz" if gzipped else name)).write_bytes(gzip.compress(data) if gzipped else data)
    return pixels


@pytest.mark.parametrize("gzipped", [True, False])
def test_mnist_loads_from_gzipped_and_from_unpacked_files(tmp_path: Path, gzipped: bool) -> None:
    pixels = write_mnist(tmp_path, gzipped=gzipped)
    read, labels = idx.read_pair(tmp_path, "train")
    assert torch.equal(read, pixels)
    assert labels.tolist() == [0, 1, 2]


def test_mnist_images_are_zero_padded_to_32_pixels(tmp_path: Path) -> None:
    pixels = write_mnist(tmp_path)
    loaded = images.load("mnist", tmp_path)
    image, label = loaded.train[2]
    assert image.shape == (1, 32, 32) and image.dtype == torch.uint8
    assert torch.equal(image[0, 2:30, 2:30], pixels[2])
    assert image.sum() == pixels[2].sum()
    assert label == 2


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: b"", "unlike an idx file"),
        (lambda data: b"<html>", "begins with 3c 68 74 6d"),
        (lambda data: data[:-1], "2367 bytes, 2368 by its header"),
        (lambda data: data + b"\0", "2369 bytes, 2368 by its header"),
        (lambda data: data[:9], "9 bytes"),
        (lambda data: b"\0\0\x0d" + data[3:], "type 0x0d"),
        (lambda data: gzip.compress(data)[:-9], "end-of-stream"),
        (lambda data: b"\x1f\x8b" + data, "Fetch the file again"),
    ],
)
def test_bad_mnist_file_is_a_one_line_error_with_its_path(tmp_path: Path, spoil: object, says: str) -> None:
    write_mnist(tmp_path, gzipped=False)
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(spoil(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ConfigError, match=says) as error:
        idx.read_pair(tmp_path, "train")
    assert str(error.value).startswith(f"{file}: ") and "\n" not in str(error.value)


def test_mnist_images_and_labels_of_different_counts_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, gzipped=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(torch.zeros(2, dtype=torch.uint8)))
    with pytest.raises(ConfigError, match=r"\(3, 28, 28\) and labels \(2,\) do not belong together"):
        idx.read_pair(tmp_path, "train")


def test_empty_mnist_folder_error_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no train-images-idx3-ubyte, nor with \.gz"):
        images.load("mnist", tmp_path)


def test_mnist_images_of_33_pixels_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, side=33)
    with pytest.raises(ConfigError, match="even sizes up to 32"):
        images.load("mnist", tmp_path)
