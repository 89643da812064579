"""How each element of a sweep stands: by its records, and by one squeue for all that have no ending on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.queue.run_cluster import is_gone, is_here
from clusterdp.operate.queue.run_status import RunStatus, combine
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.rundir import RunDir, SweepDir, is_sweep, read_events, sweep_of
from clusterdp.rundir.lenient_reads import forget, integer

if TYPE_CHECKING:
    from clusterdp.slurm.commands import SqueueRow


@dataclass(frozen=True)
class ElementStatus:
    """One element: the values that are its own, and how its run stands."""

    number: int
    values: Mapping[str, Any]
    history: RunHistory
    status: RunStatus


@dataclass(frozen=True)
class SweepStatus:
    """All elements, in order. `said`: why squeue could not be asked; empty if it could, or had not to be."""

    folder: SweepDir
    name: str
    elements: Sequence[ElementStatus]
    said: str = ""


def sweep_meant(run: RunDir) -> SweepDir:
    """The sweep that the run is, or of which it is an element. RunError if it is neither."""
    folder = SweepDir(run.path) if is_sweep(run.path) else sweep_of(run)
    if folder is None:
        raise RunError(f"{shown_path(run.path)}: is a single run. `clusterdp status` says how it stands.")
    return folder


def read_sweep(folder: SweepDir, ended: Mapping[int, ElementStatus] | None = None) -> SweepStatus:
    """RunError if it is no sweep. `ended`: elements that need not be read again."""
    ended = ended or {}
    name, rows = folder.read_table()
    there = set(folder.numbers())  # some may have been removed
    rows = {number: row for number, row in rows.items() if number in there}
    arrays = arrays_of(folder)
    histories = {}
    for number in rows:
        if number not in ended:
            history = read_history(folder.element(number), all_metrics=False)
            histories[number] = with_job_of_array(history, number, arrays)
            forget(histories[number].run)
    going = [history for history in histories.values() if not history.state.over]
    said = ""
    try:
        known = ask_for_all(going)
        if known is None and going:
            said = "there is no squeue here that knows its cluster"
    except SlurmError as error:
        known, said = None, str(error)

    def status(history: RunHistory) -> RunStatus:
        return RunStatus(history.state, history.why) if known is None else combine(history, known)

    found = {number: ElementStatus(number, rows[number], each, status(each)) for number, each in histories.items()}
    return SweepStatus(folder, name, [{**found, **ended}[number] for number in rows], said)


def ask_for_all(histories: Sequence[RunHistory]) -> dict[str, SqueueRow] | None:
    """One squeue for the jobs of all these runs. None if there is no queue to ask: no Slurm here, or another cluster's.
    SlurmError if squeue does not answer."""
    from clusterdp.slurm import commands

    jobs = dict.fromkeys(job.partition("_")[0] for history in histories for job in history.jobs)
    cluster = next((history.cluster for history in histories if history.cluster), "")
    if not jobs or is_gone(cluster):
        return {}
    return commands.element_states(list(jobs)) if is_here(cluster) else None


def arrays_of(folder: SweepDir) -> list[tuple[int, int, str]]:
    """(first element, how many, job) of each array that was submitted at first, by the sweep's own ledger."""
    first: dict[int, tuple[int, int, str]] = {}  # later ones of the same elements have only some of them
    for event in read_events(folder.files):
        offset, size = integer(event.get("offset")), integer(event.get("size"))
        if event.get("event") == "submitted" and "job" in event and offset is not None and size is not None:
            first.setdefault(offset, (offset, size, str(event["job"])))
    return list(first.values())


def with_job_of_array(history: RunHistory, number: int, arrays: Sequence[tuple[int, int, str]]) -> RunHistory:
    """The history of that element, with its job if submit was killed before it had written that down for each."""
    if history.job is None:
        jobs = tuple(f"{job}_{number - offset}" for offset, size, job in arrays if offset <= number < offset + size)
        return replace(history, jobs=jobs)
    return history
