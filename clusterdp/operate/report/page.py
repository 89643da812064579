"""`clusterdp report`: makes the page, a single file with its styles, scripts and data.

Other people wrote the files of a run folder. as_json() prevents data from ending the script element that contains the
data; html_page.document has the other precautions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterdp import __version__
from clusterdp.errors import ClusterdpError, ConfigError
from clusterdp.operate.compare.curves import Curve, Line, RunCurves, by_interest, read_curves, thin
from clusterdp.operate.compare.diff import OWN, abbreviated, commit_of, config_of, end_of, source_record
from clusterdp.operate.html_page.document import base_style, policy, template
from clusterdp.operate.output.formatting import number, shown_path
from clusterdp.operate.output.output_file import write_output
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.report.run_view import view_of
from clusterdp.rundir import RunDir, SweepDir, is_sweep
from clusterdp.wording import counted, size

HERE = Path(__file__).parent
MOST_RUNS = 20  # runs on a page: a reader cannot distinguish more lines

# A curve's steps are divided into this many parts, and in each part the smallest and the largest value are drawn. The
# first of these numbers that respects MOST_POINTS is used.
PARTS = (1000, 500, 250, 120, 60, 30)
MOST_POINTS = 300_000  # points on the page; each takes up to 20 bytes
MOST_CHARTS = 200
MOST_AGAIN = 20  # repeated pieces of a curve that are drawn: the newest
MOST_MARKS = 50  # resumed attempts of a run that are marked: the newest
SPEED = "steps a second"


def write_report(runs: Sequence[RunDir], file: str | None) -> str:
    """Writes the page, and returns a message about the file. Its default name is report-<name of the run folder>.html
    in the working directory. A sweep stands for all its elements. Raises ConfigError for too many runs, OutputError if
    the page cannot be written."""
    path = Path(file).expanduser() if file else Path(default_name(runs))
    runs = [each for run in runs for each in _elements(run)]
    if len(runs) > MOST_RUNS:
        raise ConfigError(f"report: {len(runs)} runs are too many for one page. Name {MOST_RUNS} at most.")
    page = page_of(runs, time.time())
    write_output(path, page, "FILE.html")
    return f"{shown_path(path)}: {counted(len(runs), 'run')}, {size(len(page))}. Open it in a browser."


def default_name(runs: Sequence[RunDir]) -> str:
    more = f"-and-{len(runs) - 1}-more" if len(runs) > 1 else ""
    return f"report-{runs[0].path.name}{more}.html"


def _elements(run: RunDir) -> list[RunDir]:
    """Returns the elements if `run` is a sweep, else a list with `run` alone."""
    sweep = SweepDir(run.path)
    return [sweep.element(number) for number in sweep.numbers()] if is_sweep(run.path) else [run]


def page_of(runs: Sequence[RunDir], now: float) -> bytes:
    histories = [read_history(run) for run in runs]
    curves = [read_curves(history) for history in histories]
    views = [view_of(history, found, now) for history, found in zip(histories, curves, strict=True)]
    charts = chart_data(curves)
    labels = [view.name for view in views]
    if len(set(labels)) < len(labels):
        labels = [run.path.name for run in runs]
    if len(set(labels)) < len(labels):  # elements of several sweeps may have equal labels
        labels = [f"{run.path.parent.name}/{run.path.name}" for run in runs]
    styles = [_asset("uplot/uPlot.min.css"), base_style() + _asset("page.css")]
    scripts = [_asset("uplot/uPlot.iife.min.js"), _asset("page.js")]
    page: str = template(HERE).render(
        runs=list(zip(labels, views, strict=True)),
        charts=charts,
        data=as_json({"runs": labels, **charts.data}),
        differences=differences(histories) if len(runs) > 1 else [],
        made=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now)),
        version=__version__,
        styles=styles,
        scripts=scripts,
        policy=policy(styles, scripts),
    )
    return page.encode("utf-8", "replace")


def as_json(value: Any) -> str:
    """Returns JSON for a script element. No text in the JSON can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Charts:
    """`data` is the input of page.js, `names` are the names of the charts in their order, and `notes` are remarks on
    how curves are drawn."""

    data: dict[str, Any]
    names: list[str]
    notes: list[str]


