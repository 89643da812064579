"""The digits from tar files in WebDataset's format: one rank, and one of its workers, reads each file.

    clusterdp submit configs/shards.yaml --cluster local
    python configs/shards.py epochs=2 path='data/train-*.tar'

Use this recipe if a data set has too many samples for one file each, or if only sequential reads of the storage are
fast.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.recipes.digits import load_digits
from clusterdp.recipes.results import accuracy, digest, report
from clusterdp.recipes.techniques import layers
from clusterdp.train import JobHandle, Shards, read_tar

FILES = 7  # not divisible by 2 to 6 ranks; the files differ in size


def main(
    job: JobHandle,
    epochs: int = 3,
    batch_size: int = 16,
    lr: float = 0.03,
    workers: int = 1,
    path: str | None = None,
    batches: int | None = None,
    at_least: float = 0.0,
) -> float:
    """Returns the accuracy on the held-out images. path: tar files with `pix` (64 bytes) and `cls` (a digit); None: the
    recipe first writes scikit-learn's digits into the run folder. batches: number of batches that each rank gets in an
    epoch."""
    train_set, test_set = load_digits()
    net = layers()
    model = job.wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if path is None and batches is None:
        batches = len(train_set) // (batch_size * job.world_size)
    data = Shards(path or written(job, train_set), read_tar, decode, buffer=500, batches=batches)
    loader = job.loader(data, batch_size, num_workers=workers)
    criterion = nn.CrossEntropyLoss()
    loop = job.loop(loader, {"model": model, "optimizer": optimizer}, epochs=epochs)
    for images, labels in loop:
        optimizer.zero_grad()
        loss = criterion(model(images.to(job.device)), labels.to(job.device))
        loss.backward()
        optimizer.step()
        loop.log(loss=loss)
    reached = accuracy(job, loop, net, test_set)
    return report(job, loop, "shards", reached, at_least, digest=digest(net, optimizer))


def decode(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Returns (pixels, digit) with a little noise. The noise does not depend on the worker or the attempt."""
    pixels = torch.frombuffer(bytearray(sample["pix"]), dtype=torch.uint8).reshape(1, 8, 8) / 16
    return pixels + 0.05 * torch.randn(1, 8, 8), int(sample["cls"])


def written(job: JobHandle, data: TensorDataset) -> Path:
    """Writes the tar files on rank 0, and returns the pattern of their paths. Collective: all ranks must call this
    function."""
    if job.run_dir is None:
        raise ConfigError("path: there is no run folder to write the digits to. Name tars, or set CLUSTERDP_RUN_DIR.")
    folder = job.run_dir / "shards"
    if job.rank == 0:
        folder.mkdir(exist_ok=True)
        begin = 0
        for number in range(FILES):
            end = begin + len(data) * (number + 1) * 2 // (FILES * (FILES + 1))  # sizes rise from file to file
            _write(folder / f"train-{number}.tar", data, range(begin, end if number + 1 < FILES else len(data)))
            begin = end
    job.group.agree(0)  # waits, so that no rank reads before the files exist
    return folder / "train-*.tar"


def _write(file: Path, data: TensorDataset, samples: range) -> None:
    temporary = file.with_suffix(".part")
    with tarfile.open(temporary, "w") as tar:
        for index in samples:
            image, label = data[index]
            parts = {"pix": bytes((image * 16).to(torch.uint8).flatten().tolist()), "cls": str(int(label)).encode()}
            for kind, content in parts.items():
                member = tarfile.TarInfo(f"{index:06d}.{kind}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    temporary.replace(file)


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
