"""RunStatus: the state of a run, found from its records and squeue, with an explanation for the user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterdp.errors import SlurmError
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.queue.moved_folder import copied_from, moved_from
from clusterdp.operate.queue.pending_reasons import reason_text
from clusterdp.operate.queue.predecessor import never_there, runs_before, waits_for
from clusterdp.operate.queue.run_cluster import is_gone, is_here
from clusterdp.operate.record.ending import ended_as
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.operate.record.run_state import RunState
from clusterdp.rundir import RunDir, sweep_of
from clusterdp.wording import some_of

if TYPE_CHECKING:
    from clusterdp.slurm.commands import SqueueRow

WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "EXPEDITING"})
NEVER = "DependencyNeverSatisfied"
NO_CLUSTER = "its records do not say on which cluster its job is"


class RunStatus(NamedTuple):
    """The state of a run, found from its records and squeue together. `row` is squeue's row of the current job, or
    None."""

    state: RunState
    why: str
    row: SqueueRow | None = None


def current_status(history: RunHistory) -> RunStatus:
    """Returns the state of a run. If the records contain no end of the run, squeue is asked once. If squeue does not
    answer, no error is raised, and `why` has squeue's error."""
    if not is_open(history):
        return RunStatus(history.state, history.why)
    try:
        return status_by(history, ask_squeue(history))
    except SlurmError as error:
        return status_by(history, error)


def is_open(history: RunHistory) -> bool:
    """Returns whether the run's state also depends on squeue, because the records alone do not settle it."""
    return history.may_come_again or not history.state.over


def status_by(history: RunHistory, rows: Mapping[str, SqueueRow] | SlurmError | None) -> RunStatus:
    """Returns the status of an open run (see is_open()). `rows` has squeue's rows or its error; None if no squeue can
    be asked."""
    if (first := copied_from(history)) is not None:
        return RunStatus(history.state, f"as it was copied; the job is that of {shown_path(first)}")
    if (before := moved_from(history)) is not None:
        status = _status_by(history, rows)
        moved = f"its folder was moved here from {before}, where the job looks for it: move it back"
        return status if status.state.over else status._replace(why="; ".join(filter(None, [status.why, moved])))
    return _status_by(history, rows)


def _status_by(history: RunHistory, rows: Mapping[str, SqueueRow] | SlurmError | None) -> RunStatus:
    if history.may_come_again:  # such a run stays done, even if Slurm starts its job again
        row = None if rows is None or isinstance(rows, SlurmError) else rows.get(history.job or "")
        if row is None or not is_held(row):  # else the job finds the run over, and ends by itself
            return RunStatus(history.state, history.why)
        return RunStatus(history.state, queued_again(history.job, row), row)
    if isinstance(rows, SlurmError):
        said = str(rows)
        return RunStatus(history.state, f"as last recorded; {said if len(said) <= 120 else said[:117] + '...'}")
    if rows is None:
        no_squeue = "there is no squeue here that knows its cluster"
        return RunStatus(history.state, f"as last recorded; {no_squeue if history.submitted else NO_CLUSTER}")
    return combine(history, rows)


def queued_again(job: str | None, row: SqueueRow) -> str:
    """Returns a message about a job that Slurm starts again although its run is over."""
    if is_held(row):
        return f"Slurm has put job {job} into its queue again, and holds it ({row.reason}); `scancel {job}` removes it"
    return f"Slurm starts job {job} once more, which finds the run over and ends by itself"


def is_held(row: SqueueRow) -> bool:
    """Returns whether Slurm holds the job, by the reason in squeue's row: JobHeldUser, JobHoldMaxRequeue, launch failed
    requeued held, ..."""
    reason = row.reason.lower()
    return row.state in WAITS and ("held" in reason or "hold" in reason)


def ask_squeue(history: RunHistory) -> dict[str, SqueueRow] | None:
    """Asks squeue once for all jobs of the run. Returns None if no squeue here belongs to the run's cluster.

    Raises SlurmError if squeue does not answer, or if unreadable records may name further jobs.
    """
    if history.unread:
        raise SlurmError(f"{history.unread}. So it is not known which jobs there are. Make it readable first.")
    if not history.jobs_there or history.is_local or is_gone(history.cluster):
        return {}
    if not is_here(history.cluster):
        return None
    from clusterdp.slurm import commands

    return commands.job_states(list(history.jobs_there))


