"""SyncBatchNorm: BatchNorm statistics over the batches of all ranks, for a batch per rank that is too small for good
statistics.

    model = sync_batchnorm(model)        # before DDP

On GPUs, torch's SyncBatchNorm is used, which runs only on GPUs. On CPUs, GlooBatchNorm computes the same sums over
gloo, which is slow and meant only for trying a job out.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from clusterdp.train.argument_names import checked


@checked
def sync_batchnorm(model: nn.Module) -> nn.Module:
    """Returns the model with each BatchNorm replaced by one over all ranks. The model may be a BatchNorm itself."""
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        synced: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return synced
    if isinstance(model, _BatchNorm):
        return GlooBatchNorm(model)
    for name, child in model.named_children():
        setattr(model, name, sync_batchnorm(child))
    return model


class GlooBatchNorm(_BatchNorm):
    """Does the same as nn.SyncBatchNorm, in plain steps, and has the replaced BatchNorm's parameters, buffers and
    names."""

    def __init__(self, norm: _BatchNorm):
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self._parameters, self._buffers, self.training = norm._parameters, norm._buffers, norm.training

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  # torch's name
        """Accepts an input with any number of dimensions."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if not self.training or not dist.is_initialized():
            return super().forward(given)
        x = given.float()
        others = [dimension for dimension in range(x.dim()) if dimension != 1]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        count = _total(torch.tensor([x.numel() / x.shape[1]]))
        mean = _total(x.sum(others)) / count
        centred = x - mean.view(shape)
        variance = _total(centred.square().sum(others)) / count
        if self.track_running_stats:
            self._note(mean.detach(), (variance * count / (count - 1)).detach())
        out: torch.Tensor = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(given.dtype)

    @torch.no_grad()
    def _note(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Updates the running statistics, which are used in evaluation."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        for running, now in ((self.running_mean, mean), (self.running_var, variance)):
            assert running is not None
            running.lerp_(now.to(running.dtype), weight)


def _total(x: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = _Total.apply(x)  # type: ignore[no-untyped-call]
    return total


class _Total(torch.autograd.Function):
    """Sums a tensor over all ranks. The backward pass sums the gradients over all ranks, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
