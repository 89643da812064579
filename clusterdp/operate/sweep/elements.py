"""SweepStatus: the state of each element of a sweep, found from its records. A single squeue asks about all elements
whose records contain no end."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.output.formatting import Colour, shown_path
from clusterdp.operate.output.formatting import number as number_text
from clusterdp.operate.queue.run_cluster import is_gone, is_here
from clusterdp.operate.queue.run_status import RunStatus, combine
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.rundir import RunDir, SweepDir, is_sweep, read_events, sweep_of
from clusterdp.rundir.lenient_reads import forget, integer
from clusterdp.wording import some_of, table

if TYPE_CHECKING:
    from clusterdp.slurm.commands import SqueueRow

MANY = 40  # rows of a table; --csv and --json print all rows
WIDE = 24  # characters of one value in a table


@dataclass(frozen=True)
class ElementStatus:
    """The status of an element: the values of its params, and the state of its run."""

    number: int
    values: Mapping[str, Any]
    history: RunHistory
    status: RunStatus


@dataclass(frozen=True)
class SweepStatus:
    """The status of a sweep: the status of all its elements."""

    folder: SweepDir
    name: str
    elements: Sequence[ElementStatus]  # in order
    said: str = ""  # the reason why squeue could not be asked; empty if squeue was asked, or not needed


def sweep_meant(run: RunDir) -> SweepDir:
    """Returns the sweep that a run folder belongs to: the folder is the sweep itself, or one of its elements. Raises
    RunError for a run that is not part of a sweep."""
    folder = SweepDir(run.path) if is_sweep(run.path) else sweep_of(run)
    if folder is None:
        raise RunError(f"{shown_path(run.path)}: is a single run. `clusterdp status` says how it stands.")
    return folder


def read_sweep(folder: SweepDir, ended: Mapping[int, ElementStatus] | None = None) -> SweepStatus:
    """Reads the status of all elements. Raises RunError if `folder` is not a sweep. `ended` has the elements that need
    not be read again."""
    ended = ended or {}
    name, rows = folder.read_table()
    there = set(folder.numbers())  # the user may have removed elements
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
    """Asks squeue once for the jobs of all these runs. Returns None if no squeue here belongs to the cluster of the
    runs. Raises SlurmError if squeue does not answer."""
    from clusterdp.slurm import commands

    jobs = dict.fromkeys(job.partition("_")[0] for history in histories for job in history.jobs_there)
    cluster = next((history.cluster for history in histories if history.cluster), "")
    if not jobs or is_gone(cluster):
        return {}
    return commands.element_states(list(jobs)) if is_here(cluster) else None


def arrays_of(folder: SweepDir) -> list[tuple[int, int, str]]:
    """Returns (first element, number of elements, job) for each array of the first submit, from the sweep's own
    ledger."""
    first: dict[int, tuple[int, int, str]] = {}  # the arrays of a retry have only some of these elements
    for event in read_events(folder.files):
        offset, size = integer(event.get("offset")), integer(event.get("size"))
        if event.get("event") == "submitted" and "job" in event and offset is not None and size is not None:
            first.setdefault(offset, (offset, size, str(event["job"])))
    return list(first.values())


def with_job_of_array(history: RunHistory, number: int, arrays: Sequence[tuple[int, int, str]]) -> RunHistory:
    """Returns an element's history, which always has the job: submit may have been killed before it recorded the job in
    the element."""
    if history.job is None:
        jobs = tuple(f"{job}_{number - offset}" for offset, size, job in arrays if offset <= number < offset + size)
        return history._replace(jobs=jobs)
    return history


def values_table(rows: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Returns the lines of a table with the values alone, as shown before a submit."""
    keys = list(next(iter(rows.values()), {}))
    shown = list(rows.items())[:MANY]
    lines = table([("#", *short(keys)), *((str(n), *(_value(row[key]) for key in keys)) for n, row in shown)])
    return [*lines, *_more(len(rows))]


def status_table(
    elements: Sequence[ElementStatus], colour: Colour, metrics: Sequence[str] = (), width: int = sys.maxsize
) -> list[str]:
    """Returns the lines of a table with a row for each element, in the given order. Each of `metrics` gets a column. A
    narrow terminal shows fewer metrics, then no steps, then fewer values."""
    if not elements:
        return []
    keys = list(elements[0].values)
    heads = ["#", *short(keys), "state", "step", *metrics]
    rows: list[tuple[str, ...]] = [tuple(heads)]
    for each in elements[:MANY]:
        history = each.history
        step = "-" if history.step is None else f"{history.step}" + (f"/{history.total}" if history.total else "")
        measured = (number_text(history.metrics[name]) if name in history.metrics else "-" for name in metrics)
        values = (_value(each.values.get(key)) for key in keys)
        rows.append((str(each.number), *values, each.status.state.value, step, *measured))
    state = len(keys) + 1
    shown, first, rest = [*range(len(heads))], [*range(1, state)], [*range(state + 2, len(heads))]
    gives_way = [*first[:1], *rest[:1], *first[1:], state + 1, *rest[1:]]  # columns to leave out, last first
    while max(map(len, lines := table([[row[at] for at in shown] for row in rows]))) > width and gives_way:
        shown.remove(gives_way.pop())
    head, *lines = lines
    return [colour("dim", head), *lines, *(colour("dim", line) for line in _more(len(elements)))]


def counts(elements: Sequence[ElementStatus], colour: Colour) -> str:
    """Returns how many elements are in each state, for example `3 waiting, 2 running, 34 done, 1 failed`."""
    found = Counter(each.status.state for each in elements)
    words = [colour(state.colour, f"{found[state]} {state.value}") for state in RunState if found[state]]
    return ", ".join(words)


def short(keys: Sequence[str]) -> list[str]:
    """Returns short names of keys: `lr` for `params.lr`, if no other key would have this name."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]


def _value(value: Any) -> str:
    text = (
        value
        if isinstance(value, str)
        else number_text(value)
        if isinstance(value, (int, float))
        else json.dumps(value)
    )
    text = "true" if value is True else "false" if value is False else text
    return text if len(text) <= WIDE else f"{text[: WIDE - 3]}..."


def _more(count: int) -> list[str]:
    return [f"{count - MANY} more: clusterdp sweep --csv or --json has all"] if count > MANY else []


def listed(elements: Sequence[ElementStatus]) -> str:
    """Returns the numbers of the elements, for example `3, 7 and 12 more`."""
    return some_of([str(each.number) for each in elements])
