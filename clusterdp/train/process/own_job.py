"""The job of a script that runs without the worker: `python train.py`, under torchrun, or as `command:`.

    job = own_job()           # the first argument of an entry's function: see JobHandle

If CLUSTERDP_RUN_DIR names a folder (as in a job), the run is kept there, and the same command continues the run. If the
ranks agree to stop, the script ends after the save, with an exit code that means: run it again.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from types import TracebackType

from clusterdp.checkpoint.errors import ClaimLost
from clusterdp.errors import ClusterdpError, SlurmError
from clusterdp.rundir import RunDir
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train.argument_names import checked
from clusterdp.train.hang import page
from clusterdp.train.job import JobHandle, running_job
from clusterdp.train.output.say import say
from clusterdp.train.process.attempt import (
    ENTRY_EXIT,
    Outcome,
    ending_of,
    explained,
    fail,
    first_line,
    refuse,
    report_failure,
    start_group,
    write_outcome,
)
from clusterdp.train.ranks.claim import Claim
from clusterdp.train.ranks.stop import STOPPED_EXIT, Stopped, StopSignal
from clusterdp.train.settings import WorkerSettings


@checked
def own_job() -> JobHandle:
    """Returns the job of this process. Collective. The job ends with the process. An error on one rank ends all ranks,
    and each rank prints one line. In a function that the worker or launch() calls, returns the function's JobHandle."""
    return running_job() or _own_job()


@functools.cache
def _own_job() -> JobHandle:
    stop = StopSignal().install()
    try:
        SlurmEnv.read()
        settings = WorkerSettings.own({})
    except SlurmError as error:  # it cannot be known which rank this is
        say(f"clusterdp: {error}", error=True)
        sys.exit(ENTRY_EXIT)
    except ClusterdpError as error:
        sys.exit(refuse(error, WorkerSettings.bare({}).run_dir))
    group, attempt = start_group(settings, stop)
    rank, world_size = group.rendezvous.rank, group.rendezvous.world_size
    job: JobHandle | None = None

    def end(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        if isinstance(error, Stopped):
            if rank == 0:
                kept = "; run it again to go on" if settings.run_dir else ""
                say(f"clusterdp: stopped at step {error.step} ({error.reason}){kept}.", error=True)
                if error.reason == "user" and settings.run_dir:  # else a batch script would requeue the run
                    write_outcome(RunDir(settings.run_dir).attempt(attempt).outcome, ending_of(error))
            sys.exit(STOPPED_EXIT)  # sys.exit() also works in an excepthook
        if job and isinstance(error, RuntimeError):
            error = explained(error, job) or error
        if job and isinstance(error, ClaimLost) and settings.run_dir is not None and rank == 0:
            write_outcome(RunDir(settings.run_dir).attempt(attempt).outcome, Outcome("overtaken", "claim", job.step))
        if world_size > 1:
            fail(error, group, settings.run_dir)
        if isinstance(error, ClusterdpError):
            sys.exit(report_failure(error, group, settings.run_dir))
        before(kind, error, at)

    before, sys.excepthook = sys.excepthook, end
    claim = None
    if settings.run_dir is not None and rank == 0:
        claim = Claim.take(RunDir(settings.run_dir).claims, attempt, os.urandom(4).hex())
    job = JobHandle(settings, group, stop, attempt, claim)
    if settings.run_dir is not None:  # else the program is on somebody's terminal, or in a notebook
        say(first_line(group))
    page.enter(page.PROGRAM)

    @atexit.register
    def close() -> None:
        page.enter(page.END)
        job.record.time.tell()
        job.metrics.close()
        group.close()

    return job
