"""A look into one run folder, for `clusterdp list`."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterdp import __version__
from clusterdp.errors import RunError
from clusterdp.operate.account.run_account import account_so_far
from clusterdp.operate.find.find_run import is_run
from clusterdp.operate.find.run_index import index_path
from clusterdp.operate.queue.run_status import RunStatus, is_open
from clusterdp.operate.record.run_history import RunHistory, newest, read_history
from clusterdp.operate.status.show_status import in_brief, left_s
from clusterdp.operate.sweep.elements import arrays_of, with_job_of_array
from clusterdp.plainfile import MOST, read_plain
from clusterdp.rundir import RunDir, SweepDir, is_sweep, write_durably
from clusterdp.rundir.lenient_reads import forget

# A summary is kept of a folder in which nothing has changed for so long. Times of a file system may be whole seconds,
# over NFS one file shows later than another, and hosts' clocks differ.
SETTLED_S = 120.0
# The same where the end itself is not on record: Slurm has forgotten the job, or the batch script was killed.
SILENT_S = 86400.0
# Another version may read more in the same folder: it begins anew.
HEADER = f"clusterdp {__version__}, summaries 3".encode()


@dataclass(frozen=True)
class RunLook:
    """The view of a run folder, as one of these: the summary as JSON, of a run that is over; the history, of one of
    which Slurm may know more, or of a sweep, with the looks at its elements; or why the folder cannot be read. Nothing,
    if there is no run."""

    text: str = ""
    history: RunHistory | None = None
    elements: Mapping[int, RunLook] | None = None  # None: it is not a sweep
    unread: str = ""
    stamp: str = ""
    changed: float = 0.0  # when the folder last did

    @property
    def open(self) -> list[RunHistory]:
        """Those of which Slurm may know more: of a sweep, the histories of its elements."""
        if self.elements is not None:
            return [history for element in self.elements.values() for history in element.open]
        return [self.history] if self.history else []


def look_at(run: str, kept: Summaries, now: float) -> RunLook:
    try:
        stamp, changed = stamp_of(run)
        if text := kept.get(run, stamp):
            return RunLook(text=text)
        os.listdir(run)  # PermissionError
        path = Path(run)
        if not is_run(path):
            kept.drop(run)
            return RunLook()
        if is_sweep(path):
            return _look_at_sweep(SweepDir(path), kept, now)
        history = read_history(RunDir(path))
        forget(history.run)
    except (FileNotFoundError, NotADirectoryError):
        kept.drop(run)
        return RunLook()
    except OSError as error:
        return RunLook(unread=error.strerror or str(error))
    found = RunLook(history=history, stamp=stamp, changed=changed)
    if is_open(history):
        return found
    return RunLook(text=keep(found, RunStatus(history.state, history.why), kept, now))


def _look_at_sweep(sweep: SweepDir, kept: Summaries, now: float) -> RunLook:
    try:
        name, rows = sweep.read_table()
    except RunError as error:
        return RunLook(unread=str(error).removeprefix(f"{sweep.path}/"))
    arrays = arrays_of(sweep)
    looks = {}
    for number in (number for number in sweep.numbers() if number in rows):
        look = look_at(str(sweep.element(number).path), kept, now)
        if look.history:
            look = replace(look, history=with_job_of_array(look.history, number, arrays))
        looks[number] = look
    history = read_history(sweep.files)
    forget(sweep.files)
    return RunLook(history=replace(history, name=name), elements=looks)


def keep(found: RunLook, status: RunStatus, kept: Summaries, now: float, as_recorded: bool = False) -> str:
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


class Summaries:
    """The summaries of runs that are over: a file of mine beside the index, so that `list` need not read ten thousand
    run folders again. It may be deleted at any time. Several threads use it at once, each for runs of its own.

    A line is: the run, the stamp of its folder, a checksum, the summary. A line that is torn, or of a folder that has
    changed since, counts as missing. The file is replaced as a whole; of two that do so at once one wins, and what the
    other had read is read again.
    """

    def __init__(self, path: Path):
        self.path = path
        self.changed = False
        self._lines: dict[bytes, bytes] = {}
        try:
            header, *lines = read_plain(path).split(b"\n")
        except OSError:
            return
        if header == HEADER:
            for line in lines:
                run, _, rest = line.partition(b"\t")
                self._lines[run] = rest

    def __contains__(self, run: str) -> bool:
        """Whether there is one, be it out of date."""
        return _key(run) in self._lines

    def get(self, run: str, stamp: str) -> str | None:
        """The summary as JSON; None if there is none of this stamp."""
        key = _key(run)
        found = self._lines.get(key, b"").split(b"\t", 2)
        if len(found) < 3 or found[0] != stamp.encode() or found[1] != _checksum(key, found[0], found[2]):
            return None
        return found[2].decode()

    def put(self, run: str, stamp: str, summary: str) -> None:
        """`summary`: JSON in one line."""
        key, text = _key(run), summary.encode()
        self.drop(run)  # the last line is the newest
        self._lines[key] = b"\t".join((stamp.encode(), _checksum(key, stamp.encode(), text), text))
        self.changed = True

    def drop(self, run: str) -> None:
        self.changed |= self._lines.pop(_key(run), None) is not None

    def save(self) -> None:
        """If anything has changed. It is not an error if the file cannot be written."""
        if not self.changed:
            return
        lines = [b"\t".join(line) for line in list(self._lines.items()) if all(line)]
        size = sum(map(len, lines))
        while size > MOST // 2:  # what is larger than MOST would not be read
            size -= len(lines.pop(0))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_durably(self.path, b"\n".join((HEADER, *lines, b"")), mode=0o600)
            self.changed = False
        except OSError:
            pass


def summaries_path() -> Path:
    return index_path().with_name("summaries")


def _key(run: str) -> bytes:
    return os.fsencode(run) if run.isprintable() else json.dumps(run).encode()  # without tabs and newlines


def _checksum(*parts: bytes) -> bytes:
    return b"%08x" % zlib.crc32(b"\t".join(parts))


def stamp_of(run: str) -> tuple[str, float]:
    """A stamp that changes with the folder of a run that is over, and the time of its last change.

    A new attempt, a cancellation and a stop have event files of their own; a resume and a note write into the run
    folder. FileNotFoundError if there is no such folder."""
    folder = os.stat(run)
    own = f"{folder.st_ino}.{folder.st_mtime_ns}"
    try:
        events = os.stat(f"{run}/events")
    except FileNotFoundError:
        return own, folder.st_mtime
    return f"{own}.{events.st_ino}.{events.st_mtime_ns}", max(folder.st_mtime, events.st_mtime)
