"""Strategies: what becomes of a model so that many devices train it, chosen by one word of the config.

ddp     DistributedDataParallel: each rank has the whole model, and gradients are added up. The default.
fsdp    FSDP2: each rank has a part of everything, for models that are too big otherwise
hsdp    FSDP2 within each node, and copies of that on all nodes: less traffic between nodes
dp      torch's old DataParallel: one process, many GPUs. The last resort, where only one task can be had: it copies
        the model in each step, and Python's lock holds it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clusterdp.errors import ConfigError
from clusterdp.train import ddp, sameness

if TYPE_CHECKING:
    from clusterdp.train.group import Group

STRATEGIES = ("ddp", "fsdp", "hsdp", "dp")


def wrap(
    model: nn.Module,
    group: Group,
    strategy: str = "ddp",
    *,
    ddp_options: Mapping[str, Any] | None = None,
    comm_hook: str | None = None,
    powersgd: Mapping[str, Any] | None = None,
    fsdp_options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Collective. TrainError on all ranks if they do not have the same model. See ddp.wrap and fsdp.shard."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"train.strategy: {strategy!r} is none of {', '.join(STRATEGIES)}. Write one of them.")
    if strategy == "dp":
        return _data_parallel(model, group)
    sameness.check_same_model(model, group)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model  # DDP refuses what has nothing to train
    if strategy == "ddp":
        return ddp.wrap(model, ddp_options or {}, comm_hook, powersgd)
    from clusterdp.train.fsdp import shard

    if any(parameter.dtype == torch.float16 for parameter in model.parameters()):
        raise ConfigError(
            f"train.amp.level: weights in fp16 (O2, O3) go with strategy ddp, not {strategy}, whose shards are the "
            "master weights. Use level O1 or bf16, or train.fsdp: {param_dtype: bfloat16}."
        )
    return shard(model, group, fsdp_options or {}, hybrid=strategy == "hsdp")


def _data_parallel(model: nn.Module, group: Group) -> nn.Module:
    size = group.rendezvous.world_size
    if size > 1:
        raise ConfigError(f"train.strategy: dp is for one process, and there are {size}. Use ddp.")
    return nn.DataParallel(model)
