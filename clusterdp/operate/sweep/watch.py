"""`clusterdp watch` of a sweep: shows a line with the number of elements in each state, until every element is over."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.output.formatting import Colour, clock, is_terminal, shown_path
from clusterdp.operate.output.terminal import printable, terminal_columns, underlying
from clusterdp.operate.queue.moved_folder import refuse_copy
from clusterdp.operate.queue.run_status import live_jobs
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.run_state import INTERRUPTED, RunState
from clusterdp.operate.sweep.elements import (
    ElementStatus,
    SweepStatus,
    ask_for_all,
    counts,
    listed,
    read_sweep,
    status_table,
)
from clusterdp.operate.sweep.results import best_first
from clusterdp.rundir import SweepDir

STATES = {
    "failed": {RunState.FAILED, RunState.GAVE_UP, RunState.VANISHED},
    "stopped": {RunState.STOPPED},
    "cancelled": {RunState.CANCELLED},
    "unsubmitted": {RunState.WAITING},  # elements without a job, because sbatch refused their array
}


@dataclass(frozen=True)
class SweepPace:
    """How often watch_sweep() looks and how long it waits, in seconds."""

    poll_s: float = 5.0  # least pause between two polls, which call squeue once; at least 5 times a poll's length
    settle_s: float = 6.0  # an end that only squeue shows counts after this time: records may come late
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def watch_sweep(
    folder: SweepDir, out: TextIO | None = None, *, pace: SweepPace | None = None, farewell: str | None = None
) -> int:
    """Shows the sweep until its end. Returns 0 if every element is done, else the exit code of the first element that
    is not done. Ctrl-C does not end the jobs, but prints `farewell` and returns 130."""
    out = out or sys.stdout
    for number in [*folder.numbers()][:1]:
        refuse_copy(read_history(folder.element(number)), element=True)
    try:
        status = _follow(folder, out, pace or SweepPace())
    except KeyboardInterrupt:
        path = shown_path(folder.path)
        out.write(farewell or f"\nNot followed any more; the sweep goes on without you: clusterdp watch {path}\n")
        return INTERRUPTED
    out.write("\n".join(["", *summary(status, Colour(out))]) + "\n")
    out.flush()
    return next((each.status.state.exit_code for each in status.elements if each.status.state is not RunState.DONE), 0)


def _follow(folder: SweepDir, out: TextIO, pace: SweepPace) -> SweepStatus:
    ended: dict[int, ElementStatus] = {}
    said, live, plain = "", is_terminal(out), Colour(io.StringIO())
    since: dict[int, float] = {}  # element -> time since which it is over, maybe only by squeue
    while True:
        began = pace.clock()
        status = read_sweep(folder, ended)
        now = pace.clock()
        for each in status.elements:
            if not each.status.state.over:
                since.pop(each.number, None)
            if _is_final(each, now - since.setdefault(each.number, now), pace):
                ended[each.number] = each
        over = sum(each.status.state.over for each in status.elements)
        line = f"{over} of {len(status.elements)} over: {counts(status.elements, plain)}"
        line += f" ({status.said[:80]})" if status.said else ""
        if live:  # rewrites one line; CleanStream would remove the escape sequences
            line = printable(line)[: terminal_columns() - 1]
            underlying(out).write(f"\r\x1b[K{line}")
        elif line != said:
            out.write(f"{clock(time.time())}  {line}\n")
        said = line
        out.flush()
        if len(ended) == len(status.elements):
            if live:
                underlying(out).write("\r\x1b[K")
            return status
        pace.sleep(max(pace.poll_s, 5 * (now - began)))


def _is_final(element: ElementStatus, lasted_s: float, pace: SweepPace) -> bool:
    """Returns whether the element need not be read again. `lasted_s` tells for how many seconds the element has been
    over."""
    if element.history.job is None:  # sbatch refused the element's array
        return True
    if element.history.state.over and element.history.closed:
        return True
    return element.status.state.over and lasted_s >= pace.settle_s


def summary(status: SweepStatus, colour: Colour) -> list[str]:
    """Returns lines with the counts, the best elements, and the next commands."""
    path = shown_path(status.folder.path)
    chosen = best_first(status.elements)
    lines = [f"{colour('bold', status.name)}  {counts(status.elements, colour)}"]
    lines += status_table(chosen.elements[:10], colour, [chosen.metric] if chosen.metric else [])
    if chosen.metric:
        lines.append(chosen.in_words())
    if len(chosen.elements) > 10:
        lines.append(colour("dim", f"{len(chosen.elements) - 10} more: clusterdp sweep {path}"))
    failed = [each for each in status.elements if each.status.state.over and each.status.state is not RunState.DONE]
    lines += ["", "next:", f"  clusterdp sweep {path}"]
    if failed:
        states = {each.status.state for each in failed}
        lines.append(f"  clusterdp status {path}/{failed[0].number}")
        lines += [f"  clusterdp sweep {path} --retry {word}" for word, those in STATES.items() if those & states]
        lines.insert(1, f"not done: {listed(failed)}")
    return lines


def to_retry(status: SweepStatus, which: str) -> list[ElementStatus]:
    """Returns the elements in the states that `which` names. Raises RunError if a job of such an element is still
    ending, SlurmError if squeue does not answer."""
    path = shown_path(status.folder.path)
    if status.said:
        raise SlurmError(f"{path}: {status.said}. So it is not known which of its jobs are over.")
    found = [each for each in status.elements if each.status.state in STATES[which]]
    if which == "unsubmitted":
        found = [each for each in found if each.history.job is None]
    rows = ask_for_all([each.history for each in found]) or {}
    ending = [each for each in found if live_jobs({job: rows[job] for job in each.history.jobs if job in rows})]
    if ending:
        raise RunError(f"{path}: jobs of elements {listed(ending)} are still ending. Wait for them, then retry.")
    return found


def with_own_script(elements: Sequence[ElementStatus]) -> list[ElementStatus]:
    """Returns the elements that have a batch script of their own, because they were resumed one by one, maybe with
    other resources."""
    return [each for each in elements if each.history.run.script.exists()]
