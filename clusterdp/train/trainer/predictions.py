"""Joins the predictions of all ranks in the order of the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from clusterdp.errors import ConfigError

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group


Flat = tuple[Any, list[torch.Tensor]]  # the structure of an output, as JSON values, and its tensors


def on_host(output: Any) -> Flat:
    """Copies a batch's output to the host: a tensor, or tuples and mappings of tensors, with one row per sample."""
    form, leaves = _flatten(output)
    return form, [leaf.detach().cpu() for leaf in leaves]


def collect(group: Group, flat: list[Flat], size: int | None) -> Any:
    """Joins the ranks' outputs. Collective. A rank may have no samples.

    flat: this rank's outputs. size: number of all samples, if rank r of W has the samples r, r + W, ...; None: the
    outputs of a single rank.
    """
    leaves = [_joined([leaves[n] for _, leaves in flat]) for n in range(len(flat[0][1]))] if flat else []
    if size is None:
        return _build(flat[0][0], iter(leaves)) if flat else None
    rank, ranks = group.rendezvous.rank, group.rendezvous.world_size
    mine = len(range(rank, size, ranks))
    for leaf in leaves:
        if len(leaf) != mine:
            raise ConfigError(f"predict: the model gave {len(leaf)} rows for {mine} samples. It must give as many.")
    form = [flat[0][0], [[list(leaf.shape[1:]), str(leaf.dtype)] for leaf in leaves]] if flat else None
    forms = [each for each in group.gather(form) if each is not None]
    if not forms:
        return None
    skeleton, kinds = forms[0]  # a rank without samples takes another rank's structure
    if any(each != forms[0] for each in forms):
        raise ConfigError(f"predict: the ranks' outputs differ in shape or type: {forms}. Make them alike.")
    if not leaves:
        leaves = [torch.empty(0, *shape, dtype=getattr(torch, dtype.removeprefix("torch."))) for shape, dtype in kinds]
    return _build(skeleton, (_in_order(group, leaf, size) for leaf in leaves))


def _in_order(group: Group, rows: torch.Tensor, size: int) -> torch.Tensor:
    ranks = group.rendezvous.world_size
    if ranks == 1:
        return rows
    longest = rows.new_zeros(len(range(0, size, ranks)), *rows.shape[1:])
    longest[: len(rows)] = rows
    padded = longest.reshape(-1).view(torch.uint8)  # sent as bytes, because gloo does not support every dtype
    slots = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(slots, padded, group=group.control)
    whole = rows.new_empty(size, *rows.shape[1:])
    for rank, slot in enumerate(slots):
        whole[rank::ranks] = slot.view(rows.dtype).reshape(longest.shape)[: len(range(rank, size, ranks))]
    return whole


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    try:
        return torch.cat(parts)
    except RuntimeError as error:
        raise ConfigError(f"predict: the outputs of two batches do not fit: {error}. Make them alike.") from None


def _flatten(output: Any) -> Flat:
    if isinstance(output, torch.Tensor):
        return "*", [output]
    if isinstance(output, Mapping):
        form, leaves = _flatten(list(output.values()))
        return dict(zip(map(str, output), form, strict=True)), leaves
    if isinstance(output, list | tuple):
        found = [_flatten(part) for part in output]
        return [form for form, _ in found], [leaf for _, leaves in found for leaf in leaves]
    raise ConfigError(f"predict: the model gave a {type(output).__name__}. It must give tensors.")


def _build(form: Any, leaves: Iterator[torch.Tensor]) -> Any:
    if form == "*":
        return next(leaves)
    if isinstance(form, dict):
        return {key: _build(part, leaves) for key, part in form.items()}
    return tuple(_build(part, leaves) for part in form)
