"""`clusterdp stop`: makes a run save and end. The command marks the run folder, and the ranks see the mark at one of
their next steps.

A program started by `command:` or `script:` gets the signal TERM, as at a preemption. The batch script sees the mark,
and does not requeue the job.
"""

from __future__ import annotations

from clusterdp.errors import RunError
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.queue.moved_folder import refuse_copy
from clusterdp.operate.queue.run_status import WAITS, alive, ask_squeue, without_others
from clusterdp.operate.record.run_history import read_history
from clusterdp.rundir import RunDir, mark_stopped
from clusterdp.slurm import commands


def stop(run: RunDir) -> str:
    """Stops the run, without waiting for the job's end, and returns a message about the result. A second `clusterdp
    stop` sends TERM again.

    Raises RunError if the mark cannot be written, or if no squeue here knows the cluster of a program that needs TERM.
    Raises SlurmError if Slurm does not answer. Even after SlurmError the mark stays.
    """
    history = read_history(run)
    refuse_copy(history)
    path = shown_path(run.path)
    if history.state.over:
        return f"{path}: is over already ({history.state.value}); nothing to stop."
    mark_stopped(run, history.job)
    rows = ask_squeue(history)
    if rows is None and not history.entry:
        raise RunError(
            f"{path}: there is no squeue here that knows its cluster ({history.cluster or 'unknown'}), so its program "
            "was not told. It is not requeued when it ends. Run this where the job was submitted."
        )
    rows, others = without_others(history, rows or {})
    waiting = [job for job, row in rows.items() if row.state in WAITS]
    running = [job for job, row in rows.items() if alive(row) and job not in waiting]
    for job in waiting:  # a waiting job has nothing to save
        commands.cancel(job)
    if not history.entry:
        for job in running:
            commands.terminate_steps(job)
    done = [f"job {job} has left the queue" for job in waiting]
    how = "saves at one of its next steps and ends" if history.entry else "got TERM, and ends when its program does"
    done += [f"job {job} {how}" for job in running]
    words = ("; ".join(done) or "marked; a job that runs stops, and no attempt starts any more") + others
    after = (
        "The program, started again, goes on with it"
        if history.is_local
        else f"`clusterdp resume {path}` goes on with it"
    )
    return f"{path}: {words}. {after}."
