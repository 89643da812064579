"""The names of the parameters in an optimizer's groups. An optimizer's state numbers its parameters, and the next
attempt may number them differently: the order in a set of names, for example, depends on PYTHONHASHSEED.

An object with `param_groups` counts as an optimizer. A parameter's name is its module's name in the state and its own
name: `model/head.weight`. If an optimizer steps a copy instead of a parameter, the copy's attribute `master_of` is the
parameter."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import torch

from clusterdp.checkpoint.state import as_built
from clusterdp.checkpoint.state.plain_holders import TensorHolder
from clusterdp.checkpoint.state.tree import is_sharded, key_of
from clusterdp.errors import StateError
from clusterdp.wording import counted, some_of

_log = logging.getLogger("clusterdp.checkpoint")
Names = list[list[str | None]]  # parameter names by group; None: the parameter is in no module of the state
IN_ORDER = "Make its groups in the order of model.named_parameters(): a set of names has another order in each process."


def parameters_in(thing: Any) -> list[list[torch.Tensor]] | None:
    """Returns the parameters of each group; None if `thing` has no groups of parameters."""
    groups = getattr(thing, "param_groups", None)
    if isinstance(thing, torch.nn.Module) or not isinstance(groups, (list, tuple)):
        return None
    if not all(isinstance(group, dict) and isinstance(group.get("params"), (list, tuple)) for group in groups):
        return None
    return [[*group["params"]] for group in groups]


def recorded(state: Mapping[str, Any]) -> dict[str, Names]:
    """Returns the parameter names of each optimizer in the state, if it holds a parameter with a name."""
    grouped = {name: groups for name, thing in state.items() if (groups := parameters_in(thing)) is not None}
    if not grouped:
        return {}
    known: dict[int, str] = {}
    for module, key, parameter in as_built.parameters_of(state):
        known.setdefault(id(parameter), key_of(module, key))
    known |= {id(thing.held): key_of(name) for name, thing in state.items() if isinstance(thing, TensorHolder)}
    named = {
        name: [[known.get(id(getattr(parameter, "master_of", parameter))) for parameter in group] for group in groups]
        for name, groups in grouped.items()
    }
    return {name: names for name, names in named.items() if any(chain(*names))}


def check_held(state: Mapping[str, Any]) -> None:
    """Raises StateError if the state has modules to train and no optimizer in the state holds a parameter of them.

    Parameters with another dtype or in the same memory count as copies of the modules' parameters.
    """
    mine = [parameter for _, _, parameter in as_built.parameters_of(state) if parameter.requires_grad]
    grouped = {name: [*chain(*groups)] for name, thing in state.items() if (groups := parameters_in(thing))}
    held = [*chain(*grouped.values())]
    known = {id(parameter) for _, _, parameter in as_built.parameters_of(state)}
    if not mine or not held or any(id(getattr(parameter, "master_of", parameter)) in known for parameter in held):
        return
    if {parameter.dtype for parameter in held}.isdisjoint({parameter.dtype for parameter in mine}):
        return
    if not any(map(is_sharded, [*held, *mine])):
        memory = {parameter.untyped_storage().data_ptr() for parameter in mine} - {0}
        if any(parameter.untyped_storage().data_ptr() in memory for parameter in held):
            return
    modules = [name for name, thing in state.items() if isinstance(thing, torch.nn.Module)]
    name, parameters = next(iter(grouped.items()))
    raise StateError(
        f"{name}: none of its {counted(len(parameters), 'parameter')} belongs to {' or '.join(modules)}, so it would "
        f"not train that. Make it from {modules[0]}.parameters(), once the model is wrapped; freeze a model that is "
        "not trained with requires_grad_(False)."
    )


def numbers(name: str, saved: Names | None, state: Mapping[str, Any]) -> list[int] | None:
    """Returns for each parameter, in order, its number in the saved state; None if all numbers are the same. Raises
    StateError if a parameter is not in the same group as before. A name that exists only before or only now comes from
    a changed program, and is matched with the name at the same place on the other side.
    """
    here = recorded({**state}).get(name) if saved else None
    if not here or not saved or here == saved:
        return None
    pairs = [*zip_longest(chain(*saved), chain(*here))]
    moved = {was for was, now in pairs if was != now and was is not None} & {now for was, now in pairs if was != now}
    if not moved:
        return None
    found, first, empty = list[int](), 0, list[str | None]()
    for i, (was, now) in enumerate(zip_longest(saved, here, fillvalue=empty)):
        if len({*was}) != len(was) or {*was} != {*now}:
            names = some_of(sorted(moved & ({*was} ^ {*now}) or moved, key=str), 4)
            raise StateError(
                f"{name}: its group {i} has other parameters than when this was saved: {names}. {IN_ORDER}"
            )
        found += [first + was.index(parameter) for parameter in now]
        first += len(was)
    return found


def by_name(name: str, thing: Any, given: Any, saved: Names | None, state: Mapping[str, Any]) -> Any:
    """Returns the optimizer's saved state with this program's numbers. Raises StateError if the parameters cannot be
    numbered."""
    order = numbers(name, saved, state)
    if order is None:
        return given
    if not _counts_plainly(thing, given, order):
        raise StateError(
            f"{name}: its parameters come in another order than when this was saved: {_moved(saved, state, name)}. "
            f"{IN_ORDER}"
        )
    _log.warning(
        "%s: its parameters come in another order than when it was saved (%s). Each has its own state again, by name; "
        "sums over all of them, such as the norm of their gradients, may differ in the last bits.",
        name,
        _moved(saved, state, name),
    )
    groups, places = [], iter(order)
    for group in given["param_groups"]:
        mine = [next(places) for _ in group["params"]]
        old = dict(zip(group["params"], group.get("param_names", ()), strict=False))
        groups.append({**group, **({"param_names": [old[number] for number in mine]} if old else {})})
    here = {number: i for i, number in enumerate(order)}
    return {**given, "state": {here[number]: of for number, of in given["state"].items()}, "param_groups": groups}


def _counts_plainly(thing: Any, given: Any, order: Sequence[int]) -> bool:
    """Returns whether the state has torch's form, with separate state for each parameter."""
    if not isinstance(given, dict) or not {"state", "param_groups"} <= given.keys():
        return False
    counted = [*chain(*(group.get("params", ()) for group in given["param_groups"]))]
    # LBFGS keeps one state for all parameters, which depends on the order of the parameters.
    return (
        not isinstance(thing, torch.optim.LBFGS) and counted == [*range(len(order))] and {*given["state"]} <= {*order}
    )


def _moved(saved: Names | None, state: Mapping[str, Any], name: str) -> str:
    pairs = zip(chain(*(saved or [])), chain(*recorded(state)[name]), strict=True)
    return some_of([f"{now} was {was}" for was, now in pairs if was != now], 2)
