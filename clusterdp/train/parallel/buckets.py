"""Fixes DDP's buckets early, so that a resumed run adds its gradients in the same order as one that never stopped."""

from __future__ import annotations

import warnings
from weakref import WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel

_settled: WeakSet[torch.nn.Module] = WeakSet()


class _TouchAll(torch.nn.Module):
    """A stand-in for the model whose backward pass reaches its parameters from the last to the first, with zeros.

    That is DDP's own guess of the order in which gradients become ready in a real backward pass.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]):
        super().__init__()
        self.all = parameters  # a plain list: they stay the model's

    def forward(self) -> torch.Tensor:
        total = self.all[0].new_zeros((), dtype=torch.float32)
        for parameter in self.all:
            total = total + (parameter * 0).sum().float().to(total.device)
        return total


def reduced(model: DistributedDataParallel) -> dict[str, torch.nn.Parameter]:
    """The parameters whose gradients DDP adds up, in the order of its numbers for them."""
    ignored = model.parameters_to_ignore  # in torch, a parameter of the model itself is called `.name`
    return {
        name: parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and (name if "." in name else f".{name}") not in ignored
    }


def settle_buckets(model: torch.nn.Module) -> None:
    """Makes DDP regroup its buckets now, by two throw-away backward passes. Call it once on all ranks, before step one.

    DDP regroups once, before its second forward pass, by the order in which gradients became ready in the first one.
    Gloo's and NCCL's sums follow the buckets, so the first step after a resume would add up in another order than the
    same step of the uninterrupted run: over 4 ranks the last bits differ. Settled, every step uses the same layout, in
    fresh and in resumed runs. Parameters, buffers and RNG are untouched; gradients are None afterwards. A second call
    does nothing.
    """
    if not isinstance(model, DistributedDataParallel) or model.find_unused_parameters or model in _settled:
        return  # where it finds unused parameters, DDP never regroups
    _settled.add(model)
    if model.static_graph:
        warnings.warn(
            "DDP(static_graph=True): its buckets cannot be settled beforehand. A resumed run may differ from the "
            "uninterrupted one in the last bits.",
            stacklevel=2,
        )
        return
    real = model.module
    parameters = [*reduced(model).values()]
    stand_in = _TouchAll(parameters)
    try:
        model.module = stand_in
        for _ in range(2):
            model.require_forward_param_sync = False  # it would look for the model's buffers in the stand-in
            model().backward()  # DDP's forward sets it again
    finally:
        model.module = real
    for parameter in parameters:
        parameter.grad = None
