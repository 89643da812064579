"""Reads one checkpoint on all ranks and puts it into their objects. Each rank verifies the bytes that it reads."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from clusterdp.checkpoint.format import strides
from clusterdp.checkpoint.format.manifest import CheckpointInfo, Manifest, decode, expected_files
from clusterdp.checkpoint.format.verified_reads import check_sizes, manifest_bytes, ranges_of
from clusterdp.checkpoint.load.flat_reader import FlatReader, is_alone, live_tensors, new_tensors, read_own
from clusterdp.checkpoint.state import as_built, machine, module_buffers, parameter_names, plain_holders, rng, stateful
from clusterdp.checkpoint.state.rank_group import RankGroup, tried
from clusterdp.checkpoint.state.tree import as_bytes, cloned, copied, dtype_name, is_sharded, key_of, unflatten
from clusterdp.storage import Storage
from clusterdp.wording import some_of


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Turns the garbage collector off while many objects are made that all stay: each of its passes would search the
    whole state again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class Restored:
    """The checkpoint that was restored."""

    step: int
    token: str
    meta: Any
    exact: bool  # whether the number of ranks and every bit of the state are the same as at the save
    skipped: tuple[str, ...] = ()  # newer checkpoints that were not good, with the reason of each
    differences: tuple[str, ...] = ()  # state that differs from the checkpoint, as text
    world_size: int = 0  # number of ranks that saved the checkpoint
    from_memory: bool = False  # whether the checkpoint was a copy in the memory of the nodes


@dataclass
class LoadedCheckpoint:
    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]  # views of a flat buffer, or live tensors
    own: dict[str, Any] | None  # this rank's {"rng": ..., "machine": ..., "objects": {name: state}}; None if new
    flat: FlatReader | None  # the reader of the flat buffer; None if the checkpoint is sharded

    @property
    def strides(self) -> Mapping[str, tuple[int, ...]]:
        return self.manifest.strides or {}

    @property
    def changed(self) -> Mapping[str, Any]:
        """The changes of each object since it was built."""
        return unflatten(self.manifest.changed, self.tensors) or {}

    def views(self, name: str) -> Any:
        """Returns the state_dict() of object `name`, made of `tensors`, which are row-major."""
        return unflatten(self.manifest.state[name], self.tensors)

    def given(self, name: str, module: torch.nn.Module) -> Any:
        """Returns views() for load_state_dict() of a module, which copies the tensors. Tensors that set_extra_state()
        or the module's own loading method may keep are cloned: torch's observers keep the given tensors, which must not
        be views."""
        state = self.views(name)
        own = stateful.with_a_loading_of_its_own(module)
        for key in state:
            path, _, last = str(key).rpartition(".")
            if last == stateful.EXTRA_STATE or path in own:
                state[key] = cloned(state[key])
        return state

    def state(self, name: str, *, copy: bool) -> Any:
        """Returns views() with the saved strides. If `copy` is False, tensors that are row-major are not copied."""
        return unflatten(self.manifest.state[name], _Copies(self.tensors, self.strides, everything=copy))

    def release(self, name: str, *, everything: bool) -> None:
        """Releases the memory of the object's tensors. If `everything` is False, releases only tensors that state()
        copies."""
        for entry in self.manifest.layout.entries if self.flat is not None else ():
            if (entry.name == name or entry.name.startswith(f"{name}/")) and (everything or entry.name in self.strides):
                assert self.flat is not None
                self.flat.buffer.release(entry.offset, entry.end)


class _Copies(Mapping[str, torch.Tensor]):
    """Copies of the tensors, made at first use, because a view would keep the whole buffer alive, and a live parameter
    would keep its graph. If `everything` is False, only tensors with recorded strides are copied."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], strides: Mapping[str, tuple[int, ...]], *, everything: bool
    ):
        self._tensors, self._strides, self._everything = tensors, strides, everything
        self._made: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._made:
            tensor, strides = self._tensors[name], self._strides.get(name)
            keep = is_sharded(tensor) or not (self._everything or strides)
            self._made[name] = tensor if keep else copied(tensor, strides)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def read(storage: Storage, info: CheckpointInfo, ranks: RankGroup, state: Mapping[str, Any]) -> LoadedCheckpoint:
    """Collective. Reads the checkpoint. Raises DamagedError on all ranks if bytes are wrong or missing, and
    CheckpointError if files cannot be read.

    state: the objects to restore. If a tensor of these objects is sharded, each rank reads only its part.
    """
    text = ranks.agree(conclude=lambda _: manifest_bytes(storage, info).decode("ascii"))
    sharded = stateful.are_sharded(state)

    def prepare() -> tuple[Manifest, dict[str, torch.Tensor]]:
        manifest = decode(text.encode("ascii"), info.name)
        return manifest, {} if sharded or manifest.chunks is not None else _live(manifest, state)

    prepared, failure = tried(prepare)
    live = prepared[1] if prepared is not None else {}
    # Blocks of tensors that are live on some ranks only would be sent to no buffer.
    if not is_alone(storage, ranks) and not ranks.agree(failure, sorted(live), _all_equal):
        live = {}

    def read_share(manifest: Manifest) -> tuple[FlatReader | _Parts, Any]:
        if sharded or manifest.chunks is not None:
            some: FlatReader | _Parts = _Parts(storage, manifest, ranks, state)
        else:
            some = FlatReader(storage, manifest, ranks, live)
        return some, read_own(storage, manifest, ranks.rank) if ranks.rank < info.world_size else None

    found = None
    if prepared is not None:
        found, failure = tried(partial(read_share, prepared[0]))
    ranks.agree(failure)
    assert prepared is not None and found is not None
    some, own = found
    some.exchange()
    return LoadedCheckpoint(prepared[0], some.tensors, own, some if isinstance(some, FlatReader) else None)


