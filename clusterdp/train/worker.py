"""The process of one rank: `python -m clusterdp.train.worker RUN_DIR`, under srun, torchrun, submitit, or alone.

Loading torch and the user's modules takes seconds, on a busy NFS a minute, and a preemption in that time must not look
like a crash. Therefore this file imports little, and imports the rest after the signal handlers are in place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp.errors import ClusterdpError
from clusterdp.train.output.say import say
from clusterdp.train.ranks.stop import STOPPED_EXIT, StopSignal

if TYPE_CHECKING:
    from clusterdp.train.process.attempt import Outcome


def main(argv: Sequence[str]) -> int:
    """Runs the attempt of a run folder. Returns the exit code; does not return from a crash."""
    stop = StopSignal().install()
    from clusterdp.train.process import attempt

    if len(argv) != 1:
        say("usage: python -m clusterdp.train.worker RUN_DIR", error=True)
        return attempt.ENTRY_EXIT
    try:
        return attempt.run_folder(Path(argv[0]).absolute(), stop).exit_code
    except ClusterdpError as error:
        say(f"clusterdp: {error}", error=True)
        return error.exit_code
    finally:
        stop.ignore()


def run_in_submitit(run_dir: str) -> Outcome:
    """Runs in a task of submitit, and restores submitit's signal handlers. Does not return from a crash."""
    with StopSignal() as stop:
        from clusterdp.train.process import attempt

        return attempt.run_folder(Path(run_dir).absolute(), stop)


def run(function: Callable[..., Any], argv: Sequence[str] | None = None) -> int:
    """Calls function(job, **values) for `python -m your.module key=value ...`, alone or under torchrun.

    If CLUSTERDP_RUN_DIR names a folder, the run is kept there, and the same command continues the stopped run. A
    config.yaml in the folder, as in a job, replaces defaults of `checkpoint`, `train` and `metrics`.
    """
    from clusterdp.train.process import attempt, entry
    from clusterdp.train.settings import WorkerSettings, parse_words

    with StopSignal() as stop:
        try:
            params = parse_words(sys.argv[1:] if argv is None else argv)
            entry.check_params(function, params)
            settings = WorkerSettings.own(params)
        except ClusterdpError as error:
            return attempt.refuse(error, WorkerSettings.bare({}).run_dir)
        ending = attempt.run_function(function, settings, stop)
    if ending.outcome == "requeue" or ending.reason == "user":
        kept = "; run it again to go on" if settings.run_dir else ""
        say(f"clusterdp: stopped at step {ending.step} ({ending.reason}){kept}.", error=True)
        return STOPPED_EXIT
    return ending.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
