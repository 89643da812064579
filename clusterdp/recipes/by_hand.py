"""Data parallelism by hand: what DistributedDataParallel does, in four numbered lines. LeNet on the digits.

    clusterdp submit configs/by_hand.yaml --cluster local
    torchrun --nproc-per-node=2 -m clusterdp.recipes.by_hand epochs=5
    torchrun --nproc-per-node=2 -m clusterdp.recipes.by_hand averaging=ddp    # the same, to the last bit

Every rank holds the whole model. Equal weights, plus equal updates, stay equal; so all that has to travel is the
gradient, once a step. The mean of the ranks' gradients is the gradient of the mean loss over all of their samples, if
each has as many: N ranks with b samples each do the step of one process with N*b.

When to use it: to understand DDP, or where DDP is in the way: gradients that are to be changed before they are summed
(compressed, clipped by rank, masked), parameters that not every rank has, an optimizer that wants the ranks' gradients
one by one. Else use job.wrap(): DDP sends the first gradients while the backward pass still computes the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from clusterdp.errors import ConfigError
from clusterdp.recipes.data import images as data_images
from clusterdp.recipes.results import accuracy, digest, report
from clusterdp.train import JobHandle


def main(
    job: JobHandle,
    data: str = "digits",
    path: str | Path | None = None,
    averaging: str = "by_hand",
    epochs: int = 8,
    batch_size: int = 8,
    lr: float = 0.02,
    step_delay_s: float = 0.0,
) -> float:
    """Returns the accuracy on the held-out images. averaging: by_hand, or ddp. batch_size: of one rank.

    data: digits; or mnist, cifar10, folder, whose files lie at `path`. step_delay_s: for slow motion.
    """
    if averaging not in ("by_hand", "ddp"):
        raise ConfigError(f"params.averaging: {averaging!r} is not known. Use by_hand or ddp.")
    by_hand = averaging == "by_hand"
    sets = data_images.load(data, path)
    net = LeNet(sets.channels, sets.classes).to(job.device)
    model: nn.Module = net
    if by_hand:
        replicate(net)  # 1: all begin with rank 0's weights
    else:
        model = job.wrap(net)
    loader = job.loader(sets.train, batch_size, drop_last=True)  # 2: each its share of the samples
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    loop = job.loop(loader, {"model": model, "optimizer": optimizer}, epochs=epochs)
    for images, labels in loop:
        optimizer.zero_grad()
        loss = criterion(model(images.to(job.device)), labels.to(job.device))
        loss.backward()
        if by_hand:
            average_gradients(model.parameters())  # 3: the gradient of all ranks' samples
        optimizer.step()  # 4: the same step, from the same weights, on every rank
        loop.log(loss=loss)
        time.sleep(step_delay_s)

    reached = accuracy(job, loop, net, sets.test)
    return report(job, loop, averaging, reached, digest=digest(net, optimizer))


def replicate(model: nn.Module) -> None:
    """Copies rank 0's weights to every rank, because each has drawn its own, and buffers (BatchNorm's statistics)."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """The mean over all ranks, in place. Each rank must have the same gradients to offer."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = pack(gradients)
    flat *= 1 / dist.get_world_size()  # before the sum, as DDP does: of halves, it cannot overflow
    dist.all_reduce(flat)
    unpack(flat, gradients)


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A single buffer of all gradients: an all-reduce costs a start-up time, which ten small ones would pay ten times.

    The last one first, as DDP lays out its buckets. An all-reduce adds up each part of its buffer in another order of
    ranks; over more than two, the last bit of a sum depends on where in the buffer it stands.
    """
    return torch.cat([tensor.flatten() for tensor in reversed(tensors)])


@torch.no_grad()
def unpack(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Into the tensors from which it was packed."""
    pieces = torch.split(flat, [tensor.numel() for tensor in reversed(tensors)])
    for tensor, piece in zip(reversed(tensors), pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))


class LeNet(nn.Module):
    """LeCun et al., 1998, with ReLU and max-pooling. Takes bytes, a quarter of what floats would take to move."""

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
