"""CIFAR-10, a folder of one's own, and the digits, all as LeNet takes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from clusterdp.errors import ConfigError
from clusterdp.recipes import images
from clusterdp.recipes import images as cifar


def write_cifar(folder: Path, records: int = 2) -> None:
    """In the form of cifar-10-binary.tar.gz: record i of file n has the label i, and bytes of n."""
    folder.mkdir(parents=True)
    for n, name in enumerate((*cifar.TRAIN, *cifar.TEST)):
        (folder / name).write_bytes(
            b"".join(bytes([i]) + bytes([n]) * 1023 + bytes([99]) + bytes([n]) * 2048 for i in range(records))
        )


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar10_loads_from_its_batches_folder_or_the_parent_folder(tmp_path: Path, inner: str) -> None:
    write_cifar(tmp_path / "data" / inner)
    loaded = images.load("cifar10", tmp_path / "data")
    assert (len(loaded.train), len(loaded.test), loaded.channels) == (10, 2, 3)
    image, label = loaded.train[3]
    assert image.shape == (3, 32, 32) and label == 1
    assert image[0, 31, 31] == 99 and image[1, 0, 0] == 1, "red comes first, row by row"
    assert loaded.test[0][0][0, 0, 0] == 5


def test_cifar10_pickle_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02}q")
    with pytest.raises(ConfigError, match="CIFAR-10's pickles; they are not read"):
        images.load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 bytes are not whole records"),
        (bytes(3072), "3072 bytes are not whole records"),
        (bytes([10]) + bytes(3072), "a label 10"),
    ],
)
def test_bad_cifar10_file_is_an_error_with_its_name_and_fault(tmp_path: Path, data: bytes, says: str) -> None:
    write_cifar(tmp_path / "data")
    (tmp_path / "data" / "data_batch_4.bin").write_bytes(data)
    with pytest.raises(ConfigError, match=rf"data_batch_4\.bin: .*{says}"):
        images.load("cifar10", tmp_path / "data")


def test_missing_cifar10_file_error_names_the_archive_to_unpack(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data_batch_1\.bin: there is no such file. Unpack cifar-10-binary"):
        images.load("cifar10", tmp_path)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    pil = pytest.importorskip("PIL.Image")
    for part, count in (("train", 3), ("test", 1)):
        for name, colour in (("cats", (255, 0, 0)), ("dogs", (0, 0, 255))):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                pil.new("RGB", (40 + i, 20), colour).save(tmp_path / part / name / f"{i}.png")
    (tmp_path / "train" / "cats" / "notes.txt").write_text("not an image")
    return tmp_path


def test_each_subfolder_of_an_image_folder_is_one_class(pictures: Path) -> None:
    loaded = images.load("folder", pictures)
    assert (len(loaded.train), len(loaded.test), loaded.classes) == (6, 2, 2)
    image, label = loaded.train[4]
    assert image.shape == (3, 32, 32) and image.dtype == torch.uint8 and label == 1
    assert image[2].min() == 255 and image[:2].max() == 0


def test_broken_image_file_is_an_error_with_its_name(pictures: Path) -> None:
    (pictures / "train" / "cats" / "0.png").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"cats/0\.png: .*Replace or remove the file"):
        images.load("folder", pictures).train[0]


def test_image_class_missing_from_test_folder_is_an_error_with_its_name(pictures: Path) -> None:
    (pictures / "test" / "dogs").rename(pictures / "test" / "wolves")
    with pytest.raises(ConfigError, match="the class dogs is only in one of train and test"):
        images.load("folder", pictures)


def test_image_folder_error_without_pillow_names_the_pip_command(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"pip install 'clusterdp\[images\]'"):
        images.load("folder", pictures)


def test_empty_image_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no images in it"):
        images.load("folder", tmp_path)


def test_digits_pixels_are_scaled_to_the_range_of_a_byte() -> None:
    image, label = images.load("digits").train[0]
    assert image.shape == (1, 32, 32) and image.dtype == torch.uint8 and label.dtype == torch.int64
    assert image.min() == 0 and image.max() > 200


@pytest.mark.parametrize(
    ("kind", "says"), [("minst", "'minst' is not known"), ("mnist", r"add params\.path|Add params\.path")]
)
def test_unknown_dataset_kind_and_missing_dataset_path_are_errors(kind: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        images.load(kind)
