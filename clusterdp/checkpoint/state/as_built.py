"""Changes of the objects since the program built them. Some changes are in no state_dict(), or cannot be loaded back:
buffers that are not persistent, buffers of another size, requires_grad, parameter groups that were added to an
optimizer. Changes are saved beside the state:

    {module: {"from": {key: Description as built}, "buffers": {key: tensor}, "requires_grad": {name: bool}},
     optimizer: {"groups": [[[module, name of a parameter], ...], ...],   # added groups
                 "names": ...}}                                           # of all groups, see parameter_names.py

A change is put back only if the program builds the object as before. A changed program keeps its own version.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from clusterdp.checkpoint.format.checksum import checksum
from clusterdp.checkpoint.state.tree import Flattener, as_bytes, dtype_name, is_sharded, memory_of
from clusterdp.errors import StateError
from clusterdp.wording import some_of

_log = logging.getLogger("clusterdp.checkpoint")
# [dtype, shape] of a buffer; if the buffer is in no state_dict(), also its checksum. None: no buffer, or a buffer that
# is not saved.
Description = list[Any] | None
ABSENT: Description = []  # of a buffer that was registered later, such as in the first forward pass


@dataclass
class AsBuilt:
    """One object as the program built it, recorded when a Checkpointer first got the object."""

    buffers: dict[str, Description]
    requires_grad: dict[str, bool]
    groups: int
    warned: bool = False


_seen: WeakKeyDictionary[Any, AsBuilt] = WeakKeyDictionary()


def note(thing: Any) -> AsBuilt | None:
    """Records and returns how a module or an optimizer was built; None for other objects."""
    if not isinstance(thing, (torch.nn.Module, torch.optim.Optimizer)):
        return None
    if thing not in _seen:
        if isinstance(thing, torch.nn.Module):
            described = {key: _described(buffer, values=hidden) for key, buffer, hidden in buffers_of(thing)}
            flags = {name: parameter.requires_grad for name, parameter in thing.named_parameters()}
            _seen[thing] = AsBuilt(described, flags, 0)
        else:
            _seen[thing] = AsBuilt({}, {}, len(thing.param_groups))
    return _seen[thing]


def changes(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the changes of each object since it was built. Reads all buffers that are not persistent."""
    found = {name: _changes(name, thing, state) for name, thing in state.items()}
    return {name: {what: of for what, of in some.items() if of} for name, some in found.items() if any(some.values())}


