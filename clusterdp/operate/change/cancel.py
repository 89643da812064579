"""`clusterdp cancel`: ends a run for good. First the command marks the run folder, then Slurm cancels the jobs."""

from __future__ import annotations

from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.queue.moved_folder import refuse_copy
from clusterdp.operate.queue.run_status import ask_squeue, live_jobs, without_others
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.rundir import RunDir, mark_cancelled, mark_told
from clusterdp.wording import some_of

MARKED = "The run is marked as cancelled: no attempt starts any more."


def cancel(run: RunDir) -> str:
    """Cancels the run, without waiting for the job's end, and returns a message about the result. Calling this function
    twice is harmless.

    Raises SlurmError or RunError if Slurm could not be asked. Even after such an error the run stays marked, and no
    attempt starts.
    """
    history = read_history(run)
    refuse_copy(history)
    path = shown_path(run.path)
    if history.is_local and not history.state.over:
        raise RunError(f"{path}: runs without Slurm. `clusterdp stop {path}` saves and ends it.")
    over = history.state.over and not history.cancelled
    # A user or an administrator may have requeued the job of a failed run: the run is over only if squeue has no live
    # job.
    if over and (history.state is RunState.DONE or not _live(history, history.state.over)[0]):
        return f"{path}: is over already ({history.state.value}); nothing to cancel."
    mark_cancelled(run, history.job)
    told, silent, others = _cancel_jobs(run, history.state.over)
    if silent:
        done = f"told Slurm to cancel job {', '.join(told)}, though squeue did not answer; no attempt starts any more"
    elif told:
        done = f"cancelled job {', '.join(told)}; no attempt starts any more"
    elif history.cancelled:
        return f"{path}: was cancelled already, and none of its jobs is alive{others}."
    else:
        done = "marked as cancelled; none of its jobs was alive"
    return f"{path}: {done}{others}. `clusterdp resume {path}` goes on with it."


def may_still_run(path: str, jobs: list[str]) -> str:
    """Returns the remedy to print if Slurm may not have cancelled some jobs."""
    return f"Job {some_of(jobs)} may still run: `clusterdp cancel {path}` again, or `scancel {' '.join(jobs[:8])}`."


def _cancel_jobs(run: RunDir, was_over: bool) -> tuple[list[str], str, str]:
    """Returns the jobs for which scancel was called, squeue's error, which is empty if squeue answered, and a message
    about jobs of others."""
    from clusterdp.slurm import commands

    told: list[str] = []
    silent = others = ""
    # A second round: during the first, a batch program that has not seen the mark may have submitted a new job.
    for _ in range(2):
        history = read_history(run)
        try:
            live, others = _live(history, was_over)
        except SlurmError as error:
            live, silent = _unended(history), str(error)
            if history.unread or not live:
                raise SlurmError(f"{error} {MARKED}") from None
        new = [job for job in live if job not in told]
        for job in new:
            try:
                commands.cancel(job)
            except SlurmError as error:
                raise SlurmError(f"{error} {MARKED} {may_still_run(shown_path(run.path), [job])}") from None
        told += new
        if not new:
            break
    for job in dict.fromkeys([*told, *([history.job] if history.job else [])]):
        mark_told(run, job)
    return told, silent, others


def _unended(history: RunHistory) -> list[str]:
    """Returns the jobs that may be alive, judged by the records alone: the current job, and jobs without a recorded
    attempt."""
    began = {attempt.job for attempt in history.attempts}
    return [job for job in history.jobs if job == history.job or job not in began]


def _live(history: RunHistory, was_over: bool) -> tuple[list[str], str]:
    """Returns the run's live jobs, and a message about jobs of others. Raises SlurmError if squeue does not answer,
    RunError if no squeue knows the cluster."""
    rows = ask_squeue(history)
    if rows is not None:
        ours, others = without_others(history, rows)
        return live_jobs(ours), others
    if was_over:
        return [], ""
    marked = f" {MARKED}" if history.cancelled else ""
    raise RunError(
        f"{shown_path(history.run.path)}: there is no squeue here that knows its cluster "
        f"({history.cluster or 'unknown'}), so job {history.job} could not be cancelled.{marked} "
        "Run this where the job was submitted."
    )
