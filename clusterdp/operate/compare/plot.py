"""`clusterdp plot`: metrics of a run as curves in the terminal, or as a picture."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from clusterdp.errors import ConfigError, RunError
from clusterdp.operate.compare.curves import Curve, RunCurves, by_interest, read_curves, thin
from clusterdp.operate.output.formatting import number, shown_path
from clusterdp.operate.output.output_file import write_output
from clusterdp.operate.output.terminal import printable, terminal_columns
from clusterdp.operate.record.run_history import RunHistory, check_read, read_history
from clusterdp.rundir import RunDir
from clusterdp.wording import did_you_mean, some_of

FEW, MANY = 2, 12  # limits of curves in the terminal and in a picture, if no METRIC is given
NARROWEST, ROWS = 30, 14  # least columns, and lines, of a curve in the terminal
INSTALL = "is not installed. pip install 'clusterdp[plots]'."


def plot(run: RunDir, names: Sequence[str], out: TextIO, file: str | None = None) -> None:
    """Prints curves, or writes a picture to `file`. `names` are the metrics; if `names` is empty, the first metrics of
    by_interest() are drawn. Raises ConfigError for an unknown metric or a missing library, RunError if the run recorded
    no metrics."""
    history = read_history(run)
    if not file:
        columns = terminal_columns() if out is sys.stdout and out.isatty() else 80
        out.write(curves_in_text(history, names, columns) + "\n")
        return
    curves = read_curves(history)
    chosen = _chosen(history, curves, names, MANY)
    title = f"{history.name} ({run.path.name})" if history.name != run.path.name else history.name
    _picture(chosen, curves.resumed, title, Path(file).expanduser())
    out.write(f"{shown_path(Path(file).expanduser())}: {some_of(list(chosen), MANY)}\n")


def curves_in_text(history: RunHistory, names: Sequence[str], columns: int) -> str:
    """Returns the curves that plot() prints, in lines of at most `columns`. Raises its errors."""
    curves = read_curves(history)
    chosen = _chosen(history, curves, names, FEW)
    lines = [_in_text(name, curve, curves.resumed, max(NARROWEST, columns)) for name, curve in chosen.items()]
    others = [name for name in by_interest(curves.metrics) if name not in chosen]
    return "\n".join(lines + [f"also measured: {some_of(others, 12)}"] * bool(others and not names))


def _chosen(history: RunHistory, curves: RunCurves, names: Sequence[str], most: int) -> dict[str, Curve]:
    measured = {name: curves.metrics[name] for name in by_interest(curves.metrics) if len(curves.metrics[name].kept)}
    if not measured:
        check_read(history)
        raise RunError(
            f"{shown_path(history.run.path)}: no metrics are on record. loop.log(loss=...) and job.metrics write them."
        )
    for name in names:
        if name not in measured:
            guess = did_you_mean(name, measured)
            there = f"There are: {some_of(list(measured), 20)}."
            raise ConfigError(f"{name}: the run has no such metric. {guess + ' ' * bool(guess)}{there}")
    several = [name for name in measured if len(measured[name].kept) > 1]  # a metric with a single value has no curve
    return {name: measured[name] for name in names or (several or list(measured))[:most]}


def _in_text(name: str, curve: Curve, resumed: Sequence[tuple[int, int]], columns: int) -> str:
    try:
        import plotext
    except ImportError:
        raise ConfigError(f"plot: plotext {INSTALL} Or write a picture: -o FILE.png") from None
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)  # a terminal that says 0 rows would get an empty plot
    plotext.plotsize(columns, ROWS)
    kept = curve.kept
    steps = [line.steps for line in (kept, *(line for _, line in curve.again))]
    first, last = min(int(each[0]) for each in steps), max(int(each[-1]) for each in steps)
    for _, line in curve.again:
        few = thin(line, first, last, 2 * columns)
        plotext.scatter(few.steps.tolist(), few.values.tolist(), marker=".")
    few = thin(kept, first, last, 2 * columns)  # a braille character is two dots wide
    plotext.plot(few.steps.tolist(), few.values.tolist(), marker="braille")
    plotext.title(f"{name}  {number(float(kept.values[-1]))} at step {kept.steps[-1]}")
    plotext.xticks(sorted({first + (last - first) * third // 3 for third in range(4)}))
    text = "\n".join(line.rstrip() for line in printable(plotext.build()).splitlines())
    notes = ["dots: trained again"] * bool(curve.again)
    if resumed:
        notes.append(
            "resumed at step " + some_of([str(step) for step in dict.fromkeys(step for _, step in resumed)], 4)
        )
    return "\n".join([text, *notes])


def _picture(chosen: Mapping[str, Curve], resumed: Sequence[tuple[int, int]], title: str, file: Path) -> None:
    try:
        from matplotlib.figure import Figure  # unlike pyplot: no window, no global state
    except ImportError:
        raise ConfigError(f"plot: matplotlib {INSTALL}") from None
    figure: Any = Figure(figsize=(7, 0.4 + 2.6 * len(chosen)), layout="constrained")
    figure.suptitle(title)
    for place, (name, curve) in enumerate(chosen.items()):
        axes = figure.add_subplot(len(chosen), 1, place + 1)
        for _, line in curve.again:
            axes.plot(line.steps, line.values, color="C0", alpha=0.3, linewidth=1)
        axes.plot(curve.kept.steps, curve.kept.values, color="C0", linewidth=1, marker="." * (len(curve.kept) < 30))
        for _, step in resumed:
            axes.axvline(step, color="0.6", linestyle="--", linewidth=1)
        axes.set_ylabel(name.replace("$", r"\$"))  # matplotlib reads text between two $ as a formula
        axes.grid(alpha=0.3)
    axes.set_xlabel("step")
    picture = io.BytesIO()
    try:
        figure.savefig(picture, format=file.suffix[1:] or None)
    except ValueError as error:
        raise ConfigError(f"-o {file}: {str(error).splitlines()[0]}. Name a file such as curves.png.") from None
    write_output(file, picture.getvalue(), "FILE.png")