def _changes(name: str, thing: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    built = note(thing)
    if built is None:
        return {}
    if isinstance(thing, torch.optim.Optimizer):
        return {"groups": _groups(name, thing, built, state)}
    came_from: dict[str, Description] = {}
    buffers: dict[str, torch.Tensor] = {}
    for key, buffer, hidden in buffers_of(thing):
        was, now = built.buffers.get(key, ABSENT), _described(buffer, values=hidden)
        if now is not None and now != was:
            if hidden:
                buffers[key] = buffer  # type: ignore[assignment]
            if hidden or not was or now[1] != was[1]:
                came_from[key] = was
    grown = [key for key, _ in thing.named_parameters() if key not in built.requires_grad]
    if grown and not built.warned:
        built.warned = True
        what = "training has added parameters (%s). A resume is refused unless they are added before it restores."
        _log.warning(f"%s: {what}", name, some_of(grown, 3))
    flags = {
        name: parameter.requires_grad
        for name, parameter in thing.named_parameters()
        if built.requires_grad.get(name, parameter.requires_grad) != parameter.requires_grad
    }
    return {"from": came_from, "buffers": buffers, "requires_grad": flags}


def _groups(name: str, optimizer: torch.optim.Optimizer, built: AsBuilt, state: Mapping[str, Any]) -> list[Any]:
    names = {id(parameter): [module, key] for module, key, parameter in parameters_of(state)}
    added = [[names.get(id(p)) for p in group["params"]] for group in optimizer.param_groups[built.groups :]]
    if any(None in group for group in added) and not built.warned:
        built.warned = True
        _log.warning(
            "%s: a group was added to it whose parameters are of no module in the state. An attempt that goes on from "
            "here must add it before it restores, or have the module in its state.",
            name,
        )
    return added


def add_groups(
    optimizer: torch.optim.Optimizer, saved: Any, changed: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    """Adds the parameter groups that were added during training, if the optimizer lacks them and all their parameters
    exist."""
    added, groups = changed.get("groups", []), saved.get("param_groups", [])  # none in a form of its own
    here, first = len(optimizer.param_groups), len(groups) - len(added)
    if here < first:
        return
    for group, places in zip(groups[here:], added[here - first :], strict=True):
        parameters = [_parameter(state, place) for place in places]
        if any(parameter is None for parameter in parameters):
            return
        names = group.get("param_names")
        given = parameters if names is None else [*zip(names, parameters, strict=True)]
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        optimizer.add_param_group({**options, "params": given})


def _parameter(state: Mapping[str, Any], place: Any) -> torch.nn.Parameter | None:
    if place is None or not isinstance(state.get(place[0]), torch.nn.Module):
        return None
    return dict(state[place[0]].named_parameters()).get(place[1])


def resized(thing: Any, changed: Mapping[str, Any]) -> set[str]:
    """Returns the keys of resized buffers that this program has built in the same way as the program that saved
    them."""
    built = note(thing)
    came_from = changed.get("from", {})
    return {key for key, was in came_from.items() if built is not None and built.buffers.get(key, ABSENT) == was}


def put_back(name: str, module: Any, changed: Mapping[str, Any]) -> Iterator[str]:
    """Puts back all changes except sizes of buffers. Yields a line for each change that is not put back."""
    if not changed:
        return
    parameters = dict(module.named_parameters())
    for key, flag in changed.get("requires_grad", {}).items():
        if key in parameters:
            parameters[key].requires_grad_(flag)
    same = resized(module, changed)
    for key, saved in changed.get("buffers", {}).items():
        if key in same:
            replace(module, key, saved, persistent=False)
        else:
            yield (
                f"{name}/{key}: training had changed this buffer, which is in no state_dict(), and the program builds "
                "another now"
            )


def replace(module: torch.nn.Module, key: str, saved: torch.Tensor, *, persistent: bool = True) -> None:
    """Replaces the values, shape and dtype of a buffer, or registers it."""
    owner, _, own = key.rpartition(".")
    part = module.get_submodule(owner)
    if own not in part._buffers:
        part.__dict__.pop(own, None)
        part.register_buffer(own, None, persistent)
    live = part._buffers[own]
    if live is not None and live.shape == saved.shape and live.dtype == saved.dtype:
        live.copy_(saved)
        return
    near = live if live is not None else next(module.parameters(), saved)
    part._buffers[own] = saved.detach().to(near.device, copy=True)


def parameters_of(state: Mapping[str, Any]) -> Iterator[tuple[str, str, torch.nn.Parameter]]:
    """Yields (name of the module, key, parameter)."""
    for name, thing in state.items():
        if isinstance(thing, torch.nn.Module):
            yield from ((name, key, parameter) for key, parameter in thing.named_parameters())


def buffers_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor | None, bool]]:
    """Yields (key, buffer, whether it is in no state_dict())."""
    for prefix, part in module.named_modules():
        for name, buffer in part._buffers.items():
            yield f"{prefix}.{name}" if prefix else name, buffer, name in part._non_persistent_buffers_set


def _described(buffer: torch.Tensor | None, *, values: bool) -> Description:
    """Returns the description of a buffer; None if there is no buffer, or if it cannot be saved."""
    if buffer is None or torch.nn.parameter.is_lazy(buffer) or is_sharded(buffer):
        return None
    with suppress(StateError):
        Flattener().flatten(buffer, "buffer")
        plain = [dtype_name(buffer), list(buffer.shape)]
        return [*plain, f"{checksum(memory_of(as_bytes(buffer.detach()).cpu())):016x}"] if values else plain
    return None
