"""Profiling: the end of a run that `clusterdp profile` or the config's `profile` measures.

steps             the run ends after this number of steps, and writes their times to times.json, without an evaluation
                  or a save
find: workers     after the steps, the loader is read with 0, 1, 2, 4, ... workers
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from clusterdp.rundir import write_durably
from clusterdp.train.output.attempt_record import AttemptRecord
from clusterdp.train.output.say import say
from clusterdp.train.profile.stopwatch import Stopwatch, report_times
from clusterdp.train.profile.worker_finder import find_workers
from clusterdp.train.ranks.rank import Rank


class Profiled(BaseException):
    """Raised when all ranks have done the requested steps. Like Stopped, this is not an Exception, so that user code
    lets it pass."""


class Profile:
    """The measurement of a loop's steps. steps: their number. find: the value of profile.find in the config."""

    def __init__(self, rank: Rank, record: AttemptRecord, stopwatch: Stopwatch, steps: int, find: str | None):
        self.steps, self.find = steps, find
        self._rank, self._record, self._stopwatch = rank, record, stopwatch

    def begin(self, state: Mapping[str, Any]) -> None:
        """Begins with a loop, after its state is restored."""
        if not self._stopwatch.has_own_laps:
            lap_parts(state, self._stopwatch)

    def end(self, loader: Any, batch: float) -> NoReturn:
        """Raises Profiled, after the last step. Collective. batch: average number of samples of one rank per step."""
        rank, record = self._rank, self._record
        report = report_times(self._stopwatch, rank, record, loader)
        record.metrics.flush()
        if self.find == "workers":
            record.event("trying", what="num_workers")
            needed = batch / step_seconds(report, without="data") if report else None
            found = find_workers(loader, rank.group, needed=needed)
            if rank.is_first:
                tell(record, found.lines())
        raise Profiled


def lap_parts(state: Mapping[str, Any], stopwatch: Stopwatch) -> None:
    """Measures forward, backward and optimizer of a program that makes no laps of its own, by hooks of the models and
    optimizers in the loop's state. The loss, which is computed after the model, counts as backward."""
    for part in state.values():
        if isinstance(part, torch.nn.Module):
            part.register_forward_hook(lambda module, *_: stopwatch.lap("forward") if module.training else None)
        elif isinstance(part, torch.optim.Optimizer):
            part.register_step_pre_hook(lambda *_: stopwatch.lap("backward"))
            part.register_step_post_hook(lambda *_: stopwatch.lap("optimizer"))


def step_seconds(report: dict[str, Any], without: str = "") -> float:
    """Returns the seconds of a step on the slowest rank. without: the name of a part of the step that is not
    counted."""
    return float(max(sum(ms for name, ms in rank["ms"].items() if name != without) for rank in report["ranks"])) / 1000


def tell(record: AttemptRecord, lines: Sequence[str]) -> None:
    """Writes all findings to the run folder, for `clusterdp profile`; without a run folder, prints them."""
    if record.folder is not None:
        write_durably(record.folder.found, json.dumps(lines, indent=1) + "\n")
    else:
        say("\n".join(lines))
