"""The objects whose state is saved: takes the state of each object, and puts it back exactly."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch

from clusterdp.checkpoint.state import as_built, parameter_names, plain_holders
from clusterdp.checkpoint.state.tree import Flattener, check_class, is_sharded, key_of
from clusterdp.errors import CheckpointError, StateError
from clusterdp.wording import some_of

NOT_RESTORED = "what each rank had for itself is not restored"
EXTRA_STATE = "_extra_state"  # torch's key for the argument of set_extra_state()


@runtime_checkable
class Stateful(Protocol):
    """An object that can be saved. All ranks have the same state, unless the object has the attribute
    `per_rank = True`."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


def check(state: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns the objects without wrappers; a plain dict or tensor is put into a holder. Raises StateError if an object
    cannot be saved."""
    state = {name: plain_holders.held(thing) for name, thing in state.items()}
    for name, thing in state.items():
        inner = thing.held if isinstance(thing, plain_holders.PerRank) else thing
        if not isinstance(name, str) or not name or isinstance(inner, type) or not isinstance(inner, Stateful):
            raise StateError(
                f"{name}: a {type(inner).__qualname__} has no state_dict() and load_state_dict(). "
                "Pass name -> object with both, such as a Module, an Optimizer, a scheduler or a sampler; a tensor; a "
                "random generator; or a dict of values, as in {'best': {'loss': 0.5}}, which a restore fills."
            )
    parameter_names.check_held(state)
    state = {name: unwrap(thing) for name, thing in state.items()}
    holders = [thing for thing in state.values() if isinstance(thing, plain_holders.MetricHolder)]
    metrics = {id(part) for holder in holders for part in holder.parts.values()}
    for name, thing in state.items():
        if isinstance(thing, plain_holders.HOLDERS) or _is_plain_optimizer(thing):
            Flattener(sharded=True).flatten(thing.state_dict(), name)  # before a run fails at its first save
        if isinstance(thing, torch.nn.Module):
            _check_tensors(name, thing)
            for path, part in thing.named_modules():
                if plain_holders.is_metric(part) and not all(part._persistent.values()) and id(part) not in metrics:
                    raise StateError(
                        f"{name}/{path}: the sums of a {type(part).__qualname__} are not in the model's state_dict(), "
                        f"and differ between ranks. Put it into the state by itself, too: '{path}': {name}.{path}."
                    )
    return state


def _is_plain_optimizer(thing: Any) -> bool:
    return getattr(type(thing), "state_dict", None) is torch.optim.Optimizer.state_dict


def _check_tensors(name: str, module: torch.nn.Module) -> None:
    """Raises StateError on tensors of a subclass, such as quantised weights, before a run fails at its first save."""
    for key, tensor in module.state_dict().items():
        if isinstance(tensor, torch.Tensor) and not (is_sharded(tensor) or torch.nn.parameter.is_lazy(tensor)):
            check_class(tensor, key_of(name, key))


def unwrap(thing: Any) -> Any:
    """Returns the module inside DistributedDataParallel and torch.compile, which has the user's own names."""
    while isinstance(thing, torch.nn.Module):
        if isinstance(thing, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            thing = thing.module
        elif isinstance(inner := getattr(thing, "_orig_mod", None), torch.nn.Module):
            thing = inner
        else:
            break
    return thing


def is_per_rank(thing: Any) -> bool:
    return getattr(thing, "per_rank", False) is True


def remedy(keys: Iterable[str]) -> str:
    """Returns what to do about state at these keys that differs between ranks."""
    names = dict.fromkeys(key.partition("/")[0] for key in keys)
    own = ", ".join(f"'{name}': job.per_rank({name})" for name in names)
    return f"Make it equal, as job.mean(x) does with a number or tensor, or save each rank's own: {{{own}}}."


def shared(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the objects whose state is equal on all ranks."""
    return {name: thing for name, thing in state.items() if not is_per_rank(thing)}


def are_sharded(state: Mapping[str, Any]) -> bool:
    """Returns whether an object has DTensors as parameters, which FSDP2 makes."""
    return any(is_sharded(tensor) for thing in state.values() for tensor in _tensors(thing))


def _tensors(thing: Any) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.nn.Module):
        yield from thing.parameters()
    elif isinstance(thing, torch.optim.Optimizer):
        yield from (parameter for group in thing.param_groups for parameter in group["params"])


def live_tensors(name: str, thing: Any) -> Mapping[str, torch.Tensor]:
    """Returns the tensors, by their names in a checkpoint, that may be overwritten before load_state_dict() is called
    with the same tensors. torch's own load_state_dict() accepts this. An object with another load_state_dict() has no
    such tensors, because it may read old values or use other names."""
    if isinstance(thing, torch.nn.Module):
        plain = type(thing).load_state_dict is torch.nn.Module.load_state_dict and all(
            map(_loads_plainly, thing.modules())
        )
        hidden = {
            key for key, _, hidden in as_built.buffers_of(thing) if hidden
        }  # load_state_dict() does not fill these tensors
        tensors = chain(
            thing.named_parameters(remove_duplicate=False),
            (item for item in thing.named_buffers(remove_duplicate=False) if item[0] not in hidden),
        )
        return {key_of(name, key): tensor for key, tensor in tensors} if plain else {}
    if isinstance(thing, torch.optim.Optimizer) and _loads_as_torch(thing):
        flattener = Flattener()
        with suppress(StateError):
            flattener.flatten(thing.state_dict(), name)
        return flattener.tensors
    return {}


def on_gpu(optimizer: torch.optim.Optimizer) -> bool:
    return any(tensor.is_cuda for tensor in _tensors(optimizer))


def clone_on_cpu(optimizer: torch.optim.Optimizer) -> None:
    """Copies the optimizer's tensors on the CPU, so that they have their own memory."""
    for state in optimizer.state.values():
        state |= {key: _cpu_cloned(value) for key, value in state.items()}


def _cpu_cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.is_cuda or is_sharded(value) else value.clone()
    if type(value) in (dict, list, tuple):
        items = [*map(_cpu_cloned, value.values() if isinstance(value, dict) else value)]
        return dict(zip(value, items, strict=True)) if isinstance(value, dict) else type(value)(items)
    return value


def _loads_as_torch(optimizer: torch.optim.Optimizer) -> bool:
    plain = type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict
    return plain and not optimizer._optimizer_load_state_dict_pre_hooks


def gpus_of_state(name: str, thing: Any, saved: Iterable[str]) -> dict[str, torch.device]:
    """Returns the devices on which an optimizer will keep the saved tensors of these names, if its parameters are on
    GPUs. Step counts stay on the CPU, unless the optimizer is capturable or fused: on the GPU, each step would wait for
    the GPU."""
    if not isinstance(thing, torch.optim.Optimizer) or not _loads_as_torch(thing) or not on_gpu(thing):
        return {}
    found: dict[str, torch.device] = {}
    groups = [(parameter, group) for group in thing.param_groups for parameter in group["params"]]
    prefix = key_of(name, "state") + "/"
    for place in saved:
        number, _, key = place.removeprefix(prefix).partition("/")
        if place.startswith(prefix) and number.isdigit() and int(number) < len(groups):
            parameter, group = groups[int(number)]
            moves = key != "step" or group.get("capturable") or group.get("fused")
            found[place] = parameter.device if moves else torch.device("cpu")
    return found


def with_a_loading_of_its_own(module: torch.nn.Module) -> set[str]:
    """Returns the paths of submodules that may keep references to the tensors that they load."""
    return {path for path, part in module.named_modules() if not _loads_plainly(part)}


def _loads_plainly(part: torch.nn.Module) -> bool:
    ours = type(part)._load_from_state_dict is torch.nn.Module._load_from_state_dict
    return not part._load_state_dict_pre_hooks and (ours or type(part).__module__.startswith("torch.nn."))


@contextmanager
def as_trained(state: Mapping[str, Any]) -> Iterator[None]:
    """Take a state within this with block. An object may have put values into another object for a while, such as
    averages into a model. The object's context manager `as_trained` removes these values within the block."""
    with ExitStack() as stack:
        for thing in state.values():
            if callable(of_its_own := getattr(thing, "as_trained", None)):
                stack.enter_context(of_its_own())
        yield


def modules_first(state: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the objects in load order: modules first, because other objects may have to copy their weights again."""
    return sorted(state.items(), key=lambda item: not isinstance(item[1], torch.nn.Module))


def renew(state: Mapping[str, Any], restored: Collection[str]) -> None:
    """Calls renew() of objects that were not restored, because averages, for example, still hold copies of the old
    weights. renew() is called twice, because averages may be computed from other copies, which come later in the
    state."""
    left = [thing for name, thing in state.items() if name not in restored]
    for thing in left * 2:
        if callable(again := getattr(thing, "renew", None)):
            again()


def compare(name: str, thing: Any, state: Any, resized: Collection[str] = ()) -> None:
    """Raises StateError if a module's saved state does not fit the module. Other objects are checked only by load().
    resized: keys of buffers that get their saved size later."""
    if isinstance(thing, torch.nn.Module):
        with _explained(name, thing):
            _check_module(name, thing, {key: value for key, value in state.items() if key not in resized}, resized)


def load(name: str, thing: Any, state: Any) -> None:
    """Loads the saved state into the object. Raises StateError if the state does not fit, with the keys that are
    missing or left over."""
    thing = thing.held if isinstance(thing, plain_holders.PerRank) else thing
    compare(name, thing, state)
    with _explained(name, thing):
        groups = list(thing.param_groups) if isinstance(thing, torch.optim.Optimizer) else []
        before = [dict(group) for group in groups]
        thing.load_state_dict(state)
        if isinstance(thing, torch.optim.Optimizer):
            _restore_dtypes(thing, state)
            _restore_hyperparameters(thing, before)
            for i, (group, live) in enumerate(zip(thing.param_groups, groups, strict=False)):
                if group is not live:  # the program may hold a group by another name, to set its lr
                    live.clear()
                    live.update(group)
                    thing.param_groups[i] = live
        elif isinstance(thing, torch.amp.GradScaler) and bool(thing.state_dict()) != bool(state):
            # A disabled scaler accepts any state, and ignores it.
            raise StateError(f"{name}: AMP is switched off here, and was on when this was saved. Set it as it was.")


@contextmanager
def _explained(name: str, thing: Any) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, (RuntimeError, ValueError)) else f"{type(error).__name__}: {error}"
        raise StateError(
            f"{name}: {type(thing).__qualname__}.load_state_dict() failed: {what}. "
            "Build the object as it was when the checkpoint was saved."
        ) from error


def _check_module(name: str, module: torch.nn.Module, state: Mapping[str, Any], resized: Collection[str]) -> None:
    live = {key: value for key, value in module.state_dict().items() if key not in resized}
    different = [
        f"{key} ({tuple(state[key].shape)} in the checkpoint, {tuple(live[key].shape)} here)"
        for key in live.keys() & state.keys()
        if isinstance(live[key], torch.Tensor) and isinstance(state[key], torch.Tensor)
        # A lazy module has no shapes yet, and accepts any shape.
        if not torch.nn.parameter.is_lazy(live[key])
        and live[key].shape != state[key].shape
        and key.rpartition(".")[2] != EXTRA_STATE  # the shape of extra state may change
    ]
    # A hook may rename keys of an older version of the module. Modules with such hooks are checked only by torch's own
    # strict loading.
    hooked = any(part._load_state_dict_pre_hooks for part in module.modules())
    compare_keys(name, () if hooked else live, () if hooked else state, different)


def compare_keys(name: str, here: Any, saved: Any, different: list[str] | None = None) -> None:
    """Raises StateError, with the keys, if a key is missing or left over."""
    parts = []
    for what, keys in (
        ("not in the checkpoint", set(here) - set(saved)),
        ("only in the checkpoint", set(saved) - set(here)),
        ("of another shape", different or []),
    ):
        if keys:
            parts.append(f"{what}: {some_of(sorted(map(str, keys)))}")
    if parts:
        raise StateError(f"{name}: its keys do not fit; {'; '.join(parts)}. Restore into what was saved.")


def _restore_dtypes(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Restores the saved types. Optimizer.load_state_dict() casts tensors to the parameter's dtype, also in lists and
    dicts, so that fp32 moments of bf16 weights, and integers, would lose bits. It also turns a str into a generator.
    State in a form of the optimizer's own is left as its load_state_dict() made it."""
    if not {"state", "param_groups"} <= state.keys():
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    made: dict[int, torch.Tensor] = {}
    for number, parameter in zip(numbers, parameters, strict=True):
        live = optimizer.state[parameter] if number in state["state"] else {}
        for key in live.keys() & state["state"].get(number, {}):
            live[key] = _as_saved(state["state"][number][key], live[key], made)


def _restore_hyperparameters(optimizer: torch.optim.Optimizer, before: list[dict[str, Any]]) -> None:
    """Copies saved hyperparameters into the live tensors. Optimizer.load_state_dict() replaces live tensors by the
    saved ones, but a compiled or captured step reads the live tensor, such as an lr on the GPU, and would continue with
    the old value."""
    for group, live in zip(optimizer.param_groups, before, strict=False):
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                was = live.get(key)
                if isinstance(was, torch.Tensor) and was.shape == value.shape:
                    with torch.no_grad():
                        group[key] = was.copy_(value)
                else:
                    group[key] = value.clone()  # a clone, because a view would keep the whole buffer alive


def _as_saved(saved: Any, live: Any, made: dict[int, torch.Tensor]) -> Any:
    """Returns `live` with the types of `saved`. made: id of a saved tensor -> the tensor's copy, so that tied tensors
    stay tied."""
    if isinstance(saved, torch.Tensor) and isinstance(live, torch.Tensor):
        if saved.dtype == live.dtype:
            return live
        return made.setdefault(id(saved), saved.to(live.device, copy=True))
    if isinstance(saved, dict) and isinstance(live, dict) and saved.keys() == live.keys():
        return type(saved)({key: _as_saved(item, live[key], made) for key, item in saved.items()})
    if type(saved) in (list, tuple) and type(live) is type(saved) and len(live) == len(saved):
        return type(saved)([_as_saved(*pair, made) for pair in zip(saved, live, strict=True)])
    return saved if type(saved) is str else live
