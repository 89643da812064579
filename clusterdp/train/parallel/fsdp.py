"""FSDP2 (`fully_shard`) and its hybrid form: each rank keeps a part of the weights, gradients and optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from clusterdp.errors import ConfigError
from clusterdp.train.parallel.lockstep import Lockstep
from clusterdp.train.parallel.same_model import broadcast_weights

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group

DTYPES = ("param_dtype", "reduce_dtype", "output_dtype")  # MixedPrecisionPolicy's
OPTIONS = ("reshard_after_forward", *DTYPES, "cast_forward_inputs", "cpu_offload", "units", "shard_size")


def shard(
    model: nn.Module, group: Group, options: Mapping[str, Any], *, hybrid: bool = False, look: bool = True
) -> nn.Module:
    """Collective, in place, with rank 0's weights. The optimizer is made afterwards, of what the parameters are then.

    look: in the first steps, whether all ranks run the same parts of it; see Lockstep.

    options: fully_shard's reshard_after_forward, MixedPrecisionPolicy's dtypes by name (`param_dtype: bfloat16`), and
        cpu_offload   true: parameters wait in host memory
        units         classes of the modules that are gathered one at a time: [Block]; default: the elements of each
                      ModuleList. Only one of them is whole at a time, which is what saves memory.
        shard_size    hybrid: so many ranks share a model, and the others have copies of it; default: those of a node
    """
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"train.fsdp.{name}: there is no such option. There are: {', '.join(OPTIONS)}.")
    broadcast_weights(model)
    arguments: dict[str, Any] = {"mesh": _mesh(group, options.get("shard_size"), hybrid)}
    if "reshard_after_forward" in options:
        arguments["reshard_after_forward"] = options["reshard_after_forward"]
    if options.get("cpu_offload"):
        arguments["offload_policy"] = CPUOffloadPolicy()
    policy: dict[str, Any] = {name: _dtype(name, options[name]) for name in DTYPES if name in options}
    if "cast_forward_inputs" in options:
        policy["cast_forward_inputs"] = options["cast_forward_inputs"]
    arguments["mp_policy"] = MixedPrecisionPolicy(**policy)
    for unit in _units(model, options.get("units")):
        fully_shard(unit, **arguments)
    fully_shard(model, **arguments)
    if look and group.rendezvous.world_size > 1:
        Lockstep(model, group)
    return model


def _mesh(group: Group, shard_size: int | None, hybrid: bool) -> DeviceMesh:
    world, kind = group.rendezvous.world_size, group.device.type
    if not hybrid:
        if shard_size is not None:
            raise ConfigError("train.fsdp.shard_size: is for strategy: hsdp. Write that, or leave it out.")
        return init_device_mesh(kind, (world,), mesh_dim_names=("shard",))
    size = shard_size or group.rendezvous.local_world_size
    if size < 1 or world % size:
        raise ConfigError(f"train.fsdp.shard_size: {size} does not divide {world} ranks. Write a divisor of {world}.")
    return init_device_mesh(kind, (world // size, size), mesh_dim_names=("replicate", "shard"))


def _units(model: nn.Module, names: list[str] | None) -> list[nn.Module]:
    if names is None:
        return [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
    found = [module for module in model.modules() if type(module).__name__ in names and module is not model]
    if missing := set(names) - {type(module).__name__ for module in found}:
        raise ConfigError(f"train.fsdp.units: the model has no {min(missing)} in it. Name classes of its modules.")
    return found[::-1]  # what is inside another one comes first


def _dtype(option: str, name: str) -> torch.dtype:
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"train.fsdp.{option}: torch has no dtype {name!r}. Write e.g. bfloat16.")
    return dtype