def ask_for_all_jobs(history: RunHistory) -> dict[str, SqueueRow] | None:
    """Returns the rows of ask_squeue(), and the rows of jobs without a record: the user typed sbatch, or submit's
    sbatch timed out."""
    from clusterdp.slurm import commands

    rows = ask_squeue(history)
    if is_here(history.cluster) and not is_gone(history.cluster):
        return {**commands.jobs_of_scripts_in(history.run.path), **(rows or {})}
    return rows


def alive(row: SqueueRow) -> bool:
    """Returns whether the job may still run. A job in an unknown state counts as alive, because a run must never be
    started twice."""
    from clusterdp.slurm.state import JobState

    try:
        return not JobState.parse(row.state).final
    except ValueError:
        return True


def without_others(history: RunHistory, rows: Mapping[str, SqueueRow]) -> tuple[dict[str, SqueueRow], str]:
    """Returns the rows of the run's own jobs, and a message about the others: Slurm gives a number again after
    MaxJobId, or after it was set up anew. Called before a job is ended. A job that a site's sbatch has sent from a copy
    of the script has the run's name."""
    paths = {history.run.path, Path(history.folder or history.run.path)}
    sweep = sweep_of(history.run)
    homes = {f"{os.path.realpath(path)}/" for path in [*paths, *([sweep.path] if sweep else [])]}

    def is_others(row: SqueueRow) -> bool:
        is_path = os.path.isabs(row.script)  # else the job has a script without a path, or none
        if not row.name or (is_path and os.path.realpath(row.script).startswith(tuple(homes))):
            return False
        return row.name != history.name or (is_path and RunDir(Path(row.script).parent).config.exists())

    others = [
        f"job {job} is now {row.name} ({row.script})" for job, row in rows.items() if is_others(row) and alive(row)
    ]
    said = f"; {some_of(others)}, which is left alone" if others else ""
    return {job: row for job, row in rows.items() if not is_others(row)}, said


def live_jobs(rows: Mapping[str, SqueueRow]) -> list[str]:
    return [job for job, row in rows.items() if alive(row)]


def combine(history: RunHistory, rows: Mapping[str, SqueueRow]) -> RunStatus:
    """Returns the status that the records show if they contain the run's end, else the status that squeue's rows
    show."""
    row = rows.get(history.job or "")
    if history.state.over or history.is_local:
        return RunStatus(history.state, history.why, row)
    if history.job is None:
        return RunStatus(history.state, "nothing on record of a job having been submitted")
    if history.cancelled and (row is None or not alive(row)):
        return RunStatus(RunState.CANCELLED, "", row)
    if history.asked_to_stop and (row is None or not alive(row)):
        return RunStatus(RunState.STOPPED, "clusterdp stop", row)
    last = history.last
    if row is None and last is not None and last.job == history.job and last.cause == "cancelled":
        return RunStatus(*ended_as("CANCELLED"))
    if row is None and (last is None or last.job != history.job) and (said := never_there(history)):
        return RunStatus(RunState.GAVE_UP, said)
    if row is None:
        who = "its cluster is gone" if is_gone(history.cluster) else "Slurm no longer knows the job"
        return RunStatus(RunState.VANISHED, f"no ending on record, and {who}")
    if row.reason == NEVER and history.job and runs_before(history):
        said = never_there(history) or "a run that it follows cannot get there any more"
        return RunStatus(RunState.WAITING if alive(row) else RunState.GAVE_UP, said, row)
    if row.state in WAITS:
        waits = waits_for(history) if row.reason == "Dependency" else ""
        return RunStatus(RunState.WAITING, waits or reason_text(row.reason), row)
    if alive(row):
        return RunStatus(RunState.RUNNING, "" if row.state == "RUNNING" else row.state.lower(), row)
    began = last is not None and last.job == history.job and last.ran
    return RunStatus(*ended_as(row.state, row.reason, began=began), row)
