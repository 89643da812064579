"""Strategies: how a model is distributed over devices, chosen by `train.strategy` in the config.

ddp     DistributedDataParallel: each rank has the whole model, and gradients are averaged. The default. The gradients
        of a model without a forward() of its own, as a ModuleList of a GAN's parts, are averaged by GradientMean.
fsdp    FSDP2: each rank has a part of everything, for models that are too big otherwise
hsdp    FSDP2 within each node, with one copy of the model per node: less traffic between nodes
dp      torch's old DataParallel: one process, many GPUs. The last resort, if only one task is possible: it copies the
        model in each step, and Python's lock slows it down.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clusterdp.errors import ConfigError
from clusterdp.train.parallel import ddp, gradient_mean, same_model
from clusterdp.train.parallel.activation_checkpointing import recompute
from clusterdp.train.parallel.model_parallel import is_split
from clusterdp.train.parallel.syncbn import sync_batchnorm

if TYPE_CHECKING:
    from clusterdp.config.tree import TrainConfig
    from clusterdp.train.ranks.group import Group

STRATEGIES = ("ddp", "fsdp", "hsdp", "dp")
SHARDED = ("fsdp", "hsdp")


class Precision(Protocol):
    """The part of Amp that wrap() uses."""

    @property
    def is_scaled(self) -> bool: ...

    def cast(self, model: nn.Module) -> nn.Module: ...


def wrap(
    model: nn.Module,
    group: Group,
    train: TrainConfig,
    amp: Precision,
    options: Mapping[str, Any],
    *,
    share: bool = True,
) -> nn.Module:
    """Returns the model on its device (a split model stays on its devices), in its precision, with SyncBatchNorm,
    recomputation, strategy and torch.compile as set in `train`, applied in the order that works. Collective. A model
    that strategy shards may be on the CPU or on the meta device, and need not fit on one device.

    options: arguments of DistributedDataParallel; train.ddp overrides them. share: False leaves out DDP, for a single
    rank.
    """
    if train.comm_hook == "powersgd" and (train.on_nan == "skip" or amp.is_scaled):
        raise ddp.cannot_skip("train.on_nan: skip" if train.on_nan == "skip" else "the loss scale of train.amp")
    stays = is_split(model) or train.strategy in SHARDED
    model = amp.cast(model if stays else model.to(group.device))
    if train.sync_batchnorm:
        model = sync_batchnorm(model)
    if train.recompute:
        model = recompute(model, *train.recompute)
    options = {**options, **train.ddp}
    wrapped = distribute(model, group, train, options, share=share)
    if train.compile:
        if train.strategy == "ddp" and share and options.get("bucket_cap_mb", 25) < 1:
            raise ConfigError("train.ddp.bucket_cap_mb: torch.compile needs 1 or more in DDP. Leave it out.")
        # The model is compiled in place, inside DDP: torch.compile then divides the graph at DDP's buckets.
        for module in gradient_mean.called_modules(model):
            module.compile(**(train.compile if isinstance(train.compile, Mapping) else {}))
    return wrapped


def is_sharded(model: nn.Module) -> bool:
    """Returns whether FSDP2 has sharded the model. A sharded model must be called on all ranks together."""
    return next(_sharded_modules(model), None) is not None


def reshard(model: nn.Module) -> None:
    """Frees the weights that FSDP2 has gathered. Call reshard() before weights change, because FSDP2 may reuse the
    weights of the last forward pass."""
    for module in _sharded_modules(model):
        module.reshard()


def _sharded_modules(model: nn.Module) -> Iterator[Any]:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # importing torch.distributed.fsdp takes a second
    if fsdp is not None:
        yield from (module for module in model.modules() if isinstance(module, fsdp.FSDPModule))


def is_distributed(model: nn.Module) -> bool:
    """Returns whether the model, or a module in it, is in DDP or FSDP2 already."""
    return is_sharded(model) or any(isinstance(module, DistributedDataParallel) for module in model.modules())


def follow(optimizer: torch.optim.Optimizer, before: Mapping[str, nn.Parameter], model: nn.Module) -> None:
    """Gives the model's present parameters to an optimizer that was made before the model was sharded.

    before: the parameters before sharding, by name.
    """
    now = dict(model.named_parameters())
    new = {id(parameter): now[name] for name, parameter in before.items() if now[name] is not parameter}
    if new and optimizer.state:
        raise ConfigError("optimizer: has a state already, of weights that are sharded now. Make it after job.wrap().")
    for group in optimizer.param_groups:
        group["params"] = [new.get(id(parameter), parameter) for parameter in group["params"]]


def distribute(
    model: nn.Module, group: Group, train: TrainConfig, options: Mapping[str, Any], *, share: bool = True
) -> nn.Module:
    """Distributes the model by train.strategy. Collective. Raises TrainError on all ranks if the ranks' models
    differ."""
    strategy = train.strategy
    if strategy not in STRATEGIES:
        raise ConfigError(f"train.strategy: {strategy!r} is none of {', '.join(STRATEGIES)}. Write one of them.")
    if strategy == "dp":
        if (size := group.rendezvous.world_size) > 1:
            raise ConfigError(f"train.strategy: dp is for one process, and there are {size}. Use ddp.")
        return nn.DataParallel(model)
    same_model.check_same_model(model, group)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model.to(group.device)  # DDP refuses a model without trainable parameters
    if strategy == "ddp":
        if not share:
            return model
        if gradient_mean.has_forward(model):
            return ddp.wrap(model, options, train.comm_hook, train.powersgd)
        gradient_mean.refuse_hook(train.comm_hook)
        if train.exact == "any_ranks":
            raise ConfigError(
                "train.exact: any_ranks adds up gradients in DistributedDataParallel, which cannot wrap a model "
                "without a forward() of its own. Leave it out; or give the model a forward() that calls its parts."
            )
        ddp.check(options)
        gradient_mean.average(model, group, options)
        return model
    if any(parameter.dtype == torch.float16 for parameter in model.parameters()):
        raise ConfigError(
            f"train.amp.level: weights in fp16 (O2, O3) go with strategy ddp, not {strategy}, whose shards are the "
            "master weights. Use level O1 or bf16, or train.fsdp: {param_dtype: bfloat16}."
        )
    from clusterdp.train.parallel.fsdp import shard  # DTensor takes a second to load

    # No Lockstep for a compiled model, which would be compiled once more when Lockstep's hooks are removed.
    return shard(model, group, train.fsdp, hybrid=strategy == "hsdp", look=not train.compile)
