"""Starts from another program's checkpoint (foreign_formats), and finds the part that belongs to each object."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from clusterdp.checkpoint.load import foreign_formats
from clusterdp.checkpoint.state import as_built, stateful
from clusterdp.checkpoint.state.tree import cloned, is_sharded, key_of
from clusterdp.errors import StateError
from clusterdp.wording import some_of

_log = logging.getLogger("clusterdp.checkpoint")

# Names that programs use for each kind of object. The object's own name in the state is tried first.
NAMES = {
    "model": ("model", "model_state_dict", "state_dict", "module", "net", "network"),
    "optimizer": ("optimizer", "optimizer_state_dict", "optim", "optim_state_dict"),
    "scheduler": ("scheduler", "lr_scheduler", "scheduler_state_dict", "lr_scheduler_state_dict"),
    "scaler": ("scaler", "amp", "grad_scaler", "scaler_state_dict", "grad_scaler_state_dict", "amp_state_dict"),
}
_PART_OF_IT = (
    "Start with a part of the state, such as the weights alone, by naming it: only=['model'], or in a config "
    "checkpoint.start_only: [model]."
)
_STEPS = ("step", "global_step", "iteration", "iter")


@dataclass
class ForeignState:
    """`states`: object -> argument for its load_state_dict(). `values`: the plain values beside the states."""

    where: str
    states: dict[str, Any]
    values: dict[str, Any]

    @property
    def step(self) -> int:
        found = (self.values.get(name) for name in _STEPS)
        return next((step for step in found if type(step) is int and step >= 0), 0)


def prepare(where: str, state: Mapping[str, Any], only: Iterable[str] | None) -> ForeignState:
    """Reads the checkpoint without changing any object. Raises StateError, with the keys, if the checkpoint does not
    fit the objects."""
    wanted = None if only is None else tuple(only)
    unknown = [name for name in wanted or () if name not in state]
    if unknown:
        raise StateError(f"only: there is no {unknown[0]} in the state. It has: {', '.join(state)}.")
    tree = foreign_formats.read(where, _live(state))
    if not isinstance(tree, Mapping):
        raise StateError(f"{where}: it holds a {type(tree).__name__} and no dict. Save {{'model': ..., ...}}.")
    sources = _sources(where, tree, state, wanted)
    states: dict[str, Any] = {}
    for name, key in sources.items():
        try:
            states[name] = _fitted(name, state[name], tree if key is None else tree[key], state)
        except StateError as error:
            raise StateError(f"{where}: {error}") from error
    values = {str(key): value for key, value in tree.items() if type(value) in (bool, int, float, str)}
    return ForeignState(where, states, values)


def put_back(start: ForeignState, state: Mapping[str, Any]) -> None:
    for name, thing in stateful.modules_first(state):
        if name in start.states:
            try:
                stateful.load(name, thing, start.states[name])
            except StateError as error:
                raise StateError(f"{start.where}: {error}") from error
    stateful.renew(state, start.states)


def _sources(
    where: str, tree: Mapping[Any, Any], state: Mapping[str, Any], wanted: tuple[str, ...] | None
) -> dict[str, Any]:
    """Returns object -> key in the file. If the key is None, the file itself is the module's state_dict()."""
    kinds = {name: _kind(name, thing) for name, thing in state.items()}
    models = [name for name in wanted or state if kinds[name] == "model"]
    if tree and all(isinstance(value, torch.Tensor) for value in tree.values()):
        if len(models) != 1:
            raise StateError(f"{where}: it is the state of one module. Say of which with only=[name].")
        others = [name for name in wanted or state if name != models[0] and kinds[name] and state[name].state_dict()]
        if others:
            raise StateError(
                f"{where}: it is the state of one module, and has nothing for {', '.join(others)}. It holds: "
                f"{some_of([*map(str, tree)])}. {_PART_OF_IT}"
            )
        return {models[0]: None}
    found: dict[str, Any] = {}
    for name in wanted or state:
        kind = kinds[name]
        alone = list(kinds.values()).count(kind) == 1
        names = (name, *(NAMES[kind] if kind and alone else ()))
        key = next((key for key in names if isinstance(tree.get(key), Mapping)), None)
        if key is not None:
            found[name] = key
        elif wanted is not None or (kind is not None and state[name].state_dict()):  # {} for a disabled scaler
            raise StateError(f"{where}: has nothing for {name}. It holds: {some_of([*map(str, tree)])}. {_PART_OF_IT}")
    left = [str(key) for key, value in tree.items() if key not in found.values() and _has_tensors(value)]
    if left and wanted is None:
        raise StateError(
            f"{where}: the state has no object for {', '.join(left)}. Select parts, as in only=['model'], or add an "
            "object of that name to the state."
        )
    return found


def _kind(name: str, thing: Any) -> str | None:
    for kind, types in (
        ("model", torch.nn.Module),
        ("optimizer", torch.optim.Optimizer),
        ("scheduler", torch.optim.lr_scheduler.LRScheduler),
        ("scaler", torch.amp.GradScaler),
    ):
        if isinstance(thing, types):
            return kind
    return next((kind for kind, names in NAMES.items() if name in names), None)


