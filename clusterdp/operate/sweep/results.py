"""Ranking: the elements of a sweep ordered by the last value of a metric."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterdp.errors import RunError
from clusterdp.operate.output.formatting import Colour, metric_rank
from clusterdp.operate.output.terminal import filled
from clusterdp.operate.record.run_history import newest
from clusterdp.operate.record.run_state import NOT_DONE, RunState
from clusterdp.operate.sweep.elements import ElementStatus, listed, read_sweep, sweep_meant
from clusterdp.operate.why import failure_words
from clusterdp.operate.why.first_failure import find_failure
from clusterdp.wording import did_you_mean

OTHERS = 2  # rank in metric_rank() of metrics that are neither losses nor results on held-out data
LOWER = re.compile(r"loss|err|perplexity|ppl|(^|_)(mse|mae|rmse|nll|bpc|wer|cer|fid|seconds|time)(_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Ranking:
    """The elements of a sweep, best first; elements without the metric follow, ordered by number. `metric` is empty if
    no metric is recorded. `lower` is True if the lowest value is best."""

    metric: str
    lower: bool
    elements: Sequence[ElementStatus]

    @property
    def metrics(self) -> list[str]:
        """The metrics that get a column in a table: `metric`, and up to two others by metric_rank()."""
        others = [name for name in measured(self.elements) if name != self.metric and metric_rank(name) < OTHERS]
        return [self.metric, *others[:2]] if self.metric else []

    def in_words(self) -> str:
        return (
            f"best first, by the last {self.metric}: the {'lowest' if self.lower else 'highest'}" if self.metric else ""
        )


def best_first(elements: Sequence[ElementStatus], metric: str = "", lower: bool | None = None) -> Ranking:
    """Returns the ranking. The default of `metric` is a result on held-out data, or else a loss; of several such
    metrics, the metric that most elements have.

    The default of `lower` depends on the metric's name: for losses and errors, the lowest value is best. Raises
    RunError if no element has the metric.
    """
    known = measured(elements)
    if metric and metric not in known:
        raise RunError(f"--by {metric}: no element has measured it. {_remedy(metric, known)}")
    metric = metric or (known[0] if known else "")
    if lower is None:
        lower = bool(LOWER.search(metric))
    sign = 1 if lower else -1

    def key(each: ElementStatus) -> tuple[bool, float, int]:
        value = each.history.metrics.get(metric)
        if not isinstance(value, (int, float)) or math.isnan(value):
            return True, 0.0, each.number
        return False, sign * float(value), each.number

    return Ranking(metric, lower, sorted(elements, key=key) if metric else list(elements))


def sweep(run: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the table of a sweep as a list of dictionaries, the best element first:
    `pandas.DataFrame(clusterdp.sweep(run))`.

    run: the sweep's folder, or the id of its array. Raises RunError if the sweep does not exist.
    """
    from clusterdp.operate.find.find_run import find_run

    return as_rows(best_first(read_sweep(sweep_meant(find_run(run))).elements).elements)


def as_rows(elements: Sequence[ElementStatus]) -> list[dict[str, Any]]:
    """Returns a row for each element: its number, its swept values, its state, and the last value of each metric."""
    return [_row(element_data(each)) for each in elements]


def element_data(each: ElementStatus) -> dict[str, Any]:
    """Returns the values that --json prints for an element."""
    last = newest(each.history.attempts)
    return {
        "element": each.number,
        "values": dict(each.values),
        "state": each.status.state.value,
        "why": reason_of(each),
        "step": each.history.step,
        "attempt_number": last.number if last else None,
        "job": each.history.job,
        "run": str(each.history.run.path),
        "metrics": each.history.metrics,
    }


def _row(data: dict[str, Any]) -> dict[str, Any]:
    element, values, metrics = data.pop("element"), data.pop("values"), data.pop("metrics")
    row = {"element": element, **values, **data}
    measured = {name: value for name, value in metrics.items() if isinstance(value, (int, float, str))}
    return {**row, **{name: value for name, value in measured.items() if name not in row}}


def columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the columns that occur in any row, because some elements have more metrics than others."""
    return list(dict.fromkeys(name for row in rows for name in row))


def measured(elements: Sequence[ElementStatus]) -> list[str]:
    """Returns the names of all metrics with numbers, ordered by metric_rank(), then by how many elements have the
    metric."""
    found: dict[str, int] = {}
    for each in elements:
        for name, value in each.history.metrics.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found[name] = found.get(name, 0) + 1
    return sorted(found, key=lambda name: (metric_rank(name), -found[name], name))


def _remedy(metric: str, known: Sequence[str]) -> str:
    return did_you_mean(metric, known, f"There are: {', '.join(known)}." if known else "None has measured anything.")


def reason_of(each: ElementStatus) -> str:
    """Returns the reason of an element's state. If the element failed, the first failure of its ranks is added. Empty
    if the reason is unknown."""
    history, status = each.history, each.status
    failed = status.state in NOT_DONE and not history.stopped_by_user
    cause = failure_words.cause_line(find_failure(history)) if failed else ""
    return "; ".join(filter(None, [status.why, cause]))


def reason_lines(
    elements: Sequence[ElementStatus], colour: Colour, columns: int = sys.maxsize, *, of_all: bool = False
) -> list[str]:
    """Returns lines such as `failed 1, 5: the GPU's memory is full (rank 2 on n2)`. With `of_all`, elements that are
    not over are included."""
    groups: dict[tuple[RunState, str], list[ElementStatus]] = {}
    for each in elements:
        if each.status.state in NOT_DONE or (of_all and not each.status.state.over):
            groups.setdefault((each.status.state, reason_of(each)), []).append(each)
    lines = []
    for (state, reason), some in groups.items():
        head = f"{colour(state.colour, state.value)}  {listed(some)}"
        if reason or (of_all and state is not RunState.RUNNING):
            lines += filled(f"{head}: ", reason or "no more is known", columns)
    return lines