def chart_data(runs: Sequence[RunCurves]) -> Charts:
    found: dict[str, list[Curve | None]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        found[name] = [run.metrics.get(name) for run in runs]
    # A single value makes no curve; the table of the page shows the value.
    found = {name: found[name] for name in by_interest(found) if any(c and len(c.kept) > 1 for c in found[name])}
    left_out = list(found)[MOST_CHARTS:]
    found = {name: found[name] for name in list(found)[:MOST_CHARTS]}
    if any(len(run.speed.kept) for run in runs):
        found[SPEED] = [run.speed for run in runs]
    parts = _parts([curve for curves in found.values() for curve in curves if curve])
    charts = [{"name": name, "lines": _lines(curves, parts)} for name, curves in found.items()]
    data = {"charts": charts, "resumed": [[list(each) for each in run.resumed[-MOST_MARKS:]] for run in runs]}
    most = max((len(curve.kept) for curves in found.values() for curve in curves if curve), default=0)
    return Charts(data, list(found), _notes(runs, parts, most, left_out))


def _parts(curves: Sequence[Curve]) -> int:
    """Returns the number of parts for thin() with which the page has at most MOST_POINTS points."""
    lines = [line for curve in curves for line in (curve.kept, *(each for _, each in curve.again[-MOST_AGAIN:]))]
    return next((n for n in PARTS if sum(min(len(each), 2 * n) for each in lines) <= MOST_POINTS), PARTS[-1])


def _lines(curves: Sequence[Curve | None], parts: int) -> list[dict[str, Any]]:
    """Returns the lines of a chart. Lines of repeated steps come first, because page.js draws later lines over them."""
    steps = [line.steps for curve in curves if curve for line in (curve.kept, *(each for _, each in curve.again))]
    steps = [each for each in steps if len(each)]
    first, last = min(int(each[0]) for each in steps), max(int(each[-1]) for each in steps)
    again, kept = [], []
    for run, curve in enumerate(curves):
        if curve is None:
            continue
        for attempt, line in curve.again[-MOST_AGAIN:]:
            again.append({"run": run, "again": attempt, **_numbers(thin(line, first, last, parts))})
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


@dataclass(frozen=True)
class DifferenceRow:
    """A row of the table of differences. `values` has a value for each run; `-` if the run lacks the key."""

    group: str
    key: str
    values: list[str]


def differences(histories: Sequence[RunHistory]) -> list[DifferenceRow]:
    records = [source_record(history.run) for history in histories]
    groups: list[tuple[str, list[dict[str, Any]]]] = [
        ("config", [_config(history) for history in histories]),
        ("code", [{"commit": abbreviated(commit_of(record))} for record in records]),
        ("packages", [_packages(record) for record in records]),
        ("ended", [end_of(history) for history in histories]),
    ]
    if not all(groups[2][1]):  # a run did not record its packages
        del groups[2]
    rows = []
    for group, of_runs in groups:
        for key in dict.fromkeys(key for values in of_runs for key in values):
            values = [each.get(key) for each in of_runs]
            if any(value != values[0] for value in values) and not (group == "config" and key in OWN):
                rows.append(DifferenceRow(group, key, ["-" if value is None else number(value) for value in values]))
    return rows


def _config(history: RunHistory) -> dict[str, Any]:
    try:
        return config_of(history.run)
    except ClusterdpError:  # config.yaml is not valid any more
        return {}


def _packages(record: dict[str, Any]) -> dict[str, Any]:
    packages = record.get("packages")
    return packages if isinstance(packages, dict) else {}
