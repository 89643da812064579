"""Runs and sweeps in a notebook: HTML of their state, and lines of their progress."""

from __future__ import annotations

import html
import io
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterdp.errors import ClusterdpError
from clusterdp.operate.output.formatting import Colour
from clusterdp.operate.output.terminal import printable
from clusterdp.rundir import RunDir, SweepDir

if TYPE_CHECKING:
    from clusterdp.operate.record.run_history import RunHistory

WIDTH, HEIGHT, MARGIN = 480, 120, 6  # pixels of the curve


def run_html(run: RunDir) -> str:
    """Returns what `clusterdp status` prints, and a curve: of a loss, if one is on record."""
    from clusterdp.operate.queue.run_cluster import commands_of
    from clusterdp.operate.queue.run_status import current_status
    from clusterdp.operate.record.run_history import read_history
    from clusterdp.operate.status.show_status import as_text

    try:
        history = read_history(run)
        with commands_of(history.cluster):
            status = current_status(history)
        lines = as_text(history, status, time.time(), Colour(io.StringIO()))
    except ClusterdpError as error:
        return _pre(str(error))
    return f"{_pre(*lines)}{_curve(history)}"


def _pre(*lines: str) -> str:
    return f"<pre>{html.escape(printable(chr(10).join(lines)))}</pre>"


def _curve(history: RunHistory) -> str:
    from clusterdp.operate.compare.curves import by_interest, read_curves, thin

    curves = read_curves(history).metrics
    name = next((name for name in by_interest(curves) if len(curves[name].kept) > 1), None)
    if name is None:
        return ""
    whole = curves[name].kept
    first, last = int(whole.steps[0]), int(whole.steps[-1])
    line = thin(whole, first, last, WIDTH // 2)
    low, high = float(line.values.min()), float(line.values.max())
    x = MARGIN + (line.steps - first) / max(1, last - first) * (WIDTH - 2 * MARGIN)
    y = MARGIN + (high - line.values) / ((high - low) or 1.0) * (HEIGHT - 2 * MARGIN)
    points = " ".join(f"{across:.1f},{down:.1f}" for across, down in zip(x, y, strict=True))
    said = html.escape(
        f"{printable(name)} from {whole.values[0]:.4g} to {whole.values[-1]:.4g}, steps {first} to {last}"
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">'
        f'<polyline points="{points}" fill="none" stroke="#2a6fb0" stroke-width="1.5"/></svg><div>{said}</div>'
    )


def sweep_html(folder: SweepDir) -> str:
    """Returns the table of `clusterdp sweep`: the elements, best first."""
    from clusterdp.operate.sweep.elements import read_sweep, status_table
    from clusterdp.operate.sweep.results import best_first

    try:
        ranking = best_first(read_sweep(folder).elements)
        lines = status_table(ranking.elements, Colour(io.StringIO()), metrics=ranking.metrics)
    except ClusterdpError as error:
        lines = [str(error)]
    return _pre(*lines)


def progress_of(run: RunDir) -> Callable[[], None]:
    """Returns a function that prints the news of the run since its last call, as `clusterdp watch` does. It reads the
    run folder, and seldom asks Slurm."""
    from clusterdp.operate.status.follow import Pace, follow
    from clusterdp.operate.status.watch import RunLines

    updates = follow(run, Pace(ask_s=60.0, sleep=lambda seconds: None))
    lines = RunLines(sys.stdout)

    def show() -> None:
        if (update := next(updates, None)) is not None:
            lines.show(update)

    return show
