"""The buffers of modules. DDP keeps parameters equal on all ranks, and training changes them in place. Buffers may
differ between ranks, grow, and move to other memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from clusterdp.checkpoint.format import strides
from clusterdp.checkpoint.state import as_built
from clusterdp.checkpoint.state.tree import copied, is_sharded, key_of


def keys(thing: Any) -> Iterator[str]:
    """Yields the keys of a module's buffers."""
    if isinstance(thing, torch.nn.Module):
        for key, _ in thing.named_buffers(remove_duplicate=False):
            yield key


def load(name: str, module: Any, state: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Loads buffers by their keys. Yields a line for each buffer that the module lacks."""
    if not state:
        return
    live = dict(module.named_buffers(remove_duplicate=False))
    for key, saved in state.items():
        if key not in live or live[key].shape != saved.shape:
            yield f"{name}: there is no buffer {key} of shape {tuple(saved.shape)} here; each rank had its own"
        else:
            live[key].copy_(saved)


def make_room(module: torch.nn.Module, state: Mapping[str, Any], resized: Collection[str]) -> None:
    """Gives resized buffers their saved size. A tensor with a stride of 0 cannot be written to; it gets memory for all
    its elements. A lazy tensor gets its saved size from load_state_dict()."""
    tensors = list(chain(module.named_parameters(), module.named_buffers()))
    given = state.keys() - {key for key, tensor in tensors if torch.nn.parameter.is_lazy(tensor)}
    for key in given.intersection(resized):
        as_built.replace(module, key, state[key])
    for key, live in chain(module.named_parameters(), module.named_buffers()):
        if key in given and not is_sharded(live) and 0 in (strides.noted(tuple(live.shape), live.stride()) or ()):
            live.data = torch.empty_like(live, memory_format=torch.contiguous_format)


def restride(name: str, module: torch.nn.Module, saved: Mapping[str, strides.Shape], before: Mapping[str, Any]) -> None:
    """Sets the saved strides of buffers. saved: strides by tensor name. before: the tensors of the checkpoint, by
    name."""
    for key, live in chain(module.named_buffers(), module.named_parameters()):
        place = key_of(name, key)
        wanted = saved.get(place)
        if place not in before or is_sharded(live) or wanted == strides.noted(tuple(live.shape), live.stride()):
            continue
        if not isinstance(live, torch.nn.Parameter) or (wanted and 0 in wanted):
            live.data = copied(live, wanted or strides.rows(tuple(live.shape)))
