"""Reads the metrics of a run by step, over all its attempts, as curves for `clusterdp report` and `clusterdp plot`.

A step that was trained twice has the value of the later attempt. The values of the earlier attempt are kept separately.
"""

from __future__ import annotations

import itertools
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterdp.operate.record.run_history import RunHistory
from clusterdp.plainfile import reading
from clusterdp.rundir.ledger import parse

PLACE = frozenset({"time", "step", "total", "phase", "epoch"})  # keys of a metrics record that are not metrics
NOT_FINITE = frozenset({"nan", "inf", "-inf"})  # written as text, because JSON has no such numbers
MOST_NAMES = 2000  # metrics of one attempt that are read
CHUNK = 8 << 20  # bytes of metrics that are parsed at once
LARGEST_STEP = 1 << 53  # above this limit, JavaScript's integers are not exact
WINDOWS = 200  # parts of an attempt; each part gives one value of the speed


@dataclass(frozen=True)
class Line:
    """Rising steps without duplicates, and a value for each step. The values in a Curve are all finite."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    def part(self, wanted: NDArray[np.bool_]) -> Line:
        return Line(self.steps[wanted], self.values[wanted])


@dataclass(frozen=True)
class Curve:
    """`again` has, for each attempt's number, the values of steps that a later attempt trained again. `not_finite` has
    the steps at which the value was NaN or infinite; no Line contains these steps."""

    kept: Line
    again: tuple[tuple[int, Line], ...] = ()
    not_finite: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunCurves:
    """`speed` is in steps a second. `resumed` has, for each attempt that trained except the first, the attempt's number
    and the step from which the attempt continued."""

    metrics: dict[str, Curve]
    speed: Curve
    resumed: tuple[tuple[int, int], ...]


@dataclass
class _Columns:
    """The metrics of an attempt: steps and values of each metric, and the time of each step."""

    metrics: dict[str, tuple[array[int], array[float]]] = field(default_factory=dict)
    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))


def read_curves(history: RunHistory) -> RunCurves:
    """Reads all metrics of the run. Reading a million records takes some seconds."""
    pieces: dict[str, list[tuple[int, int, Line, Line]]] = {}  # metric -> (attempt, last kept step, finite, not finite)
    speeds: list[tuple[int, int, Line, Line]] = []
    for attempt, kept in zip(history.attempts, last_kept(history), strict=True):
        columns = _read(history.run.metrics / f"{attempt.name}.jsonl", attempt.restored or 0)
        for name, (steps, values) in columns.metrics.items():
            pieces.setdefault(name, []).append((attempt.number, kept, *_lines(steps, values)))
        speeds.append((attempt.number, kept, *_lines(*_speed(columns))))
    trained = [attempt for attempt in history.attempts if attempt.first_step is not None]
    return RunCurves(
        metrics={name: _joined(found) for name, found in pieces.items()},
        speed=_joined(speeds),
        resumed=tuple((a.number, a.restored if a.restored is not None else a.first_step or 0) for a in trained[1:]),
    )


def by_interest(names: Iterable[str]) -> list[str]:
    """Returns the metrics ordered by interest: losses, results on held-out data, accuracies, then the rest. Numbers
    within names are sorted by value: layer 2 before layer 10."""

    def rank(name: str) -> tuple[int, list[str]]:
        first = name.endswith("loss"), name.startswith(("test", "val", "eval")), "acc" in name
        words = [word.rjust(20, "0") if word.isdecimal() else word for word in re.split(r"(\d+)", name)]
        return next((i for i, found in enumerate(first) if found), len(first)), words

    return sorted(names, key=rank)


def thin(line: Line, first: int, last: int, parts: int) -> Line:
    """Returns the smallest and the largest value in each of `parts` equal ranges of the steps from `first` to `last`,
    and the line's first and last value. Returns the whole line if it has at most 2 * parts values."""
    if len(line) <= 2 * parts:
        return line
    edges = np.searchsorted(line.steps, np.linspace(first, last + 1, parts + 1))
    wanted = {0, len(line) - 1}
    for begin, end in itertools.pairwise(edges):
        if begin < end:
            part = line.values[begin:end]
            wanted |= {int(begin + part.argmin()), int(begin + part.argmax())}
    return line.part(np.isin(np.arange(len(line)), list(wanted)))


