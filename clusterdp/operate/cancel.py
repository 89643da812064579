"""`clusterdp cancel`: end a run for good. The run folder is marked first, then Slurm cancels the jobs."""

from __future__ import annotations

from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.formatting import shown_path
from clusterdp.operate.queue import ask_squeue, live_jobs
from clusterdp.operate.run_history import read_history
from clusterdp.operate.run_state import RunState
from clusterdp.rundir import RunDir, mark_cancelled


def cancel(run: RunDir) -> str:
    """Returns what was done, in words. Idempotent; does not wait for the job to end.

    SlurmError or RunError if Slurm could not be asked. The run stays marked even then: no attempt starts any more.
    """
    history = read_history(run)
    path = shown_path(run.path)
    over = history.state.over and not history.cancelled
    # A failed run's job may have been requeued by somebody: it is not over until squeue says so.
    if over and (history.state is RunState.DONE or not _live(run, history.state.over)):
        return f"{path}: is over already ({history.state.value}); nothing to cancel."
    mark_cancelled(run, history.job)
    live = _cancel_jobs(run, history.state.over)
    if live:
        done = f"cancelled job {', '.join(live)}; no attempt starts any more"
    elif history.cancelled:
        return f"{path}: was cancelled already, and none of its jobs is alive."
    else:
        done = "marked as cancelled; none of its jobs was alive"
    return f"{path}: {done}. `clusterdp resume {path}` goes on with it."


def _cancel_jobs(run: RunDir, was_over: bool) -> list[str]:
    from clusterdp.slurm import commands

    told: list[str] = []
    # Twice, for a batch script that had not seen the marker yet may have put a new job into the queue meanwhile.
    for _ in range(2):
        live = [job for job in _live(run, was_over) if job not in told]
        for job in live:
            commands.cancel(job)
        if not live:
            break
        told += live
    return told


def _live(run: RunDir, was_over: bool) -> list[str]:
    history = read_history(run)
    marked = " The run is marked as cancelled: no attempt starts any more." if history.cancelled else ""
    try:
        rows = ask_squeue(history)
    except SlurmError as error:
        raise SlurmError(f"{error}{marked}") from None
    if rows is not None:
        return live_jobs(rows)
    if was_over:
        return []
    raise RunError(
        f"{shown_path(run.path)}: there is no squeue here that knows its cluster ({history.cluster or 'unknown'}), "
        f"so job {history.job} could not be cancelled.{marked} Run this where the job was submitted."
    )
