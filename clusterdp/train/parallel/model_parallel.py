"""A model whose parts lie on several devices of one rank, because it does not fit on one.

    model = ModelParallel(front, back, devices=job.devices)     # a chain; resources.gpus_per_task: 2
    place(model, {"encoder": job.devices[0], "decoder": job.devices[-1]})   # any other model, by its submodules
    model = job.wrap(model)                             # DDP averages the gradients of each part, on its device

While one part computes, the others wait: this saves memory, not time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import checked, checked_class


@checked_class
class ModelParallel(nn.Sequential):
    """Runs the parts of a model one after the other, each on its own device. The output of a part is moved to the next
    part's device.

    devices: a device for each part; if there are fewer devices, neighbouring parts share one. The result is on the last
    part's device, and the labels must be on that device, too.
    """

    def __init__(self, *parts: nn.Module, devices: Sequence[torch.device | str]):
        if not 0 < len(devices) <= len(parts):
            raise ConfigError(f"split: {len(parts)} parts on {len(devices)} devices. Give each device a part at least.")
        super().__init__(*parts)
        self.devices = [torch.device(devices[i * len(devices) // len(parts)]) for i in range(len(parts))]
        for part, device in zip(self, self.devices, strict=True):
            part.to(device)

    def forward(self, x: Any) -> Any:
        for part, device in zip(self, self.devices, strict=True):
            x = part(x.to(device, non_blocking=True))
        return x


@checked
def place(model: nn.Module, devices: Mapping[str, torch.device | str]) -> nn.Module:
    """Moves submodules to devices, for a model that is no chain: with skip connections, several inputs, or an encoder
    and a decoder. Before each call of such a submodule, its arguments are moved to its device; forward() stays as it
    is, as long as it calls the submodules themselves. Returns the model.

    devices: name of a submodule, as in named_modules() -> device. Raises ConfigError if a parameter or buffer lies in
    none of the submodules, or in two.
    """
    for name, _ in chain(model.named_parameters(), model.named_buffers()):
        holders = [part for part in devices if f"{name}.".startswith(f"{part}.")]
        if len(holders) != 1:
            found = f"is in {' and in '.join(holders)}" if holders else f"is in none of {', '.join(devices)}"
            raise ConfigError(f"place: {name} {found}. Name submodules that have each parameter and buffer once.")
    for part, device in devices.items():
        module = model.get_submodule(part).to(device)
        move = partial(tree_map_only, torch.Tensor, partial(torch.Tensor.to, device=device, non_blocking=True))
        module.register_forward_pre_hook(lambda _, args, named, move=move: (move(args), move(named)), with_kwargs=True)
    return model


def is_split(model: nn.Module) -> bool:
    """Returns whether the model's parameters are already on several devices."""
    return len({parameter.device for parameter in model.parameters()}) > 1


@checked
def in_parts(layers: nn.Sequential, parts: int) -> list[nn.Sequential]:
    """Groups neighbouring layers so that the largest part, in bytes of its parameters, is as small as possible."""
    if not 0 < parts <= len(layers):
        raise ConfigError(f"split: {len(layers)} layers do not make {parts} parts. Use fewer.")
    ends = _ends([sum(p.numel() * p.element_size() for p in layer.parameters()) for layer in layers], parts)
    return [nn.Sequential(*list(layers)[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def _ends(sizes: Sequence[int], parts: int) -> list[int]:
    """Returns the ends of the parts. best[i]: (size of the largest part, ends of the parts) for the first i layers."""
    best: list[tuple[int, list[int]]] = [(sum(sizes[:i]), [i]) for i in range(len(sizes) + 1)]
    for part in range(2, parts + 1):
        best = [
            min(
                ((max(best[j][0], sum(sizes[j:i])), [*best[j][1], i]) for j in range(part - 1, i)),
                default=(0, []),  # there are fewer layers than parts
            )
            for i in range(len(sizes) + 1)
        ]
    return best[-1][1]
