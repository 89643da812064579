"""`clusterdp list`: which runs, and the table or the JSON of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from clusterdp.errors import ConfigError
from clusterdp.operate.formatting import Colour
from clusterdp.operate.listing.ask_squeue import ask_squeue
from clusterdp.operate.listing.columns import table
from clusterdp.operate.listing.filters import Filters
from clusterdp.operate.listing.find_all import TypedName, find_all
from clusterdp.operate.listing.look import Look, look_at
from clusterdp.operate.listing.read_in_time import PATIENCE_S, read_in_time
from clusterdp.operate.listing.summaries import Summaries, summaries_path
from clusterdp.operate.listing.sweep_row import row_of
from clusterdp.operate.width import width_of
from clusterdp.wording import some_of

ROWS = 20  # on a terminal
MANY = 1000  # folders; to read them takes more than a second


@dataclass(frozen=True)
class Wanted:
    """everywhere: also the runs of other folders. limit: how many are shown at most; 0: all; None: ROWS on a terminal,
    all elsewhere."""

    filters: Filters = field(default_factory=Filters)
    everywhere: bool = False
    limit: int | None = None
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 0:
            raise ConfigError(f"-n {self.limit}: is not a number of runs. Write 1 or more, or 0 for all.")

    def rows(self, out: TextIO) -> int:
        """How many are shown at most; 0: all."""
        if self.limit is not None:
            return self.limit
        return ROWS if out.isatty() and not self.as_json else 0


def list_runs(wanted: Wanted, out: TextIO, err: TextIO, now: float | None = None) -> None:
    """What could not be learned is said on `err`, in a line for each reason."""
    reading = Reading(wanted, time.time() if now is None else now, err)
    try:
        reading.read(wanted.rows(out))
    finally:  # what was read until Ctrl-C is known the next time
        reading.kept.save()
    for complaint in reading.complaints:
        err.write(f"clusterdp: {complaint}\n")
    err.flush()
    if wanted.as_json:
        out.write("[\n" + ",\n".join(reading.found) + "\n]\n" if reading.found else "[]\n")
        return
    if not reading.found:
        out.write(_none(wanted) + "\n")
        return
    colour = Colour(out)
    runs = json.loads(f"[{','.join(reading.found)}]")
    lines = table(runs, [reading.typed(run["run"]) for run in runs], reading.now, width_of(out), colour)
    if reading.more:
        lines.append(colour("dim", f"{reading.more} more; -n 0 lists all"))
    out.write("\n".join(lines) + "\n")


class Reading:
    """`found`: the summaries of the runs that are wanted, as JSON, the newest first; `more`: how many there are beside
    them. Ten thousand are not parsed unless they are drawn."""

    def __init__(self, wanted: Wanted, now: float, err: TextIO):
        self.wanted = wanted
        self.now = now
        self.err = err
        self.kept = Summaries(summaries_path())
        self.typed = TypedName()
        self.found: list[str] = []
        self.more = 0
        self.complaints: list[str] = []
        self.silent: list[str] = []
        self.unread: list[str] = []

    def read(self, limit: int) -> None:
        """`limit`: how many runs are wanted at most; 0: all. No more of them are read than that takes."""
        filters = self.wanted.filters
        paths = [run.path for run in find_all(self.wanted.everywhere) if run.time >= filters.since]
        looks: dict[str, Look] = {}
        while paths and (not limit or len(looks) < limit or filters.look_inside):
            few = limit and not filters.look_inside and not self.silent  # to wait is enough once
            count = limit - len(looks) if few else len(paths)
            looks.update(self._look(paths[:count]))  # fewer than that if some are gone: then more are looked at
            paths = paths[count:]
        found = [summary for summary in self._summaries(looks) if filters.take(summary, self.typed)]
        self.found = found[: limit or None]
        there, _ = read_in_time(paths, os.path.isdir, PATIENCE_S / 10)
        self.more = len(found) - len(self.found) + sum(there.get(path, True) for path in paths)
        if self.silent:
            said = f"left out, for they did not answer within {PATIENCE_S:.0f} s: {some_of(self.silent, 2)}."
            self.complaints.append(said)
        if self.unread:
            self.complaints.append(f"left out: {some_of(self.unread, 2)}.")

    def _look(self, paths: Sequence[str]) -> dict[str, Look]:
        """Those where there is a run."""
        if len(paths) > MANY and self.err.isatty():
            new = sum(path not in self.kept for path in paths)
            if new > MANY:
                self.err.write(f"clusterdp: reading {new:,} run folders for the first time, a few ms each\n")
                self.err.flush()
        looks, silent = read_in_time(paths, lambda path: look_at(path, self.kept, self.now))
        self.silent += silent
        for path, look in looks.items():
            parts = [(f"{path}/{number}", each) for number, each in (look.elements or {}).items()]
            self.unread += [f"{where}: {each.unread}" for where, each in [(path, look), *parts] if each.unread]
        return {path: looks[path] for path in paths if path in looks and (looks[path].text or looks[path].history)}

    def _summaries(self, looks: Mapping[str, Look]) -> list[str]:
        """One squeue for all that may not be over."""
        live = [history for look in looks.values() for history in look.open]
        statuses, complaints = ask_squeue(live)
        self.complaints += [f"{complaint} A ? marks what was last recorded." for complaint in complaints]
        answers = {str(history.run.path): answer for history, answer in zip(live, statuses, strict=True)}
        return [row_of(look, answers, self.kept, self.now) for look in looks.values()]


def _none(wanted: Wanted) -> str:
    if wanted.filters != Filters():
        return "No run is meant by these words."
    return "No runs yet." if wanted.everywhere else "No runs of this folder; `clusterdp list --all` has all."