def last_kept(history: RunHistory) -> list[int]:
    """Returns for each attempt the last step that no later attempt trained again."""
    kept, found = LARGEST_STEP, []
    for attempt in reversed(history.attempts):
        found.append(kept)
        if attempt.first_step is not None:
            kept = min(kept, attempt.restored if attempt.restored is not None else attempt.first_step - 1)
    return found[::-1]


def _joined(pieces: Sequence[tuple[int, int, Line, Line]]) -> Curve:
    kept = [line.part(line.steps <= last) for _, last, line, _ in pieces]
    again = [(number, line.part(line.steps > last)) for number, last, line, _ in pieces]
    steps = np.concatenate([line.steps for line in kept]) if kept else np.empty(0, np.int64)
    values = np.concatenate([line.values for line in kept]) if kept else np.empty(0)
    return Curve(
        kept=_rising(steps, values),
        again=tuple((number, line) for number, line in again if len(line)),
        not_finite=tuple(int(step) for _, last, _, odd in pieces for step in odd.steps if step <= last),
    )


def _lines(steps: Sequence[int], values: Sequence[float]) -> tuple[Line, Line]:
    """Returns two lines: the finite values, and the values that are NaN or infinite."""
    line = _rising(np.asarray(steps, dtype=np.int64), np.asarray(values, dtype=np.float64))
    finite = np.isfinite(line.values)
    return line.part(finite), line.part(~finite)


def _rising(steps: NDArray[np.int64], values: NDArray[np.float64]) -> Line:
    """Returns the values ordered by step, with only the last value of a repeated step."""
    order = np.argsort(steps, kind="stable")
    line = Line(steps[order], values[order])
    return line.part(np.append(line.steps[1:] != line.steps[:-1], True)[: len(line)])


def _speed(columns: _Columns) -> tuple[list[int], list[float]]:
    """Returns the speed in steps a second, one value for each window of the attempt's records."""
    steps, times = columns.steps, columns.times
    every = max(1, len(steps) // WINDOWS)
    at = list(range(0, len(steps), every))
    found = [
        (steps[b], (steps[b] - steps[a]) / (times[b] - times[a]))
        for a, b in itertools.pairwise(at)
        if steps[b] > steps[a] and times[b] > times[a]
    ]
    return [step for step, _ in found], [speed for _, speed in found]


def _read(path: Path, restored: int) -> _Columns:
    """Reads the metrics that one attempt recorded. A record without a step, such as a final result, gets the step of
    the preceding record."""
    columns, step = _Columns(), restored
    metrics = columns.metrics
    for record in _records(path):
        at = record.get("step")
        if type(at) is int and 0 <= at < LARGEST_STEP:
            step = at
            if type(when := record.get("time")) is float and 0 < when < 1e11:
                columns.steps.append(step)
                columns.times.append(when)
        for name, value in record.items():
            if name in PLACE:
                continue
            kind = type(value)
            if kind is float or (kind is int and abs(value) < LARGEST_STEP) or (kind is str and value in NOT_FINITE):
                if (column := metrics.get(name)) is None:
                    if len(metrics) >= MOST_NAMES:
                        continue
                    column = metrics[name] = array("q"), array("d")
                column[0].append(step)
                column[1].append(float(value))
    return columns


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a file of JSON lines, whose lines may have any length. A line that is only half written is
    skipped. A missing file has no records."""
    try:
        with reading(path) as file:
            left = b""
            while data := file.read(CHUNK):
                whole, _, left = (left + data).rpartition(b"\n")
                yield from _parsed(whole.split(b"\n"))
            yield from _parsed([left])
    except OSError:
        return


def _parsed(lines: list[bytes]) -> list[dict[str, Any]]:
    """Parses all lines as one JSON list, because parsing the lines one by one would take three times as long."""
    lines = [line for line in lines if line]
    try:
        records = json.loads(b"[" + b",".join(lines) + b"]")
        if len(records) == len(lines) and all(type(record) is dict for record in records):
            return list(records)
    except (ValueError, RecursionError):
        pass
    return [record for record in map(parse, lines) if record is not None]
