"""The process of one rank: `python -m clusterdp.train.worker RUN_DIR`, under srun, torchrun, submitit, or alone.

Loading torch and the user's modules takes seconds, on a busy NFS a minute, and a preemption during the imports must not
look like a crash. Therefore this file imports little before the signal handlers are installed.
"""

from __future__ import annotations

import atexit
import gc
import io
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp.batch.nodes.task import unblock
from clusterdp.errors import ClusterdpError
from clusterdp.train.output.say import say
from clusterdp.train.process import fork_server, reserve
from clusterdp.train.ranks.stop import STOPPED_EXIT, StopSignal

if TYPE_CHECKING:
    from clusterdp.train.process.attempt import Outcome


def main(argv: Sequence[str]) -> int:
    """Runs an attempt of a run folder, and returns the exit code. After a crash, main() does not return."""
    stop = StopSignal()
    atexit.register(_skip_last_collection)  # first, and so called last
    fork_server.enter()
    reserve.wait(stop.install)
    unblock()
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
    """Runs an attempt in a task of submitit, and restores submitit's signal handlers. After a crash, the function does
    not return."""
    with StopSignal() as stop:
        from clusterdp.train.process import attempt

        return attempt.run_folder(Path(run_dir).absolute(), stop)


def run(function: Callable[..., Any], argv: Sequence[str] | None = None) -> int:
    """Calls function(job, **values) for `python -m your.module key=value ...`, in a single process or under torchrun.

    If CLUSTERDP_RUN_DIR names a folder, the run is kept there, and the same command continues the stopped run. If the
    folder has a config.yaml, as in a job, its values replace defaults of `checkpoint`, `train` and `metrics`.
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


def _skip_last_collection() -> None:
    """Ends the search for garbage, for which Python's end would need up to a second: it would search all objects of
    torch several times. Open files in garbage are flushed, as the search would have done."""
    kinds: dict[type, bool] = {}
    for each in gc.get_objects():
        kind = type(each)
        if kind not in kinds:
            kinds[kind] = issubclass(kind, io.IOBase)
        if kinds[kind]:
            with suppress(Exception):  # closed, a full disk, or the user's own class
                each.flush()
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
