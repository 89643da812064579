"""RunningStatistics: BatchNorm's running averages, to which each micro-batch of a step adds in the order of numbers,
whichever rank has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from clusterdp.errors import TrainError
from clusterdp.wording import some_of


class RunningStatistics:
    """Before each pass, the averages are set to zero, so that the pass leaves its own part of them. At the end of a
    step, all ranks gather the parts and add them up. Modules in evaluation mode need their averages, and keep them."""

    def __init__(self, model: nn.Module, group: Any):
        self._group = group
        self._modules = [each for each in model.modules() if isinstance(each, _BatchNorm) and _averages_of(each)]
        ours = {id(buffer) for each in self._modules for buffer in each.buffers()}
        self._others = {name: buffer for name, buffer in model.named_buffers() if id(buffer) not in ours}
        self._others_before: list[torch.Tensor] | None = None  # in the first step
        self._is_first_step = True
        self._trained: list[_BatchNorm] = []  # in this step
        self._before = torch.empty(0)  # averages and counts of the last step
        self._passes: Sequence[int] = ()
        self._parts: list[torch.Tensor] = []  # of this rank
        self._is_in_pass = False

    @torch.no_grad()
    def begin_step(self, passes: Sequence[int]) -> None:
        """passes: the number of each rank's passes that have a weight."""
        if self._is_first_step:
            self._is_first_step = False
            self._others_before = [buffer.clone() for buffer in self._others.values()]
        self._passes, self._parts, self._is_in_pass = passes, [], False
        self._trained = [each for each in self._modules if each.training]
        if self._trained:
            self._before = torch.cat([each.reshape(-1).double() for each in self._tensors()])

    def _tensors(self) -> list[torch.Tensor]:
        """Returns the averages of all modules, then their counts."""
        averages = [average for each in self._trained for average in _averages_of(each)]
        return averages + [each.num_batches_tracked for each in self._trained if each.num_batches_tracked is not None]

    @torch.no_grad()
    def begin_pass(self) -> None:
        self._note_part()
        if self._trained:
            torch._foreach_zero_(self._tensors())
            self._is_in_pass = True

    def _note_part(self) -> None:
        if not self._is_in_pass:
            return
        if any(each.training != (each in self._trained) for each in self._modules):
            raise TrainError(
                "model: a BatchNorm goes into training or evaluation mode within a step. Call train() and eval() "
                "between two steps, or leave out train.exact: any_ranks."
            )
        self._parts.append(torch.cat([each.reshape(-1) for each in self._tensors()]))

    @torch.no_grad()
    def end_step(self) -> None:
        """Adds up what all passes have left. Collective."""
        self._check_others()
        self._note_part()
        self._is_in_pass = False
        if not self._trained:
            return
        sizes, device = [each.numel() for each in self._tensors()], self._before.device
        modules = len(self._trained)
        averages, counts = self._before.tensor_split([sum(sizes[:-modules])])
        spread = torch.arange(modules, device=device).repeat_interleave(
            torch.tensor([2 * size for size in sizes[: 2 * modules : 2]], device=device)
        )
        momenta = [each.momentum for each in self._trained]
        is_mean = torch.tensor([momentum is None for momentum in momenta], device=device)  # of all passes
        decay = torch.tensor([1 - (momentum or 0.0) for momentum in momenta], dtype=torch.float64, device=device)
        for part in self._gathered():
            average, count = part.double().tensor_split([len(averages)])
            after = counts + count
            keep = torch.where(is_mean, counts / after.clamp(min=1), decay**count)
            weight = torch.where(is_mean, count / after.clamp(min=1), 1.0)
            averages, counts = averages * keep[spread] + average * weight[spread], after
        ends = torch.tensor(sizes).cumsum(0)[:-1]
        values = torch.cat([averages, counts]).tensor_split(ends)
        torch._foreach_copy_(self._tensors(), [v.view_as(t) for v, t in zip(values, self._tensors(), strict=True)])

    def _gathered(self) -> Iterator[torch.Tensor]:
        """Yields the parts of all passes of the step, in the order of micro-batches."""
        sent = self._before.new_zeros(max(self._passes), len(self._before), dtype=self._parts[0].dtype)
        own = self._parts[: self._passes[dist.get_rank(self._group)]]  # a pass without a weight does not count
        for at, part in enumerate(own):
            sent[at] = part
        every = sent.new_empty(len(self._passes) * len(sent), sent.shape[1])
        dist.all_gather_into_tensor(every, sent, group=self._group)
        for rank, passes in enumerate(self._passes):
            yield from every[rank * len(sent) :][:passes]

    def _check_others(self) -> None:
        """Raises TrainError after the first step if the model has changed other buffers in it: each rank would go on
        with those of its own passes, or of rank 0's."""
        if self._others_before is None:
            return
        pairs = zip(self._others.items(), self._others_before, strict=True)
        changed = [name for (name, now), before in pairs if not _is_same(now, before)]
        self._others_before = None
        if changed:
            raise TrainError(
                f"model: training changes its buffers {some_of(changed, 3)}, and each rank would have other ones. "
                "Leave out train.exact: any_ranks, which keeps the bits of BatchNorm's statistics only."
            )


def _averages_of(module: _BatchNorm) -> list[torch.Tensor]:
    return [each for each in (module.running_mean, module.running_var) if each is not None]


def _is_same(now: torch.Tensor, before: torch.Tensor) -> bool:
    return now.shape == before.shape and bool(((now == before) | ((now != now) & (before != before))).all())
