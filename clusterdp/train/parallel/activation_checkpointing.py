"""Gradient checkpointing: activations are computed again in the backward pass, instead of kept since the forward pass.

    recompute(model, "Block")         # before DDP or FSDP

A step takes a fifth to a third more time, and needs the memory of one block's activations instead of all blocks'. The
results are bitwise the same: random numbers, such as dropout's, are repeated.
"""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import checked


@checked
def recompute(model: nn.Module, *units: str) -> nn.Module:
    """Adds gradient checkpointing, in place, to each module whose class has one of these names. Parameters keep their
    names."""
    found = set()
    for module in model.modules():
        if (name := type(module).__name__) in units:
            if any(isinstance(part, _BatchNorm) for part in module.modules()):
                raise ConfigError(
                    f"train.recompute: {name} has a BatchNorm in it, whose statistics would count each batch twice. "
                    "Name smaller modules."
                )
            module.forward = MethodType(_recomputed, module)
            found.add(name)
    if missing := set(units) - found:
        raise ConfigError(f"train.recompute: the model has no {min(missing)} in it. Name classes of its modules.")
    return model


def _recomputed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(partial(type(self).forward, self), *args, use_reentrant=False, **kwargs)
