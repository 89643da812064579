"""A look into one run folder, for `clusterdp list`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterdp.errors import RunError
from clusterdp.operate.account.run_account import account_so_far
from clusterdp.operate.find.find_run import is_run
from clusterdp.operate.listing.summaries import Summaries, stamp_of
from clusterdp.operate.queue.run_status import RunStatus, is_open
from clusterdp.operate.record.run_history import RunHistory, newest, read_history
from clusterdp.operate.status.run_data import in_brief
from clusterdp.operate.status.show_status import left_s
from clusterdp.operate.sweep.elements import arrays_of, with_job_of_array
from clusterdp.rundir import RunDir, SweepDir, is_sweep
from clusterdp.rundir.lenient_reads import forget

# A summary is kept of a folder in which nothing has changed for so long. Times of a file system may be whole seconds,
# over NFS one file shows later than another, and hosts' clocks differ.
SETTLED_S = 120.0
# The same where the end itself is not on record: Slurm has forgotten the job, or the batch script was killed.
SILENT_S = 86400.0


@dataclass(frozen=True)
class Look:
    """One of these: the summary as JSON, of a run that is over; the history, of one of which Slurm may know more, or of
    a sweep, with the looks at its elements; or why the folder cannot be read. Nothing, if there is no run."""

    text: str = ""
    history: RunHistory | None = None
    elements: Mapping[int, Look] | None = None  # None: it is no sweep
    unread: str = ""
    stamp: str = ""
    changed: float = 0.0  # when the folder last did

    @property
    def open(self) -> list[RunHistory]:
        """Those of which Slurm may know more: of a sweep, the histories of its elements."""
        if self.elements is not None:
            return [history for element in self.elements.values() for history in element.open]
        return [self.history] if self.history else []


def look_at(run: str, kept: Summaries, now: float) -> Look:
    try:
        stamp, changed = stamp_of(run)
        if text := kept.get(run, stamp):
            return Look(text=text)
        os.listdir(run)  # PermissionError
        path = Path(run)
        if not is_run(path):
            kept.drop(run)
            return Look()
        if is_sweep(path):
            return _look_at_sweep(SweepDir(path), kept, now)
        history = read_history(RunDir(path))
        forget(history.run)
    except (FileNotFoundError, NotADirectoryError):
        kept.drop(run)
        return Look()
    except OSError as error:
        return Look(unread=error.strerror or str(error))
    found = Look(history=history, stamp=stamp, changed=changed)
    if is_open(history):
        return found
    return Look(text=keep(found, RunStatus(history.state, history.why), kept, now))


def _look_at_sweep(sweep: SweepDir, kept: Summaries, now: float) -> Look:
    try:
        name, rows = sweep.read_table()
    except RunError as error:
        return Look(unread=str(error).removeprefix(f"{sweep.path}/"))
    arrays = arrays_of(sweep)
    looks = {}
    for number in (number for number in sweep.numbers() if number in rows):
        look = look_at(str(sweep.element(number).path), kept, now)
        if look.history:
            look = replace(look, history=with_job_of_array(look.history, number, arrays))
        looks[number] = look
    history = read_history(sweep.files)
    forget(sweep.files)
    return Look(history=replace(history, name=name), elements=looks)


def keep(found: Look, status: RunStatus, kept: Summaries, now: float, as_recorded: bool = False) -> str:
    """The summary of the run as JSON. It is kept if nothing will change any more. `as_recorded`: Slurm has not said."""
    history = found.history
    assert history is not None
    text = json.dumps(summary_of(history, status, now, as_recorded=as_recorded), separators=(",", ":"))
    last = history.last
    changed = max(found.changed, (last and last.heard_at) or 0.0)
    quiet_s = SETTLED_S if history.closed else SILENT_S
    if status.state.over and not as_recorded and not history.unread and now - changed > quiet_s:
        kept.put(str(history.run.path), found.stamp, text)
    return text


def summary_of(history: RunHistory, status: RunStatus, now: float, as_recorded: bool = False) -> dict[str, Any]:
    """For `clusterdp list --json`: what `status` has, and more. as_recorded: Slurm could not be asked. elements: of a
    sweep, how many are in which state."""
    last = newest(history.attempts)
    return {
        **in_brief(history, status),
        "attempt_number": last.number if last else None,
        "goodput": account_so_far(history, status, now).goodput,
        "left_s": left_s(history, status, now),
        "as_recorded": as_recorded,
        "elements": None,
    }
