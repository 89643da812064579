"""Lockstep: checks that all ranks run the same parts of a sharded model, and train the same parameters.

FSDP2 gathers the weights of each unit before it runs, and adds up the gradients of those that had a part in the loss.
If a rank leaves out a layer, or does not use a parameter, the ranks exchange tensors that do not match: they hang, or
abort in the transport. So the first steps are checked before anything is gathered. Then the hooks are removed, and cost
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from clusterdp.errors import TrainError
from clusterdp.wording import some_of

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group

STEPS = 2  # that are looked at, in each attempt
END = ""  # the unit that comes after the last


class Lockstep:
    """Collective in the first forward passes that have gradients. TrainError on all ranks if they differ."""

    def __init__(self, model: nn.Module, group: Group):
        self._group = group
        self._left = STEPS
        self._looking = False
        self._names: dict[int, str] = {}  # of the parameters that are whole now, by their identity
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
        """Notes the names of the whole parameters, before FSDP2 frees them again."""
        if self._looking:
            for name, parameter in unit.named_parameters(prefix):
                if not isinstance(parameter, DTensor):
                    self._names[id(parameter)] = name

    def _end(self, model: nn.Module, inputs: Any, outputs: Any) -> None:
        if not self._looking:
            return
        self._looking = False
        self._compare_units(END)
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
    """The identity of each parameter that a gradient of these outputs goes to."""
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
    elif hasattr(tree, "__dict__"):  # a dataclass of outputs
        yield from _tensors(vars(tree))
