"""StateSnapshot: the state of all ranks at one moment, taken apart, and checked to be equal on all ranks."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from clusterdp.checkpoint.format.layout import FlatLayout
from clusterdp.checkpoint.state import (
    as_built,
    machine,
    module_buffers,
    parameter_names,
    plain_holders,
    rng,
    stateful,
)
from clusterdp.checkpoint.state.rank_group import RankGroup, tried
from clusterdp.checkpoint.state.tree import Flattener, as_bytes, dtype_name, is_sharded, key_of
from clusterdp.errors import StateError


@dataclass
class StatePart:
    """A tree that is taken apart into a skeleton and tensors."""

    skeleton: Any
    tensors: dict[str, torch.Tensor]  # the live tensors, not copies
    layout: FlatLayout  # the tensors' places in a flat buffer
    strides: dict[str, tuple[int, ...]]  # strides of tensors that are not row-major; rank 0's are saved
    changed: Any = None  # skeleton of the changes since the build, which are not in the tree (as_built.py)

    @property
    def sharded(self) -> bool:
        return any(map(is_sharded, self.tensors.values()))

    @classmethod
    def of(
        cls, trees: Mapping[str, Any], changed: Mapping[str, Any] | None = None, *, sharded: bool = False
    ) -> StatePart:
        """Takes trees apart. sharded: whether the trees may hold DTensors, which are recorded with their whole
        shape."""
        flattener = Flattener(sharded=sharded)
        skeleton = {name: flattener.flatten(tree, name) for name, tree in trees.items()}
        beside = {
            name: {
                what: flattener.flatten(of, *((name,) if what == "buffers" else (name, what)))
                for what, of in some.items()
            }
            for name, some in (changed or {}).items()
        }
        tensors = flattener.tensors
        layout = FlatLayout.of({name: (dtype_name(tensor), tuple(tensor.shape)) for name, tensor in tensors.items()})
        return cls(skeleton, tensors, layout, flattener.strides, beside)

    def also(self, name: str, tree: Any) -> StatePart:
        """Returns this part with one more tree."""
        more = StatePart.of({name: tree})
        tensors = {**self.tensors, **more.tensors}
        layout = FlatLayout.of({name: (dtype_name(tensor), tuple(tensor.shape)) for name, tensor in tensors.items()})
        return StatePart({**self.skeleton, **more.skeleton}, tensors, layout, {**self.strides, **more.strides})


@dataclass
class StateSnapshot:
    shared: StatePart  # state that is equal on all ranks; each rank writes a slice
    own: StatePart  # state that only this rank has
    step: int
    meta: Any

    def digest(self) -> bytes:
        """A digest of outline(), which the ranks compare."""
        skeleton = json.dumps([self.shared.skeleton, self.shared.changed], sort_keys=True)
        return hashlib.blake2b(f"{self.step} {self.shared.layout.digest} {skeleton}".encode(), digest_size=8).digest()

    def outline(self) -> dict[str, Any]:
        """Returns the shared state without the values of tensors. The outline must be equal on all ranks, because each
        rank saves a slice."""
        index, changed = self.shared.layout.to_json(), self.shared.changed
        return {"step": self.step, "index": index, "state": self.shared.skeleton, "changed": changed}


def take(
    state: Mapping[str, Any],
    ranks: RankGroup,
    step: int,
    meta: Mapping[str, Any] | None,
    built: plain_holders.Built,
) -> StateSnapshot:
    """Collective. Takes the snapshot. built: plain objects as the program built them. Raises StateError on all ranks if
    a rank has state that cannot be saved, or that differs from rank 0's state."""
    snapshot, failure, digest = None, None, b""
    own_changed: dict[str, dict[str, Any]] = {}
    try:
        changed, own_changed = _changed(state, ranks)
        snapshot = _take_here(state, step, meta, changed, built)
        digest = snapshot.digest()
    except Exception as error:
        failure = error
    equal = ranks.are_equal(digest or secrets.token_bytes(8))  # random bytes make a failed rank differ
    if failure is not None or not equal:
        ranks.agree(failure)
        assert snapshot is not None
        _explain_difference(snapshot.outline(), ranks)
    assert snapshot is not None
    if links := plain_holders.links(stateful.shared(state), built):  # rank 0's are saved
        snapshot.shared.changed[""] = {"links": Flattener().flatten(links)}
    if own_changed:
        snapshot.own = snapshot.own.also("changed", own_changed)
    if different := _adopt_buffers(snapshot.shared, state, ranks):
        snapshot.own = snapshot.own.also("buffers", different)
    return snapshot


