"""Weights in fp16, and the fp32 copies of them that the optimizer steps on: levels O2 and O3 of mixed precision.

    halve(model)                              # before DDP, and before the optimizer is made
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masters = MasterWeights(optimizer)              # it steps on fp32 copies from now on
    ...
    masters.take_gradients()                  # fp16 of the model -> fp32 of the copies
    optimizer.step()
    masters.give_weights()                    # and back

An update smaller than a thousandth of its weight is lost in fp16, and not in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from clusterdp.errors import StateError


def halve(model: nn.Module, *, keep_batchnorm_fp32: bool = True) -> nn.Module:
    """Casts weights and buffers to fp16, in place. The model casts its inputs to fp16 and its outputs to fp32.

    BatchNorm may stay in fp32, as its sums need it; it takes fp16 activations all the same, and returns them.
    A model that this was done with, or with parts of it alone, stays as it is.
    """
    if any(_halve_inputs in module._forward_pre_hooks.values() for module in model.modules()):
        return model
    for module in model.modules():
        if keep_batchnorm_fp32 and isinstance(module, _BatchNorm):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.half()
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.half())
    model.register_forward_pre_hook(_halve_inputs, with_kwargs=True)
    model.register_forward_hook(_widen_outputs)
    return model


def _halve_inputs(model: nn.Module, args: Any, kwargs: Any) -> Any:
    return _map(args, torch.Tensor.half), _map(kwargs, torch.Tensor.half)


def _widen_outputs(model: nn.Module, args: Any, output: Any) -> Any:
    return _map(output, torch.Tensor.float)


def _map(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Floating tensors in nested tuples, lists and dicts; anything else stays as it is."""
    if isinstance(tree, torch.Tensor):
        return change(tree) if tree.is_floating_point() else tree
    if type(tree) in (tuple, list):
        return type(tree)(_map(item, change) for item in tree)
    if type(tree) is dict:
        return {key: _map(item, change) for key, item in tree.items()}
    return tree


class MasterWeights:
    """fp32 copies of an optimizer's fp16 parameters, in their place in its groups. Others (BatchNorm's) stay."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._halves: list[torch.Tensor] = []
        self._wholes: list[torch.Tensor] = []
        for group in optimizer.param_groups:
            group["params"] = [self._master_of(parameter, optimizer) for parameter in group["params"]]
        self._master = {id(half): whole for half, whole in zip(self._halves, self._wholes, strict=True)}
        zero_grad = optimizer.zero_grad

        def zero_both(set_to_none: bool = True) -> None:
            zero_grad(set_to_none)
            for half in self._halves:  # the optimizer does not know them any more
                half.grad = None

        optimizer.zero_grad = zero_both  # type: ignore[method-assign]

    def _master_of(self, parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        if parameter.dtype != torch.float16:
            return parameter
        master = nn.Parameter(parameter.detach().float(), parameter.requires_grad)
        master.master_of = parameter  # type: ignore[attr-defined]  # its name is that parameter's
        if parameter in optimizer.state:
            optimizer.state[master] = optimizer.state.pop(parameter)
        self._halves.append(parameter)
        self._wholes.append(master)
        return master

    def of(self, parameter: torch.Tensor) -> torch.Tensor:
        """The fp32 copy of a parameter, or the parameter itself if it has none."""
        return self._master.get(id(parameter), parameter)

    def are_of(self, optimizer: torch.optim.Optimizer) -> bool:
        own = {id(master) for master in self._wholes}
        return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])

    def take_gradients(self) -> None:
        """Copies the gradients to fp32, once all are there: DDP has added them up in fp16, where they may have
        overflowed."""
        for half, whole in zip(self._halves, self._wholes, strict=True):
            whole.grad = None if half.grad is None else half.grad.float()

    def give_weights(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self._halves, self._wholes)

    def state_dict(self) -> list[torch.Tensor]:
        return [master.detach() for master in self._wholes]

    def load_state_dict(self, state: Sequence[torch.Tensor] | None) -> None:
        """None, from a run without: the copies are made anew from the weights, which must have been restored before."""
        saved = self._halves if state is None else state
        if [tensor.shape for tensor in saved] != [master.shape for master in self._wholes]:
            raise StateError(
                "amp: its master weights had other shapes when saved. Build model and optimizer as they were."
            )
        with torch.no_grad():
            for master, tensor in zip(self._wholes, saved, strict=True):
                master.copy_(tensor)

    def renew(self) -> None:
        """Makes the copies anew, after the model has got other weights."""
        self.load_state_dict(None)
