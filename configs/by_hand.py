"""Data parallelism by hand: the work of DistributedDataParallel in four numbered lines. LeNet on the digits.

    clusterdp submit configs/by_hand.yaml --cluster local
    torchrun --nproc-per-node=2 configs/by_hand.py epochs=5
    torchrun --nproc-per-node=2 configs/by_hand.py averaging=ddp    # the same, to the last bit

Every rank holds the whole model. Equal weights stay equal after equal updates. Therefore the ranks exchange only the
gradient, once a step. The mean of the ranks' gradients is the gradient of the mean loss over all samples, if all ranks
have the same number of samples: N ranks with b samples each do the same step as one process with N*b samples.

Use this recipe to understand DDP, or for work that DDP does not support: gradients that are changed before the mean
(compressed, clipped by rank, masked), parameters that not every rank has, an optimizer that needs the gradient of each
rank. In any other case use job.wrap(): DDP sends the first gradients while the backward pass still computes the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from clusterdp.errors import ConfigError
from clusterdp.recipes.images import LeNet, load
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
    """Trains LeNet, and returns the accuracy on the held-out images. averaging: by_hand, or ddp. batch_size: samples a
    step of one rank.

    data: digits; or mnist, cifar10, folder, with files at `path`. step_delay_s: pause after each step, to watch the
    training slowly.
    """
    if averaging not in ("by_hand", "ddp"):
        raise ConfigError(f"params.averaging: {averaging!r} is not known. Use by_hand or ddp.")
    by_hand = averaging == "by_hand"
    sets = load(data, path)
    net = LeNet(sets.channels, sets.classes).to(job.device)
    model: nn.Module = net
    if by_hand:
        replicate(net)  # 1: all ranks begin with rank 0's weights
    else:
        model = job.wrap(net)
    loader = job.loader(sets.train, batch_size, drop_last=True)  # 2: each rank gets its share of the samples
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
    """Copies rank 0's weights and buffers (BatchNorm's statistics) to every rank, which has drawn its own weights."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replaces the gradients by their mean over all ranks. All ranks must have gradients for the same parameters."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = pack(gradients)
    flat *= 1 / dist.get_world_size()  # divided before the sum, as in DDP: a sum of fp16 values could overflow
    dist.all_reduce(flat)
    unpack(flat, gradients)


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns one buffer with all gradients: each all-reduce has a start-up time, and ten small all-reduces take it ten
    times.

    The last gradient is first, as in DDP's buckets. An all-reduce adds the ranks' values in a different order for each
    part of its buffer. With more than two ranks, the last bit of a sum depends on its place in the buffer.
    """
    return torch.cat([tensor.flatten() for tensor in reversed(tensors)])


@torch.no_grad()
def unpack(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copies the buffer into the tensors from which it was packed."""
    pieces = torch.split(flat, [tensor.numel() for tensor in reversed(tensors)])
    for tensor, piece in zip(reversed(tensors), pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
