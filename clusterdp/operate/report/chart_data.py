"""The curves of runs as the page's script reads them, thinned to what a screen can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterdp.operate.curves import Curve, Line, RunCurves, by_interest, thin

# Parts of the range of steps, of each of which the least and the largest value are drawn: the first that fits.
PARTS = (1000, 500, 250, 120, 60, 30)
MOST_POINTS = 300_000  # of the page, at up to 20 bytes each
MOST_CHARTS = 200
MOST_AGAIN = 20  # pieces of one curve that were trained again: the newest
MOST_MARKS = 50  # resumed attempts of a run: the newest
SPEED = "steps a second"


@dataclass(frozen=True)
class Charts:
    """data: what the script gets. names: of the charts, in order. notes: what is not drawn as it was measured."""

    data: dict[str, Any]
    names: list[str]
    notes: list[str]


def chart_data(runs: Sequence[RunCurves]) -> Charts:
    found: dict[str, list[Curve | None]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        found[name] = [run.metrics.get(name) for run in runs]
    # A single value makes no curve: the table has it.
    found = {name: found[name] for name in by_interest(found) if any(c and len(c.kept) > 1 for c in found[name])}
    left_out = list(found)[MOST_CHARTS:]
    found = {name: found[name] for name in list(found)[:MOST_CHARTS]}
    if any(len(run.speed.kept) for run in runs):
        found[SPEED] = [run.speed for run in runs]
    lengths = [
        len(line)
        for curves in found.values()
        for curve in curves
        if curve
        for line in (curve.kept, *(each for _, each in curve.again[-MOST_AGAIN:]))
    ]
    parts = next((n for n in PARTS if sum(min(each, 2 * n) for each in lengths) <= MOST_POINTS), PARTS[-1])
    charts = [{"name": name, "lines": _lines(curves, parts)} for name, curves in found.items()]
    data = {"charts": charts, "resumed": [[list(each) for each in run.resumed[-MOST_MARKS:]] for run in runs]}
    most = max((len(curve.kept) for curves in found.values() for curve in curves if curve), default=0)
    return Charts(data, list(found), _notes(runs, parts, most, left_out))


def _lines(curves: Sequence[Curve | None], parts: int) -> list[dict[str, Any]]:
    """Of one chart. Lines of steps that were trained again come first: the others are drawn over them."""
    steps = [line.steps for curve in curves if curve for line in (curve.kept, *(each for _, each in curve.again))]
    steps = [each for each in steps if len(each)]
    first, last = min(int(each[0]) for each in steps), max(int(each[-1]) for each in steps)
    again, kept = [], []
    for run, curve in enumerate(curves):
        if curve is None:
            continue
        for number, line in curve.again[-MOST_AGAIN:]:
            again.append({"run": run, "again": number, **_numbers(thin(line, first, last, parts))})
        kept.append({"run": run, **_numbers(thin(curve.kept, first, last, parts))})
    return [*again, *kept]


def _numbers(line: Line) -> dict[str, list[Any]]:
    return {"x": line.steps.tolist(), "y": [float(f"{value:.6g}") for value in line.values.tolist()]}


def _notes(runs: Sequence[RunCurves], parts: int, most: int, left_out: Sequence[str]) -> list[str]:
    notes = []
    if most > 2 * parts:
        notes.append(
            f"Long curves are thinned: of each 1/{parts} of the steps, the least and the largest value are drawn. "
            f"The longest has {most:,} points. Zooming in shows no more; metrics/ in the run folder has all."
        )
    if any(curve.again for run in runs for curve in run.metrics.values()):
        notes.append("Faint: steps that were lost and trained again by a later attempt.")
    if any(run.resumed for run in runs):
        notes.append("Dashed: a later attempt went on from here.")
    if left_out:
        notes.append(f"{len(left_out)} more metrics are not drawn: {', '.join(left_out[:5])}, ...")
    return notes