def compare(loaded: LoadedCheckpoint, state: Mapping[str, Any]) -> None:
    """Compares the modules of this rank with the saved modules, before any object is changed. Raises StateError if they
    do not match."""
    shared = stateful.shared(state)
    stateful.compare_keys("state", shared, loaded.manifest.state)
    changed = loaded.changed
    modules = [(name, thing) for name, thing in shared.items() if isinstance(thing, torch.nn.Module)]
    for name, thing in modules if loaded.flat is not None else ():
        stateful.compare(name, thing, loaded.views(name), as_built.resized(thing, changed.get(name, {})))


@without_garbage_collection()
def put_back(
    loaded: LoadedCheckpoint, state: Mapping[str, Any], world_size: int, built: plain_holders.Built
) -> list[str]:
    """Puts the state into the objects of this rank, after compare() and FlatReader.fill(). Returns the differences from
    the checkpoint, as text. Raises StateError if the objects do not match the saved objects."""
    shared = stateful.shared(state)
    own = {name: thing for name, thing in state.items() if name not in shared}
    changed = loaded.changed
    sizes = {name: as_built.resized(thing, changed.get(name, {})) for name, thing in shared.items()}
    mine = loaded.own if loaded.own is not None and loaded.manifest.info.world_size == world_size else {}
    different: list[str] = []
    for name, thing in stateful.modules_first(shared):
        # An optimizer keeps all tensors that it is given, and may keep the pages that were read. Other objects may
        # keep a few tensors, which must not keep the whole buffer alive.
        keeps = isinstance(thing, torch.optim.Optimizer)
        if isinstance(thing, plain_holders.DictHolder):
            continue
        if isinstance(thing, torch.nn.Module):
            different += _into_module(loaded, name, thing, changed.get(name, {}), sizes[name])
        else:
            given = loaded.state(name, copy=not keeps)
            if keeps and loaded.flat is not None:
                as_built.add_groups(thing, given, changed.get(name, {}), shared)
            given = parameter_names.by_name(name, thing, given, changed.get(name, {}).get("names"), shared)
            stateful.load(name, thing, given)
            if keeps and stateful.on_gpu(thing):  # its step counts on the CPU would each keep a page that was read
                stateful.clone_on_cpu(thing)
                keeps = False
            different += differences(name, thing, given, loaded.manifest.strides, loaded.tensors)
        loaded.release(name, everything=not keeps)
        different += module_buffers.load(
            name, thing, mine.get("buffers", {}).get(name, {})
        )  # rank 0's buffers have already been loaded
        different += as_built.put_back(name, thing, mine.get("changed", {}).get(name, {}))
    dicts = {name for name, thing in shared.items() if isinstance(thing, plain_holders.DictHolder)}
    saved = {name: loaded.state(name, copy=True) for name in dicts}
    plain_holders.fill(shared, saved, built, changed.get("", {}).get("links", ()))
    # Of a rank that is new, nothing is known.
    different += filter(None, [machine.difference((loaded.own or {}).get("machine", {}))])
    if mine:
        own = {
            name: thing
            for name, thing in own.items()
            if name in mine["objects"] or not getattr(thing, "is_optional", False)
        }
        different += filter(None, [rng.difference(mine["rng"])])
        stateful.compare_keys("state with per_rank = True", own, mine["objects"])
        plain_holders.fill(own, mine["objects"], built, mine.get("links", ()))
        for name, thing in own.items():
            if not isinstance(thing, plain_holders.DictHolder):
                stateful.load(name, thing, mine["objects"][name])
    return different


def _into_module(
    loaded: LoadedCheckpoint, name: str, module: torch.nn.Module, changed: Mapping[str, Any], resized: Collection[str]
) -> list[str]:
    noted = loaded.manifest.strides
    given = loaded.given(name, module)
    module_buffers.make_room(module, given, resized)
    stateful.load(name, module, given)
    different = [*as_built.put_back(name, module, changed)]
    if noted is not None:
        module_buffers.restride(name, module, noted, loaded.tensors)
    return [*different, *differences(name, module, given, noted, loaded.tensors)]


