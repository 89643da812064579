"""`clusterdp cancel` and `clusterdp stop` of a sweep: both commands mark all elements first, then call Slurm once for
all jobs.

The marks are not synced to disk one by one, because 1,000 syncs may take minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.change.cancel import may_still_run
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.queue.moved_folder import refuse_copy
from clusterdp.operate.queue.run_status import WAITS, alive, without_others
from clusterdp.operate.sweep.elements import ElementStatus, SweepStatus, ask_for_all, listed, read_sweep
from clusterdp.rundir import SweepDir, mark_cancelled, mark_stopped, mark_told
from clusterdp.slurm import commands
from clusterdp.wording import counted

MARKED = " They are marked: no attempt of them starts any more."


def cancel_sweep(folder: SweepDir) -> str:
    """Cancels all elements, without waiting for the jobs' end, and returns a message about the result. Calling this
    function twice is harmless.

    Raises SlurmError or RunError if Slurm could not be asked; even after such an error the elements stay marked.
    """
    status, path = _read(folder), shown_path(folder.path)
    going = _going(status)
    for each in going:
        mark_cancelled(each.history.run, each.history.job, durably=False)
    told: list[str] = []
    # A second round: during the first, a batch program that has not seen its mark may have submitted a new job.
    silent = others = ""
    for _ in range(2):
        try:
            rows, others = _live(status, going)
            live = list(rows)
        except SlurmError:  # scancel is still called, and only its error is raised
            live, silent = _recorded(status, going), " Squeue did not answer, so Slurm was told of all that may live."
        new = [job for job in live if job not in told]
        if new:
            _scancel(list(dict.fromkeys(job.partition("_")[0] for job in new)), path)  # one id for a whole array
        told += new
        status = read_sweep(folder) if told else status
    for each in going:
        if each.history.job:
            mark_told(each.history.run, each.history.job)
    if not going:
        return f"{path}: every element is over already; nothing to cancel."
    return f"{path}: cancelled {counted(len(going), 'element')}; no attempt of them starts any more{others}.{silent}"


def _scancel(arrays: list[str], path: str) -> None:
    try:
        commands.cancel(*arrays)
    except SlurmError as error:
        raise SlurmError(f"{error}{MARKED} {may_still_run(path, arrays)}") from None


def stop_sweep(folder: SweepDir) -> str:
    """Makes running elements save and end, cancels waiting elements, and returns a message about the result."""
    status, path = _read(folder), shown_path(folder.path)
    going = _going(status)
    if not going:
        return f"{path}: every element is over already; nothing to stop."
    for each in going:
        mark_stopped(each.history.run, each.history.job, durably=False)
    own, others = _live(status, going)
    waiting = [job for job, row in own.items() if row.state in WAITS]
    running = [job for job in own if job not in waiting]
    if waiting:
        commands.cancel(*waiting)
    if running and not going[0].history.entry:
        commands.terminate_steps(*running)
    how = "save and end" if going[0].history.entry else "got TERM, and end when their programs do"
    return f"{path}: {counted(len(waiting), 'element')} left the queue; {len(running)} that run {how}{others}."


def check_sweep_over(folder: SweepDir) -> None:
    """Raises RunError or SlurmError unless every element is known to be over. `clusterdp rm` calls this function before
    a removal."""
    status, path = _read(folder), shown_path(folder.path)
    if status.said:
        raise SlurmError(f"{path}: {status.said}. So it is not known whether it is over. Try again where it is.")
    rows = ask_for_all([each.history for each in status.elements]) or {}
    live = [each for each in status.elements if any(job in rows and alive(rows[job]) for job in each.history.jobs)]
    if live:
        end = f"Wait, or `clusterdp cancel {path}`; then remove it."
        raise RunError(f"{path}: elements {listed(live)} are not over. {end}")


def _read(folder: SweepDir) -> SweepStatus:
    """Returns the status of the sweep's elements. Raises RunError if the folder is a copy, whose jobs belong to the
    original."""
    status = read_sweep(folder)
    for each in status.elements[:1]:
        refuse_copy(each.history, element=True)
    return status


def _going(status: SweepStatus) -> list[ElementStatus]:
    if status.said:
        return [each for each in status.elements if not each.history.state.over]
    return [each for each in status.elements if not each.status.state.over]


def _rows(status: SweepStatus, going: Sequence[ElementStatus]) -> dict[str, commands.SqueueRow]:
    try:
        rows = ask_for_all([each.history for each in going])
    except SlurmError as error:
        raise SlurmError(f"{error}{MARKED}") from None
    if rows is None:
        path = shown_path(status.folder.path)
        raise RunError(f"{path}: there is no squeue here that knows its cluster, so Slurm was not told.{MARKED}")
    return rows


def _live(status: SweepStatus, going: Sequence[ElementStatus]) -> tuple[dict[str, commands.SqueueRow], str]:
    """Returns the rows of the live jobs, and a message about jobs of others that have their numbers."""
    rows = _rows(status, going)
    own = {job: rows[job] for job in _recorded(status, going) if job in rows and alive(rows[job])}
    return without_others(going[0].history, own) if going else ({}, "")


def _recorded(status: SweepStatus, going: Sequence[ElementStatus]) -> list[str]:
    numbers = {each.number for each in going}
    return list(dict.fromkeys(job for each in status.elements if each.number in numbers for job in each.history.jobs))
