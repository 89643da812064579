"""Checks that all ranks have built the same model, before a rank waits for a tensor that another rank lacks."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch
from torch import nn

from clusterdp.checkpoint.state.tree import is_sharded
from clusterdp.errors import TrainError
from clusterdp.wording import some_of

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group


def check_same_model(model: nn.Module, group: Group) -> None:
    """Raises TrainError on all ranks, with names, if the names, shapes or types of parameters or buffers differ.

    Collective. The values may differ: all ranks begin with rank 0's values.
    """
    here = _description(model)
    number = int.from_bytes(hashlib.blake2b(json.dumps(here).encode(), digest_size=7).digest(), "big")
    most, least = group.agree(number, -number)
    if most == -least:
        return
    raise TrainError(_difference(group.gather(here)))


def broadcast_weights(model: nn.Module) -> None:
    """Gives all ranks rank 0's weights, except sharded weights. Collective. DDP copies weights itself; FSDP2 does not,
    and the ranks' seeds differ."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if not is_sharded(tensor):
                torch.distributed.broadcast(tensor, src=0)


def _description(model: nn.Module) -> dict[str, str]:
    # The dict's order is compared, too: DDP pairs parameters by their order, not by their names.
    found = {name: f"{_text(p)}{'' if p.requires_grad else ' frozen'}" for name, p in model.named_parameters()}
    return found | {name: _text(buffer) for name, buffer in model.named_buffers()}


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _difference(models: list[dict[str, str]]) -> str:
    """Describes the difference between rank 0's model and the first other model that differs."""
    rank = next(rank for rank, model in enumerate(models) if [*model.items()] != [*models[0].items()])
    first, other = models[0], models[rank]
    parts = [
        f"{name} is {first.get(name, 'missing')} on rank 0 and {other.get(name, 'missing')} on rank {rank}"
        for name in (*first, *(name for name in other if name not in first))
        if first.get(name) != other.get(name)
    ]
    if not parts:
        parts = [f"the same tensors come in another order on rank {rank} than on rank 0"]
    return (
        f"model: it is not the same on all ranks: {some_of(parts, separator=';')}. "
        "Build it from what all ranks have alike: not from their own data, their rank or random numbers."
    )