def _has_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensors, value.values()))
    return isinstance(value, torch.Tensor) or (isinstance(value, (list, tuple)) and any(map(_has_tensors, value)))


def _live(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns the sharded tensors of this program, by all names that the file may use for them."""
    if not stateful.are_sharded(state):
        return {}
    from clusterdp.checkpoint.load import resharding

    found: dict[str, torch.Tensor] = {}
    for name, thing in stateful.shared(state).items():
        kind = _kind(name, thing)
        mine = resharding.live_tensors({name: thing})
        if kind == "optimizer":
            numbers = _numbers(thing, state)
            mine |= {key_of(name, "state", fqn): mine[key_of(name, "state", i)] for fqn, i in numbers.items()}
        for alias in (name, *(NAMES[kind] if kind else ())):
            found |= {f"{alias}/{key.partition('/')[2]}": tensor for key, tensor in mine.items()}
        if kind == "model":
            found |= {key.partition("/")[2]: tensor for key, tensor in mine.items()}
    return found


def _fitted(name: str, thing: Any, tree: Any, state: Mapping[str, Any]) -> Any:
    """Returns the tree in the form that load_state_dict() takes, cloned unless load_state_dict() copies it."""
    if isinstance(thing, torch.nn.Module):
        tree = _with_tied(_without_wrappers(tree, thing), thing)
    elif isinstance(thing, torch.optim.Optimizer):
        tree = _by_number(name, thing, tree, state)
    if stateful.are_sharded({name: thing}):
        from clusterdp.checkpoint.load import resharding

        return resharding.spread(tree, resharding.live_tensors({name: thing}), name)
    return tree if isinstance(thing, torch.nn.Module) else cloned(tree)


def _without_wrappers(tree: dict[str, Any], module: torch.nn.Module) -> dict[str, Any]:
    """Removes the prefixes that DistributedDataParallel, torch.compile and a LightningModule put before a key."""
    for prefix in ("module.", "_orig_mod.", "module."):
        if tree and all(str(key).startswith(prefix) for key in tree):
            consume_prefix_in_state_dict_if_present(tree, prefix)
    keys = module.state_dict().keys()
    first = next(iter(keys), "")
    for prefix in [str(key).removesuffix(first) for key in tree if str(key).endswith(f".{first}")]:
        if {f"{prefix}{key}" for key in keys} == tree.keys():
            consume_prefix_in_state_dict_if_present(tree, prefix)
            break
    return tree


def _with_tied(tree: dict[str, Any], module: torch.nn.Module) -> dict[str, Any]:
    """Adds the missing keys of tied weights: a safetensors file has tied weights once, under one of their names."""
    live = {key: value for key, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    places = {
        key: (value.data_ptr(), value.shape, value.stride()) for key, value in live.items() if not is_sharded(value)
    }
    there = {places[key]: key for key in tree if key in places and live[key].numel()}
    for key, place in places.items():
        if key not in tree and place in there:
            tree[key] = tree[there[place]]
    return tree


def _numbers(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of each parameter in the optimizer's state, by the parameter's name."""
    names = {id(parameter): key for _, key, parameter in as_built.parameters_of(state)}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {names[id(parameter)]: i for i, parameter in enumerate(parameters) if id(parameter) in names}


def _by_number(name: str, optimizer: torch.optim.Optimizer, tree: Any, state: Mapping[str, Any]) -> Any:
    """Numbers the parameters, as Optimizer.state_dict() does. In states of torch.distributed.checkpoint.state_dict,
    parameters have names."""
    groups = tree.get("param_groups")
    if not isinstance(groups, list) or "state" not in tree:
        raise StateError(f"{name}: it has no param_groups and state, as Optimizer.state_dict() has. Save that.")
    if not any(isinstance(key, str) for group in groups for key in group["params"]):
        # torch.distributed.checkpoint turns the parameters' numbers into strings.
        state_of = {int(key) if str(key).isdecimal() else key: value for key, value in tree["state"].items()}
        _check_known(name, state_of, {key for group in groups for key in group["params"]})
        return {**tree, "state": state_of}
    numbers = _numbers(optimizer, state)
    stateful.compare_keys(name, numbers, [key for group in groups for key in group["params"]])
    saved = {frozenset(group["params"]): group for group in groups}
    renumbered = []
    names = {number: fqn for fqn, number in numbers.items()}
    for group in optimizer.state_dict()["param_groups"]:
        same = saved.get(frozenset(names.get(number, "") for number in group["params"]))
        if same is None:
            raise StateError(f"{name}: its parameters are in other groups than those saved. Make the same groups.")
        renumbered.append({**same, "params": group["params"]})
    _check_known(name, tree["state"], numbers)
    return {"state": {numbers[fqn]: value for fqn, value in tree["state"].items()}, "param_groups": renumbered}


def _check_known(name: str, state: Mapping[Any, Any], parameters: Collection[Any]) -> None:
    """Raises StateError on state of unknown parameters, which Optimizer.load_state_dict() would keep silently."""
    strange = [str(key) for key in state if key not in parameters]
    if strange:
        raise StateError(f"{name}: state of parameters that its groups have not: {some_of(strange)}.")