def _all_equal(reports: list[Any]) -> bool:
    return all(report == reports[0] for report in reports)


class _Parts:
    """Sharded state. On several nodes with divided storage, each rank reads its own file, and sends tensors that all
    ranks have whole."""

    def __init__(self, storage: Storage, manifest: Manifest, ranks: RankGroup, state: Mapping[str, Any]):
        """Reads this rank's parts. Not collective."""
        from clusterdp.checkpoint.load import resharding  # imported late: takes two seconds, and DDP does not need it

        self._storage, self._manifest, self._ranks = storage, manifest, ranks
        ranges = ranges_of(manifest)
        shared, changed = stateful.shared(state), manifest.changed or {}
        orders = {name: parameter_names.numbers(name, some.get("names"), shared) for name, some in changed.items()}
        self._live = live = resharding.live_tensors(shared, orders)
        self._sent: Mapping[str, int] = {}
        if storage.is_divided and not is_alone(storage, ranks):
            ranges = [blocks for blocks in ranges if blocks.name.endswith(_own_file(manifest, ranks.rank))]
            self._sent = resharding.whole_names(manifest, live)
        check_sizes(storage, ranges)  # first: a wrong manifest must not cause a large allocation
        names = [entry.name for entry in manifest.layout.entries if entry.name not in self._sent]
        self.tensors: Mapping[str, torch.Tensor] = resharding.read(storage, manifest, live, names)

    def exchange(self) -> None:
        """Adds the tensors that are whole on each rank. Collective. Raises DamagedError or CheckpointError."""
        from clusterdp.checkpoint.load import resharding

        if self._sent:
            sent = resharding.read_whole(self._storage, self._manifest, self._sent, self._ranks)
            self.tensors = {**self.tensors, **sent}
        self.tensors = resharding.replicated(self.tensors, self._live)


def _own_file(manifest: Manifest, rank: int) -> str:
    return [name for name, _ in expected_files(manifest.info)][rank]


def _live(manifest: Manifest, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    devices: dict[str, torch.device] = {}
    names = [entry.name for entry in manifest.layout.entries]
    for name, thing in stateful.shared(state).items():
        found |= stateful.live_tensors(name, thing)
        devices |= stateful.gpus_of_state(name, thing, names)
    live = live_tensors(manifest.layout, found)
    return live | new_tensors(manifest.layout, devices, live)


def differences(
    name: str, thing: Any, saved: Any, layout: Mapping[str, strides.Shape] | None, known: Mapping[str, Any]
) -> Iterator[str]:
    """Yields a line for each kind of difference. saved: the state that was loaded into the object. layout: saved
    strides by tensor name; None if not recorded. known: the tensors of the checkpoint, by name."""
    if not isinstance(thing, (torch.nn.Module, torch.optim.Optimizer)):
        return
    found: dict[str, list[str]] = {}
    for key, there, here in _pairs(saved, thing.state_dict()):
        # Most are the live tensors, into which the bytes were read.
        is_kept = there.data_ptr() == here.data_ptr() or not isinstance(thing, torch.optim.Optimizer)
        if is_kept and there.dtype == here.dtype and not layout and here.is_contiguous():
            continue  # before its name is made, which takes longer than all else
        place = key_of(name, *key)
        if there.dtype != here.dtype:
            cast = f"{dtype_name(there)} when it was saved, {dtype_name(here)} here: cast"
            found.setdefault(cast, []).append(place)
        elif layout is not None and place in known and not is_sharded(here):
            was, now = layout.get(place), strides.noted(tuple(here.shape), here.stride())
            if not is_kept and not torch.equal(as_bytes(there.to(here.device)), as_bytes(here)):
                found.setdefault("its load_state_dict() has changed the values", []).append(place)
            if was != now:
                shape = tuple(here.shape)
                lies = f"strides {was or strides.rows(shape)} when it was saved, {now or strides.rows(shape)} here"
                found.setdefault(lies, []).append(place)
    for what, places in found.items():
        yield f"{some_of(places, 4)}: {what}"


def _pairs(saved: Any, live: Any, *path: Any) -> Iterator[tuple[tuple[Any, ...], torch.Tensor, torch.Tensor]]:
    """Yields (path, saved tensor, live tensor) for tensors at the same place in both trees."""
    if isinstance(saved, torch.Tensor):
        if isinstance(live, torch.Tensor) and not torch.nn.parameter.is_lazy(live):
            yield path, saved, live
    elif isinstance(saved, Mapping) and isinstance(live, Mapping):
        for key, item in saved.items():
            if key in live:
                yield from _pairs(item, live[key], *path, key)
    elif isinstance(saved, (list, tuple)) and isinstance(live, (list, tuple)) and len(saved) == len(live):
        for i, item in enumerate(saved):
            if not isinstance(item, (int, float, str)):
                yield from _pairs(item, live[i], *path, i)
