"""Where an object differs from what was saved although its state fits: in dtype or memory format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from clusterdp.checkpoint.format import strides
from clusterdp.checkpoint.state.tree import dtype_name, is_sharded, key_of
from clusterdp.wording import some_of


def differences(
    name: str, thing: Any, saved: Any, layout: Mapping[str, strides.Shape] | None, known: Mapping[str, Any]
) -> Iterator[str]:
    """A line for each kind of difference. saved: the state that the object was given; layout: strides by the tensors'
    names in the checkpoint, if anybody noted them; known: those names."""
    if not isinstance(thing, (torch.nn.Module, torch.optim.Optimizer)):
        return
    found: dict[str, list[str]] = {}
    for key, there, here in _pairs(saved, thing.state_dict()):
        place = key_of(name, *key)
        if there.dtype != here.dtype:
            cast = f"{dtype_name(there)} when it was saved, {dtype_name(here)} here: cast"
            found.setdefault(cast, []).append(place)
        elif layout is not None and place in known and not is_sharded(here):
            was, now = layout.get(place), strides.noted(tuple(here.shape), here.stride())
            if was != now:
                shape = tuple(here.shape)
                lies = f"strides {was or strides.rows(shape)} when it was saved, {now or strides.rows(shape)} here"
                found.setdefault(lies, []).append(place)
    for what, places in found.items():
        yield f"{some_of(places, 4)}: {what}"


def _pairs(saved: Any, live: Any, *path: Any) -> Iterator[tuple[tuple[Any, ...], torch.Tensor, torch.Tensor]]:
    """Tensors that are at the same place of both trees."""
    if isinstance(saved, torch.Tensor):
        if isinstance(live, torch.Tensor) and not torch.nn.parameter.is_lazy(live):
            yield path, saved, live
    elif isinstance(saved, Mapping) and isinstance(live, Mapping):
        for key, item in saved.items():
            if key in live:
                yield from _pairs(item, live[key], *path, key)
    elif isinstance(saved, (list, tuple)) and isinstance(live, (list, tuple)) and len(saved) == len(live):
        for i, item in enumerate(saved):
            yield from _pairs(item, live[i], *path, i)
