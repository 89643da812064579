"""Computes the results that recipes report at their end: the accuracy of a model, and the digest of a state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import default_collate

from clusterdp.errors import TrainError
from clusterdp.train import JobHandle, Loop

EVALUATED_AT_ONCE = 64


def accuracy(job: JobHandle, loop: Loop[Any], model: nn.Module, test_set: Any) -> float:
    """Returns the share of images that the model classifies correctly, over all ranks. test_set: pairs (image,
    label)."""
    return total(job, loop, model, test_set, lambda logits, labels: (logits.argmax(1) == labels).sum()) / len(test_set)


Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def total(job: JobHandle, loop: Loop[Any], model: nn.Module, test_set: Any, score: Score) -> float:
    """Returns the sum of score(outputs, targets) over all ranks. Each of N ranks takes every N-th sample."""
    sums = torch.zeros((), device=job.device)
    model.eval()
    with torch.no_grad():
        for inputs, targets in loop.watch(_shares(job, test_set)):
            sums += score(model(inputs.to(job.device)), targets.to(job.device))
    model.train()
    dist.all_reduce(sums)
    return sums.item()


def _shares(job: JobHandle, test_set: Any) -> Iterator[Any]:
    mine = range(job.rank, len(test_set), job.world_size)
    for start in range(0, len(mine), EVALUATED_AT_ONCE):
        yield default_collate([test_set[place] for place in mine[start : start + EVALUATED_AT_ONCE]])


def report(job: JobHandle, loop: Loop[Any], name: str, reached: float, at_least: float = 0.0, **more: Any) -> float:
    """Logs, prints and returns the accuracy. more: other values to log. Raises TrainError if the accuracy is below
    `at_least`."""
    job.log(test_accuracy=reached, **more)
    if job.rank == 0:
        print(f"{name}: test accuracy {reached:.4f} after {loop.step} steps", flush=True)
    if reached < at_least:
        raise TrainError(f"at_least: the accuracy is {reached:.4f}, and not {at_least}. Train longer, or expect less.")
    return reached


def digest(*things: Any) -> str:
    """Returns a digest of every bit of the states. If two runs end with the same digest, their states are equal."""
    hash_ = hashlib.sha256()
    for thing in things:
        _add(hash_, thing.state_dict())
    return hash_.hexdigest()


def _add(hash_: Any, value: Any) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            hash_.update(repr(name).encode())
            _add(hash_, item)
    elif isinstance(value, list | tuple):
        for item in value:
            _add(hash_, item)
    else:
        hash_.update(value.cpu().numpy().tobytes() if torch.is_tensor(value) else repr(value).encode())
