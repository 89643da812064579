"""The predictions of all ranks in the order of the data, in memory or in files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
import torch.distributed as dist

from clusterdp.errors import ConfigError
from clusterdp.rundir import write_durably
from clusterdp.train.argument_names import checked
from clusterdp.train.trainer import evaluation, train_step

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group
    from clusterdp.train.trainer.trainer import Trainer


FORM = "form.json"  # number of samples and of ranks, and the structure of an output
ALIKE, AS_MANY = "Make them alike.", "It must give as many."
Flat = tuple[Any, list[torch.Tensor]]  # the structure of an output, as JSON values, and its tensors


def predict(
    trainer: Trainer, batches: Iterable[Any], size: int | None, transform: Any, forward: Any, to: str | Path | None
) -> Any:
    """Returns all outputs, or the folder `to`. Collective. size: as for collect()."""
    outputs: list[Flat] = []
    writer = None if to is None else Writer(Path(to), trainer.job.group, size)
    keep = outputs.append if writer is None else writer.add
    with evaluation.evaluating(trainer):
        for batch, mine in evaluation.watched(trainer, batches, transform):
            with trainer.autocast():
                given = train_step.outputs(trainer, batch) if forward is None else forward(trainer, batch)
            if mine:
                keep(on_host(given))  # all outputs together may not fit on the device
    if writer is not None:
        return writer.close()
    if size is None and not outputs:
        raise ConfigError(evaluation.NO_BATCH.format("predict"))
    return collect(trainer.job.group, outputs, size)


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


class Writer:
    """Writes this rank's rows to files of its own in a folder, batch by batch: no rank holds more than a batch, and no
    two ranks write to one file, whose pages NFS would mix up. size: as for collect(). Collective."""

    def __init__(self, folder: Path, group: Group, size: int | None):
        if size is None:
            raise ConfigError("predict: to= needs data of known length. Pass a data set with __len__, or tensors.")
        self._folder, self._size, self._group = folder, size, group
        self._rank, self._ranks = group.rendezvous.rank, group.rendezvous.world_size
        self._mine = len(range(self._rank, size, self._ranks))
        self._files: list[Any] = []
        self._kind: Any = None  # the structure of an output, and shape and type of each leaf
        self._rows = 0
        folder.mkdir(parents=True, exist_ok=True)
        if self._rank == 0:
            (folder / FORM).unlink(missing_ok=True)
        group.agree(0)

    def add(self, flat: Flat) -> None:
        form, leaves = flat
        # numpy has no bfloat16.
        rows = [(leaf.float() if leaf.dtype is torch.bfloat16 else leaf).numpy() for leaf in leaves]
        kind = [form, [[list(leaf.shape[1:]), str(leaf.dtype)] for leaf in rows]]
        if self._kind is None:
            self._kind = kind
            for number, leaf in enumerate(rows):
                file, shape = _file(self._folder, self._rank, number), (self._mine, *leaf.shape[1:])
                self._files.append(numpy.lib.format.open_memmap(file, "w+", leaf.dtype, shape))
        if kind != self._kind:
            raise ConfigError(f"predict: the outputs of two batches do not fit: {self._kind} and {kind}. {ALIKE}")
        count = len(rows[0])
        if any(len(leaf) != count for leaf in rows) or self._rows + count > self._mine:
            raise ConfigError(f"predict: the model gave more rows than the {self._mine} samples. {AS_MANY}")
        for file, leaf in zip(self._files, rows, strict=True):
            file[self._rows : self._rows + count] = leaf
        self._rows += count

    def close(self) -> Path:
        """Returns the folder, once all ranks have written their rows to the store, and they fit together."""
        if self._rows != self._mine:
            raise ConfigError(f"predict: the model gave {self._rows} rows for {self._mine} samples. {AS_MANY}")
        for file in self._files:
            file.flush()
        self._files.clear()
        kinds = [kind for kind in self._group.gather(self._kind) if kind is not None]
        if any(kind != kinds[0] for kind in kinds):
            raise ConfigError(f"predict: the ranks' outputs differ in shape or type: {kinds}. {ALIKE}")
        if self._rank == 0:  # the last file, so that a folder with it is complete
            form, leaves = kinds[0] if kinds else (None, [])
            text = json.dumps({"samples": self._size, "ranks": self._ranks, "leaves": len(leaves), "form": form})
            write_durably(self._folder / FORM, text + "\n")
        self._group.agree(0)
        return self._folder


@checked
def load_predictions(folder: str | Path) -> Any:
    """Returns the outputs that predict(to=folder) has written, one row per sample, in the order of the data: an array,
    or tuples and mappings of arrays as the model's. The arrays of a single rank are memory-mapped; those of several
    are joined in memory."""
    folder = Path(folder)
    try:
        facts = json.loads((folder / FORM).read_text())
    except OSError as error:
        raise ConfigError(
            f"folder: {error.filename}: {error.strerror}. Name the folder of predict(to=folder)."
        ) from None
    samples, ranks, form = facts["samples"], facts["ranks"], facts["form"]
    leaves = []
    for number in range(facts["leaves"]):
        parts = [numpy.load(_file(folder, rank, number), mmap_mode="r") for rank in range(min(ranks, samples))]
        if len(parts) == 1:
            leaves.append(parts[0])
            continue
        whole = numpy.empty((samples, *parts[0].shape[1:]), parts[0].dtype)
        for rank, part in enumerate(parts):
            whole[rank::ranks] = part
        leaves.append(whole)
    return _build(form, iter(leaves))


def _file(folder: Path, rank: int, leaf: int) -> Path:
    return folder / f"rank-{rank:05d}.{leaf}.npy"


def _in_order(group: Group, rows: torch.Tensor, size: int) -> torch.Tensor:
    ranks = group.rendezvous.world_size
    if ranks == 1:
        return rows
    longest = rows.new_zeros(len(range(0, size, ranks)), *rows.shape[1:])
    longest[: len(rows)] = rows
    padded = longest.reshape(-1).view(torch.uint8)  # sent as bytes, because gloo does not support every dtype
    padded = padded.to(group.exchange_device)
    slots = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(slots, padded)
    whole = rows.new_empty(size, *rows.shape[1:])
    for rank, slot in enumerate(slots):
        whole[rank::ranks] = (
            slot.to(rows.device).view(rows.dtype).reshape(longest.shape)[: len(range(rank, size, ranks))]
        )
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


def _build(form: Any, leaves: Iterator[Any]) -> Any:
    if form == "*":
        return next(leaves)
    if isinstance(form, dict):
        return {key: _build(part, leaves) for key, part in form.items()}
    return tuple(_build(part, leaves) for part in form)
