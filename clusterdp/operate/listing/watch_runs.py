"""`clusterdp list --watch`, and the rows of `clusterdp top`: the runs of `clusterdp list`, read again and again."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, TextIO

from clusterdp.operate.listing.columns import MEASURED, STATE, STEP, Summary
from clusterdp.operate.listing.list_runs import Reading, Wanted, print_list
from clusterdp.operate.output.formatting import clock
from clusterdp.operate.status.follow import Pace

SHARE = 0.006  # of a core that readings take at most: with the screen, `top` stays below 1 %
LONGEST_PAUSE_S = 60.0


class Listing(NamedTuple):
    """The runs as they are at one time. `pause_s` is the least time until the next reading, in seconds."""

    runs: list[Summary]
    typed: Callable[[str], str]  # returns the word to type for a run folder
    complaints: Sequence[str]  # reasons why some states are unknown
    pause_s: float


class ListedRuns:
    """Reads the wanted runs again and again. A summary that has not changed is the same object as before."""

    def __init__(self, wanted: Wanted, limit: int = 0, ask_s: float = Pace.ask_s):
        self.wanted = wanted
        self.limit = limit
        self.ask_s = ask_s
        self.reading: Reading | None = None  # the last one
        self._known: dict[str, Summary] = {}  # JSON text -> summary

    def read(self) -> Listing:
        """Calls squeue once for each cluster."""
        before = sum(os.times()[:4])  # of this process and of squeue
        self.reading = reading = Reading(self.wanted, time.time(), io.StringIO())
        try:
            reading.read(self.limit)
        finally:
            reading.kept.save()
        self._known = {text: self._known.get(text) or json.loads(text) for text in reading.found}
        used = sum(os.times()[:4]) - before
        pause_s = max(self.ask_s, min(LONGEST_PAUSE_S, used / SHARE))
        return Listing([*self._known.values()], reading.typed, reading.complaints, pause_s)


def watch_runs(wanted: Wanted, out: TextIO, err: TextIO, sleep: Callable[[float], None] = time.sleep) -> NoReturn:
    """Prints the table of `clusterdp list`, and from then on a line for each run whose state has changed, until
    Ctrl-C. A screen reader and a log file get each change once."""
    runs = ListedRuns(wanted, wanted.rows(out))
    listing = runs.read()
    known = {run["run"]: _outline(run) for run in listing.runs}
    assert runs.reading is not None
    print_list(runs.reading, out, err)
    while True:
        out.flush()
        sleep(listing.pause_s)
        before, listing = listing, runs.read()
        for run in reversed(listing.runs):  # the newest last
            if known.get(run["run"]) != _outline(run):
                known[run["run"]] = _outline(run)
                cells = [listing.typed(run["run"]), *(column.cell(run, 0.0) for column in (STATE, STEP, MEASURED))]
                out.write(f"{clock(time.time())}  {'  '.join(filter(None, [*cells, run['why']]))}\n")
        for complaint in listing.complaints if listing.complaints != before.complaints else ():
            err.write(f"clusterdp: {complaint}\n")


def _outline(run: Summary) -> tuple[object, ...]:
    return run["state"], run["why"], run["attempt_number"], run["as_recorded"]
