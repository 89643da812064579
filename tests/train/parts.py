"""Ranks whose steps call the parts of a model one by one, for test_gradient_mean."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clusterdp.recipes.results import digest
from clusterdp.train import JobHandle, gradient_sync
from clusterdp.train.parallel.gradient_mean import average


def layers(seed: int = 0) -> nn.ModuleList:
    """Weights of more than one chunk, where a chunk has 0.01 MB."""
    torch.manual_seed(seed)
    return nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])


class Chain(nn.Module):
    """Parts with a forward() that calls both."""

    def __init__(self, parts: nn.ModuleList):
        super().__init__()
        self.parts = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts[1](self.parts[0](x).relu())


def raised(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def inputs(job: JobHandle) -> torch.Tensor:
    return torch.randn(4, 64, generator=torch.Generator().manual_seed(job.rank))


def gradients(model: nn.Module) -> list[list[float] | None]:
    return [None if p.grad is None else p.grad.to_dense().flatten().tolist() for p in model.parameters()]


def alone(parts: nn.ModuleList, job: JobHandle, backward: Callable[[nn.ModuleList, torch.Tensor], Any]) -> Any:
    """The mean of the gradients, computed on this rank from the inputs of all ranks."""
    copied = copy.deepcopy(parts)
    for rank in range(job.world_size):
        backward(copied, torch.randn(4, 64, generator=torch.Generator().manual_seed(rank)))
    for parameter in copied.parameters():
        if parameter.grad is not None:
            parameter.grad /= job.world_size
    return gradients(copied)


def both(parts: nn.ModuleList, x: torch.Tensor) -> None:
    parts[1](parts[0](x).relu()).square().mean().backward()


def chunked(job: JobHandle) -> nn.ModuleList:
    """Parts that each rank has built with other weights."""
    wrapped = job.wrap(layers(job.rank), bucket_cap_mb=0.01)
    assert isinstance(wrapped, nn.ModuleList)
    return wrapped


def in_chunks(job: JobHandle) -> Any:
    parts = chunked(job)
    both(parts, inputs(job))
    return gradients(parts), alone(layers(), job, both), digest(parts)


def one_part(job: JobHandle) -> Any:
    parts = chunked(job)
    backward = lambda these, x: these[1](x).sum().backward()  # noqa: E731
    backward(parts, inputs(job))
    return gradients(parts), alone(layers(), job, backward)


def accumulated(job: JobHandle) -> Any:
    parts = chunked(job)
    with gradient_sync(parts, False):
        both(parts, inputs(job))
    local = gradients(parts)
    with gradient_sync(parts, True):
        both(parts, inputs(job))
    return local, [[value / 2 for value in each or ()] for each in gradients(parts)], alone(layers(), job, both)


def on_one_rank(job: JobHandle) -> Any:
    """Only rank 1 uses the second part."""
    parts = chunked(job)
    loss = parts[0](inputs(job)).sum()
    if job.rank == 1:
        loss = loss + parts[1](inputs(job)).sum()
    loss.backward()
    return gradients(parts)


def frozen(job: JobHandle) -> Any:
    """A part that is frozen when it is wrapped, and trained later."""
    parts = layers(job.rank)
    parts[0].requires_grad_(False)
    parts = job.wrap(parts)  # type: ignore[assignment]
    still = [p.requires_grad for p in parts.parameters()]
    both(parts, inputs(job))
    first = gradients(parts)
    parts.zero_grad()
    parts.requires_grad_(True)
    both(parts, inputs(job))
    return still, first, gradients(parts), alone(layers(), job, both)


def failed(job: JobHandle) -> Any:
    """A backward pass that has failed half-way does not disturb the next one."""
    parts = chunked(job)

    def refuse(gradient: torch.Tensor) -> None:
        raise ValueError("refused")

    hidden = parts[0](inputs(job))
    hook = hidden.register_hook(refuse)
    told = raised(lambda: parts[1](hidden.relu()).square().mean().backward())
    hook.remove()
    parts.zero_grad()
    both(parts, inputs(job))
    return told, gradients(parts), alone(layers(), job, both)


def sparse(job: JobHandle) -> Any:
    parts = job.wrap(nn.ModuleList([nn.Embedding(8, 2, sparse=True), nn.Linear(2, 2)]))
    rows = torch.tensor([job.rank, 5])
    parts[1](parts[0](rows)).sum().backward()  # type: ignore[index]
    grad = next(parts.parameters()).grad
    assert grad is not None
    return grad.is_sparse, [row for row, values in enumerate(grad.to_dense().tolist()) if any(values)], gradients(parts)


def cleared(job: JobHandle) -> Any:
    parts = chunked(job)
    weight = parts[1].weight
    weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))  # type: ignore[no-untyped-call]
    return raised(lambda: both(parts, inputs(job)))


def beside_ddp(job: JobHandle) -> Any:
    """A model in DDP, called as DDP expects, part by part, and as a whole again."""
    model = job.wrap(Chain(layers(job.rank)))
    assert isinstance(model, DistributedDataParallel)
    average(model, job.group, {})
    found = []
    for call in (model, model.module, model):
        call(inputs(job)).square().mean().backward()
        found.append(gradients(model))
        model.zero_grad()
    return found, alone(layers(), job, both)


def buffers(job: JobHandle) -> Any:
    """BatchNorm's statistics, after each batch of a loop."""
    parts = job.wrap(nn.ModuleList([nn.BatchNorm1d(64), nn.Linear(64, 1)]))
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
    told = []
    for _ in job.loop([None, None], {"parts": parts, "optimizer": optimizer}):
        told.append(digest(parts))
        parts[1](parts[0](inputs(job))).sum().backward()  # type: ignore[index]
        optimizer.step()
        optimizer.zero_grad()
    return [*told, digest(parts)]


def sparse_on_one_rank(job: JobHandle) -> Any:
    """Only rank 1 looks up rows."""
    parts = job.wrap(nn.ModuleList([nn.Embedding(8, 2, sparse=True), nn.Linear(2, 2)]))
    x = torch.ones(1, 2) if job.rank == 0 else parts[0](torch.tensor([3]))  # type: ignore[index]
    parts[1](x).sum().backward()  # type: ignore[index]
    return gradients(parts)


def forgotten(job: JobHandle) -> bool:
    """Whether the weights of a model are freed with it."""
    parts = chunked(job)
    both(parts, inputs(job))
    weight = ref(parts[0].weight)
    del parts
    gc.collect()
    return weight() is None


def hooked(job: JobHandle) -> str:
    return raised(lambda: job.wrap(layers()))


CASES = (
    in_chunks, one_part, accumulated, on_one_rank, frozen, failed, sparse, sparse_on_one_rank, cleared, beside_ddp,
    buffers, forgotten,
)  # fmt: skip


def all_cases(job: JobHandle) -> dict[str, Any]:
    return {case.__name__: case(job) for case in CASES}
