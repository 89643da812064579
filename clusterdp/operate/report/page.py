"""`clusterdp report`: the page. All that it needs is in it: styles, scripts and data.

What is in a run folder was written by others. Data cannot end its script element; html_page.document does the rest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterdp import __version__
from clusterdp.errors import ConfigError
from clusterdp.operate.curves import read_curves
from clusterdp.operate.formatting import shown_path, size
from clusterdp.operate.html_page.document import base_style, policy, template
from clusterdp.operate.output_file import write_output
from clusterdp.operate.report.chart_data import chart_data
from clusterdp.operate.report.differences import differences
from clusterdp.operate.report.run_view import view_of
from clusterdp.operate.run_history import read_history
from clusterdp.rundir import RunDir, SweepDir, is_sweep
from clusterdp.wording import counted

HERE = Path(__file__).parent
MOST_RUNS = 20  # of one page: more lines cannot be told apart


def write_report(runs: Sequence[RunDir], file: str | None) -> str:
    """Writes the page, by default report-<name of the run folder>.html here, and returns a line about it. Of a sweep
    all elements are meant. ConfigError for too many runs; OutputError if it cannot be written."""
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
    """Of a sweep; else the run alone."""
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
    if len(set(labels)) < len(labels):  # elements of several sweeps
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
    """For a script element: no text in it can end the element, or begin a comment."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