def _changed(state: Mapping[str, Any], ranks: RankGroup) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Returns (changes since the build that are equal on all ranks, changes of this rank only). Collective, even if
    this rank fails.

    A buffer that grows with a rank's data, for example, has another size on each rank.
    """

    def find() -> dict[str, dict[str, Any]]:
        shared = stateful.shared(state)
        with stateful.as_trained(state):
            changed = as_built.changes(shared)
        for name, names in parameter_names.recorded(shared).items():
            changed.setdefault(name, {})["names"] = names
        return changed

    found, failure = tried(find)
    changed = found or {}
    own = {name: _hidden(some) for name, some in changed.items() if "buffers" in some}
    outline = [
        (name, key, was, dtype_name(own[name]["buffers"][key]), tuple(own[name]["buffers"][key].shape))
        for name, some in own.items()
        for key, was in some["from"].items()
    ]
    digest = hashlib.blake2b(repr(outline).encode(), digest_size=8).digest()
    alike = ranks.are_equal(digest if failure is None else secrets.token_bytes(8))
    if failure is not None:
        raise failure
    if alike:
        return changed, {}
    for name, some in own.items():
        rest = {key: was for key, was in changed[name]["from"].items() if key not in some["buffers"]}
        changed[name] = {"from": rest, **{k: v for k, v in changed[name].items() if k not in ("from", "buffers")}}
    return changed, own


def _hidden(changed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes of the buffers that are in no state_dict()."""
    buffers = changed["buffers"]
    return {"from": {key: was for key, was in changed["from"].items() if key in buffers}, "buffers": buffers}


def _take_here(
    state: Mapping[str, Any],
    step: int,
    meta: Mapping[str, Any] | None,
    changed: Mapping[str, Any],
    built: plain_holders.Built,
) -> StateSnapshot:
    if type(step) is not int or step < 0:
        raise StateError(f"step: {step!r} is not a number of steps done. Give an int of 0 or more.")
    shared: dict[str, Any] = {}
    own: dict[str, Any] = {}
    with stateful.as_trained(state):
        for name, thing in state.items():
            (own if stateful.is_per_rank(thing) else shared)[name] = thing.state_dict()
    note = StatePart.of({"meta": dict(meta or {})})
    if note.tensors:
        raise StateError(f"{next(iter(note.tensors))}: meta is for small values, not tensors. Put it into the state.")
    whole = StatePart.of(shared, changed, sharded=True)
    links = plain_holders.links({name: state[name] for name in own}, built)
    of_rank = {
        "rng": rng.capture(),
        "machine": machine.describe(),
        "objects": own,
        **({"links": links} if links else {}),
    }
    return StateSnapshot(whole, StatePart.of(of_rank), step, note.skeleton["meta"])


def _explain_difference(outline: dict[str, Any], ranks: RankGroup) -> NoReturn:
    """Raises StateError on all ranks, with the key that differs and the ranks."""
    key = _first_difference(ranks.agree(conclude=lambda _: outline), outline)
    failure = None
    if key is not None and "/names/" in key:
        failure = StateError(
            f"{key}: its parameters come in another order here than on rank 0. {parameter_names.IN_ORDER}"
        )
    elif key is not None:
        failure = StateError(
            f"{key}: it is not the same here as on rank 0, and only one can be saved. {stateful.remedy([key])}"
        )
    ranks.agree(failure)
    raise StateError(f"state: it is not the same on all ranks. {stateful.remedy(['x'])}")


def _first_difference(first: dict[str, Any], here: dict[str, Any]) -> str | None:
    if first["step"] != here["step"]:
        return "step"
    names: set[str] = {*first["index"], *here["index"]}
    for name in sorted(names):
        if first["index"].get(name) != here["index"].get(name):
            return name
    return _difference(first["state"], here["state"]) or _difference(first["changed"], here["changed"])


def _difference(first: Any, here: Any, *path: Any) -> str | None:
    """Returns the key of the first place where two skeletons differ."""
    if type(first) is type(here) is dict:
        for key in [*first, *(key for key in here if key not in first)]:
            if key not in first or key not in here:
                return key_of(*path, key)
            if found := _difference(first[key], here[key], *path, *([] if key.startswith("$") else [key])):
                return found
        return None
    if type(first) is type(here) is list and len(first) == len(here):
        pairs = enumerate(zip(first, here, strict=True))
        return next((found for i, (a, b) in pairs if (found := _difference(a, b, *path, i))), None)
    return None if first == here else key_of(*path)


def _adopt_buffers(shared: StatePart, state: Mapping[str, Any], ranks: RankGroup) -> dict[str, dict[str, torch.Tensor]]:
    """Replaces module buffers in `shared` by rank 0's. Each rank has its own BatchNorm statistics, and the slices of
    several ranks would be a mixture of them.

    Collective. Returns this rank's buffers that differ from rank 0's: {module: {key: buffer}}.
    """
    keys = [(name, key) for name, thing in state.items() for key in module_buffers.keys(thing)]
    places = {key_of(name, key): (name, key) for name, key in keys}
    names = [name for name in places if name in shared.tensors and not is_sharded(shared.tensors[name])]
    if ranks.size == 1 or not names:
        return {}
    packed = torch.cat([as_bytes(shared.tensors[name]).cpu() for name in names])
    here = packed.clone()
    ranks.broadcast(packed, 0)
    different: dict[str, dict[str, torch.Tensor]] = {}
    start = 0
    for name in names:
        old = shared.tensors[name]
        part = slice(start, start := start + old.numel() * old.element_size())
        if not torch.equal(packed[part], here[part]):
            module, key = places[name]
            different.setdefault(module, {})[key] = old
        # A copy is aligned for its dtype, which a piece of `packed` may not be.
        shared.tensors[name] = packed[part].clone().view(old.dtype).reshape(old.shape)
    return different
