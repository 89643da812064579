"""look_at(): reads one run folder for `clusterdp list`. Summaries: the cache of runs that are over."""

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
from clusterdp.operate.record.ending import ending_text
from clusterdp.operate.record.run_history import RunHistory, newest, read_history
from clusterdp.operate.status.show_status import in_brief, left_s
from clusterdp.operate.sweep.elements import arrays_of, with_job_of_array
from clusterdp.plainfile import MOST, read_plain
from clusterdp.rundir import RunDir, SweepDir, is_sweep, write_durably
from clusterdp.rundir.lenient_reads import forget

# A summary is kept if its folder has not changed for this time. The wait is needed because a file system may store
# whole seconds, NFS may show files late, and the clocks of hosts differ.
SETTLED_S = 120.0
# The same wait for a run whose end is not recorded, because Slurm has forgotten the job, or the batch script was
# killed.
SILENT_S = 86400.0
# Another version of clusterdp may read more from the same folder. Therefore each version ignores the other's file.
HEADER = f"clusterdp {__version__}, summaries 5".encode()


@dataclass(frozen=True)
class RunLook:
    """What was read from a run folder: `text`, `history` or `unread`. If the folder is not a run, all three are
    empty."""

    text: str = ""  # the summary as JSON, if the run is over
    history: RunHistory | None = None  # only for a sweep, or for a run about which Slurm may know more
    elements: Mapping[int, RunLook] | None = None  # element's number -> its view; None: not a sweep
    unread: str = ""  # the reason why the folder cannot be read
    stamp: str = ""
    changed: float = 0.0  # time of the run folder's last change

    @property
    def open(self) -> list[RunHistory]:
        """The histories of the runs that Slurm may know more about. For a sweep: the histories of its elements."""
        if self.elements is not None:
            return [history for element in self.elements.values() for history in element.open]
        return [self.history] if self.history else []


def look_at(run: str, kept: Summaries, now: float) -> RunLook:
    try:
        stamp, changed = stamp_of(run)
        if text := kept.get(run, stamp):
            return RunLook(text=text)
        os.listdir(run)  # raises PermissionError
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
    return RunLook(history=history._replace(name=name), elements=looks)


def keep(found: RunLook, status: RunStatus, kept: Summaries, now: float, as_recorded: bool = False) -> str:
    """Returns the summary as JSON, and caches the summary if the run cannot change any more. With `as_recorded`, Slurm
    did not confirm the status."""
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
    """Returns the values for `clusterdp list --json`: the values of `status --json`, and more. With `as_recorded`,
    Slurm did not confirm the status. The caller sets `elements`, for a sweep, to the number of elements in each
    state."""
    last = newest(history.attempts)
    account = account_so_far(history, status, now)
    return {
        **in_brief(history, status),
        "attempt_number": last.number if last else None,
        "goodput": account.goodput,
        "unit": f"{account.unit}-hours" if account.unit else None,
        "hours": account.hours if account.unit else None,
        "hours_lost": account.lost_hours if account.unit else None,
        "left_s": left_s(history, status, now),
        "ended": (last and ending_text(last)) or None,
        "as_recorded": as_recorded,
        "elements": None,
    }


class Summaries:
    """The summaries of runs that are over: a file of each user, beside the index. Because of this cache `list` need not
    read ten thousand run folders again. The file may be deleted at any time. Several threads use the object at the same
    time, each thread for different runs.

    A line has the run, the stamp of its folder, a checksum, and the summary. A line does not count if the line is torn,
    or if the run folder has changed after the line was written. Each save replaces the whole file. If two processes
    replace the file at the same time, the summaries of one process are lost, and their folders are read again.
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
        """Returns whether the cache has a summary of the run, which may be out of date."""
        return _key(run) in self._lines

    def get(self, run: str, stamp: str) -> str | None:
        """Returns the run's summary as JSON; None if the cache has no summary with this stamp."""
        key = _key(run)
        found = self._lines.get(key, b"").split(b"\t", 2)
        if len(found) < 3 or found[0] != stamp.encode() or found[1] != _checksum(key, found[0], found[2]):
            return None
        return found[2].decode()

    def put(self, run: str, stamp: str, summary: str) -> None:
        """Adds the run's summary, which must be JSON in one line."""
        key, text = _key(run), summary.encode()
        self.drop(run)  # the newest summary becomes the last line
        self._lines[key] = b"\t".join((stamp.encode(), _checksum(key, stamp.encode(), text), text))
        self.changed = True

    def drop(self, run: str) -> None:
        self.changed |= self._lines.pop(_key(run), None) is not None

    def save(self) -> None:
        """Writes the cache file if a summary has changed. If the file cannot be written, no error is raised."""
        if not self.changed:
            return
        lines = [b"\t".join(line) for line in list(self._lines.items()) if all(line)]
        size = sum(map(len, lines))
        while size > MOST // 2:  # read_plain() reads at most MOST bytes
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
    return os.fsencode(run) if run.isprintable() else json.dumps(run).encode()  # key without tabs


def _checksum(*parts: bytes) -> bytes:
    return b"%08x" % zlib.crc32(b"\t".join(parts))


def stamp_of(run: str) -> tuple[str, float]:
    """Returns a stamp, and the time of the folder's last change. The stamp changes whenever a run that is over changes.

    A new attempt, a cancellation and a stop write new files in events/; a resume and a note write into the run folder.
    Raises FileNotFoundError if the folder does not exist."""
    folder = os.stat(run)
    own = f"{folder.st_ino}.{folder.st_mtime_ns}"
    try:
        events = os.stat(f"{run}/events")
    except FileNotFoundError:
        return own, folder.st_mtime
    return f"{own}.{events.st_ino}.{events.st_mtime_ns}", max(folder.st_mtime, events.st_mtime)
