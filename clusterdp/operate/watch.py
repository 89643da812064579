"""`clusterdp watch` and `--watch`: follow a run to its end, show its progress, and exit with the code of its state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import TextIO

from clusterdp.operate.follow import Pace, RunUpdate, follow
from clusterdp.operate.formatting import Colour, shown_path
from clusterdp.operate.moved_folder import refuse_copy
from clusterdp.operate.queue import current_status
from clusterdp.operate.run_history import read_history
from clusterdp.operate.run_state import INTERRUPTED
from clusterdp.operate.run_summary import summary
from clusterdp.operate.screen import screen_for
from clusterdp.operate.width import width_of
from clusterdp.rundir import RunDir


def watch(
    run: RunDir,
    out: TextIO | None = None,
    *,
    pace: Pace | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
    farewell: str | None = None,
) -> int:
    """Returns the state's exit code, or 130 after Ctrl-C, which leaves the job alone and prints `farewell`.

    `on_progress(step, total)` is called whenever the step has changed, between two drawings.
    """
    out = out or sys.stdout
    if not (history := read_history(run)).state.over:
        refuse_copy(history)
    update: RunUpdate | None = None
    reported: int | None = None
    try:
        with closing(screen_for(out)) as screen:
            for update in follow(run, pace):
                screen.show(update)
                step = update.history.step
                if on_progress is not None and step is not None and step != reported:
                    reported = step
                    on_progress(step, update.history.total)
    except KeyboardInterrupt:
        out.write(_farewell(run, update) if farewell is None else farewell)
        return INTERRUPTED
    if update is None:
        raise AssertionError("follow() yields at least once")
    status = current_status(update.history) if update.history.may_come_again else update.status
    out.write("\n" + "\n".join(summary(update.history, status, Colour(out), columns=width_of(out))) + "\n")
    out.flush()
    return status.state.exit_code


def _farewell(run: RunDir, update: RunUpdate | None) -> str:
    job = f"job {update.history.job}" if update and update.history.job else "the job"
    path = shown_path(run.path)
    return (
        f"\nNot followed any more; {job} goes on without you.\n"
        f"  clusterdp watch {path}\n"
        f"  clusterdp status {path}\n"
        f"  clusterdp cancel {path}\n"
    )
