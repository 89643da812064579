"""Trains on the digits with NVIDIA DALI, which shuffles and rotates them on the CPU: pip install nvidia-dali-cuda120.

    clusterdp submit configs/dali.yaml --cluster local
    python configs/dali.py epochs=5

DALI's own random numbers begin anew in each process. Therefore this pipeline draws none: the epoch and the sample's
number decide order and angle, so that a resume is exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.recipes.digits import Net, load_digits
from clusterdp.recipes.results import digest
from clusterdp.train import JobHandle, Trainer


class Batches:
    """This rank's share of the images, as batches of (images, labels) from a pipeline. The loop calls set_epoch()."""

    def __init__(self, job: JobHandle, data: TensorDataset, batch_size: int):
        self.images, self.labels = data.tensors
        self.rank, self.world_size, self.seed = job.rank, job.world_size, job.seed
        self.batch_size = batch_size
        self.steps = len(data) // (batch_size * job.world_size)  # whole batches: DALI refuses a smaller one at the end
        self.epoch = 0
        self.dali: Any = None

    def __len__(self) -> int:
        return self.steps

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        draws = torch.Generator().manual_seed(self.seed + self.epoch)
        self.order = torch.randperm(len(self.images), generator=draws)
        self.angles = torch.empty(len(self.images)).uniform_(-10, 10, generator=draws)
        if self.dali is None:
            self.dali = self.pipeline()  # reads the first batch at once, as reset() does
        else:
            next(self.dali, None)  # the end of the last epoch, which reset() needs
            self.dali.reset()
        for (batch,) in self.dali:
            yield batch["images"], batch["labels"][:, 0]

    def sample(self, info: Any) -> Any:
        if info.idx_in_epoch >= self.steps * self.batch_size:
            raise StopIteration
        number = self.order[info.idx_in_epoch * self.world_size + self.rank]
        height_width_channels = self.images[number].permute(1, 2, 0)
        return height_width_channels.numpy(), self.angles[number].numpy(), self.labels[number, None].numpy()

    def pipeline(self) -> Any:
        from nvidia.dali import fn, pipeline_def
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        @pipeline_def(batch_size=self.batch_size, num_threads=1, device_id=None)  # type: ignore[untyped-decorator]
        def rotated() -> Any:
            images, angle, labels = fn.external_source(source=self.sample, num_outputs=3, batch=False)
            images = fn.rotate(images, angle=angle, keep_size=True, fill_value=0.0)
            return fn.transpose(images, perm=[2, 0, 1]), labels

        return DALIGenericIterator([rotated()], ["images", "labels"], size=self.steps * self.batch_size)


def main(job: JobHandle, epochs: int = 5, batch_size: int = 16, lr: float = 0.05, step_delay_s: float = 0.0) -> float:
    """Returns the accuracy on the held-out images. batch_size: images a step of one rank."""
    train, test = load_digits()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)

    def wait(trainer: Trainer, values: Any) -> None:
        time.sleep(step_delay_s)

    trainer = Trainer(
        net,
        nn.CrossEntropyLoss(),
        optimizer,
        metrics=["accuracy"],
        job=job,
        on_step=[wait] if step_delay_s else [],
    )
    history = trainer.fit(Batches(job, train, batch_size), test, epochs=epochs)
    accuracy = float(history.rows[-1]["val_accuracy"])
    job.log(test_accuracy=accuracy, digest=digest(net, optimizer))
    return accuracy


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
