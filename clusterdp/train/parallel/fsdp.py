"""FSDP2 (`fully_shard`) and its hybrid form: each rank keeps a part of the weights, gradients and optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from clusterdp.errors import ConfigError, TrainError
from clusterdp.train.parallel.same_model import broadcast_weights
from clusterdp.wording import some_of

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group

DTYPES = ("param_dtype", "reduce_dtype", "output_dtype")  # dtype arguments of torch's MixedPrecisionPolicy
OPTIONS = ("reshard_after_forward", *DTYPES, "cast_forward_inputs", "cpu_offload", "units", "shard_size")
STEPS_COMPARED = 2  # number of an attempt's first steps in which Lockstep compares the ranks
LAST_UNIT = ""  # this name stands for the end of the model


def shard(
    model: nn.Module, group: Group, options: Mapping[str, Any], *, hybrid: bool = False, look: bool = True
) -> nn.Module:
    """Shards a model in place, with rank 0's weights. Collective. Create the optimizer from the new parameters.

    One unit after the other is moved to the device, gets rank 0's weights and is sharded. Therefore the whole model
    need not fit on the device. Modules on the meta device are initialised by their reset_parameters().

    look: whether to check in the first steps that all ranks run the same parts of the model; see Lockstep.

    options: fully_shard's reshard_after_forward, MixedPrecisionPolicy's dtypes by name (`param_dtype: bfloat16`), and
        cpu_offload   true: parameters are kept in host memory
        units         classes of the modules that are gathered one at a time: [Block]; default: the elements of each
                      ModuleList. Only one unit is whole at a time, which saves memory.
        shard_size    hybrid: number of ranks that share one copy of the model; default: the ranks of a node
    """
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"train.fsdp.{name}: there is no such option. There are: {', '.join(OPTIONS)}.")
    arguments: dict[str, Any] = {"mesh": _mesh(group, options.get("shard_size"), hybrid)}
    if "reshard_after_forward" in options:
        arguments["reshard_after_forward"] = options["reshard_after_forward"]
    if options.get("cpu_offload"):
        arguments["offload_policy"] = CPUOffloadPolicy()
    policy: dict[str, Any] = {name: _dtype(name, options[name]) for name in DTYPES if name in options}
    if "cast_forward_inputs" in options:
        policy["cast_forward_inputs"] = options["cast_forward_inputs"]
    arguments["mp_policy"] = MixedPrecisionPolicy(**policy)
    for unit in (*_units(model, options.get("units")), model):
        _materialise(unit, group.device)
        broadcast_weights(unit)
        fully_shard(unit, **arguments)
    if look and group.rendezvous.world_size > 1:
        Lockstep(model, group)
    return model


def _materialise(unit: nn.Module, device: torch.device) -> None:
    """Moves the parameters and buffers that are not sharded yet to the device. Raises ConfigError for a tensor on the
    meta device whose module cannot initialise it."""
    made: dict[int, Any] = {}  # id of the old tensor -> the new tensor, so that tied parameters stay tied
    for name, module in unit.named_modules():
        meta = False
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                if tensor is None or isinstance(tensor, DTensor):
                    continue
                if tensor.is_meta:
                    meta = True
                    tensors[key] = made.setdefault(id(tensor), _empty_like(tensor, device))
                elif isinstance(tensor, nn.Parameter):
                    tensor.data = tensor.data.to(device)
                else:
                    tensors[key] = made.setdefault(id(tensor), tensor.to(device))
        if meta:
            reset: Any = getattr(module, "reset_parameters", None)
            if not callable(reset):
                where = f"{name or 'the model'} ({type(module).__name__})"
                raise ConfigError(
                    f"model: {where} is on the meta device and has no reset_parameters(), which would initialise it. "
                    "Write that method, or make the model on the CPU."
                )
            reset()


def _empty_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    empty = torch.empty_like(tensor, device=device)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


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
    return found[::-1]  # inner modules come before the modules around them


def _dtype(option: str, name: str) -> torch.dtype:
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"train.fsdp.{option}: torch has no dtype {name!r}. Write e.g. bfloat16.")
    return dtype


class Lockstep:
    """Compares the ranks' first forward passes with gradients. Collective. Raises TrainError on all ranks if the passes
    differ."""

    def __init__(self, model: nn.Module, group: Group):
        self._group = group
        self._left = STEPS_COMPARED
        self._looking = False
        self._names: dict[int, str] = {}  # id() -> name, for the parameters that are whole now
        self._handles = [model.register_forward_pre_hook(self._begin, prepend=True)]
        units = {name: module for name, module in model.named_modules() if _is_unit(module)}
        for name, unit in units.items():
            if unit is not model:
                self._handles.append(unit.register_forward_pre_hook(partial(self._enter, name), prepend=True))
            self._handles.append(unit.register_forward_hook(partial(self._note, name), prepend=True))
        self._handles.append(model.register_forward_hook(self._end))

    def _begin(self, model: nn.Module, inputs: Any) -> None:
        self._looking = torch.is_grad_enabled()

    def _enter(self, name: str, unit: nn.Module, inputs: Any) -> None:
        if self._looking:
            self._compare_units(name)

    def _note(self, prefix: str, unit: nn.Module, inputs: Any, outputs: Any) -> None:
        """Records the names of the whole parameters, before FSDP2 frees them again."""
        if self._looking:
            for name, parameter in unit.named_parameters(prefix):
                if not isinstance(parameter, DTensor):
                    self._names[id(parameter)] = name

    def _end(self, model: nn.Module, inputs: Any, outputs: Any) -> None:
        if not self._looking:
            return
        self._looking = False
        self._compare_units(LAST_UNIT)
        used = {self._names[key] for key in _leaves(outputs) if key in self._names}
        everyone = [set(names) for names in self._group.gather(sorted(used))]
        if any(names != everyone[0] for names in everyone):
            raise TrainError(_unlike(everyone))
        self._names.clear()
        self._left -= 1
        if not self._left:
            for handle in self._handles:
                handle.remove()

    def _compare_units(self, name: str) -> None:
        names = self._group.gather(name)
        if all(each == names[0] for each in names):
            return
        other = next(rank for rank, each in enumerate(names) if each != names[0])
        said = [f"rank {rank} runs {names[rank]}" if names[rank] else f"rank {rank} is done" for rank in (0, other)]
        raise TrainError(
            f"model: {said[0]} while {said[1]}, but what is sharded (FSDP2) runs on all ranks alike. Let all take the "
            "same way through the model; or use train.strategy: ddp."
        )


def _is_unit(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def _unlike(everyone: list[set[str]]) -> str:
    everything = set().union(*everyone)
    rank = next(rank for rank, names in enumerate(everyone) if names != everything)
    missing = sorted(everything - everyone[rank])
    return (
        f"model: on rank {rank} these parameters had no part in the outputs, and on another they had: "
        f"{some_of(missing)}. Sharded (FSDP2), all ranks train the same ones: use them everywhere, "
        "times 0 where they do not count; or train.strategy: ddp with train.ddp: {find_unused_parameters: true}."
    )


def _leaves(outputs: Any) -> Iterator[int]:
    """Yields the id() of each parameter that gets a gradient in the backward pass from these outputs."""
    waiting: list[Any] = [tensor.grad_fn for tensor in _tensors(outputs)]
    seen: set[Any] = {None}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            yield id(variable)
        waiting += [following for following, _ in node.next_functions]


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for part in tree.values():
            yield from _tensors(part)
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _tensors(part)
    elif hasattr(tree, "__dict__"):  # the outputs are attributes, as in a dataclass
        yield from _tensors(vars(tree))
