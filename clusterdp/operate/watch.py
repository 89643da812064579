"""`--watch`: follow a run to its end, show how it goes, and give its verdict as the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import TextIO

from clusterdp.operate.follow import Moment, Pace, follow
from clusterdp.operate.formatting import Ink, shown
from clusterdp.operate.queue import consult
from clusterdp.operate.run_state import INTERRUPTED
from clusterdp.operate.run_summary import summary
from clusterdp.operate.screen import screen_for
from clusterdp.rundir import RunDir


def watch(
    run: RunDir,
    out: TextIO | None = None,
    *,
    pace: Pace | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
    farewell: str | None = None,
) -> int:
    """Returns the verdict's exit code, or 130 after Ctrl-C, which leaves the job alone and prints `farewell`.

    `on_progress(step, total)` is called whenever the step has changed, between two drawings.
    """
    out = out or sys.stdout
    moment: Moment | None = None
    reported: int | None = None
    try:
        with closing(screen_for(out)) as screen:
            for moment in follow(run, pace):
                screen.show(moment)
                step = moment.history.step
                if on_progress is not None and step is not None and step != reported:
                    reported = step
                    on_progress(step, moment.history.total)
    except KeyboardInterrupt:
        out.write(_farewell(run, moment) if farewell is None else farewell)
        return INTERRUPTED
    if moment is None:
        raise AssertionError("follow() yields at least once")
    standing = consult(moment.history) if moment.history.may_come_again else moment.standing
    out.write("\n" + "\n".join(summary(moment.history, standing, Ink(out))) + "\n")
    out.flush()
    return standing.verdict.exit_code


def _farewell(run: RunDir, moment: Moment | None) -> str:
    job = f"job {moment.history.job}" if moment and moment.history.job else "the job"
    path = shown(run.path)
    return (
        f"\nNot followed any more; {job} goes on without you.\n"
        f"  clusterdp watch {path}\n"
        f"  clusterdp status {path}\n"
        f"  clusterdp cancel {path}\n"
    )
