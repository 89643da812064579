"""Stopwatch: measures what a step's time is spent on, at almost no cost.

    watch = job.stopwatch                       # in a Loop it runs by itself: data, copy, saves, and the rest
    for x, y in loop:
        loss = criterion(model(x), y);   watch.lap("forward")
        loss.backward();                 watch.lap("backward")
        optimizer.step();                watch.lap("optimizer")

A lap is the time since the lap before, on the host. The host does not wait for a GPU's work, so there the laps show
only what the host waits for, such as data. torch.profiler shows the device's own time.

    data        waiting for the loader
    copy        moving batches to the device, and the function that is move= (a Trainer's transform=), in this process
    backward    with what it takes to add the gradients up over all ranks: no lap tells how much of that the computing
                hides (profile.trace shows it), only which rank's slowness the others wait for in there
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from clusterdp.slurm.env import SlurmEnv
from clusterdp.train.data.loader_defaults import cpus_of_rank
from clusterdp.train.hang import page
from clusterdp.train.hang.phases import AFTER, DATA, PHASE, STEP
from clusterdp.train.output.say import say
from clusterdp.train.profile.diagnosis import NOTHING, diagnose, stragglers, table

if TYPE_CHECKING:
    from clusterdp.train.output.attempt_record import AttemptRecord
    from clusterdp.train.ranks.group import Group
    from clusterdp.train.ranks.rank import Rank

WORTH_A_LINE_S = 60.0  # of training; after less than that, the report is in the file alone
WARM_UP = 5  # first steps, which allocate, compile, and wait for the loader's first batches


class Stopwatch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.steps = 0
        self.page = page.current()  # tells the rank's watcher what it is at
        self._after = dict(AFTER)
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        """What ran since the lap before was `name`."""
        now = time.perf_counter()
        try:
            self.seconds[name] += now - self._at
            self.page[PHASE] = self._after[name]
        except KeyError:
            self._first_lap(name, now)
        self._at = now

    def _first_lap(self, name: str, now: float) -> None:
        self.seconds[name] = now - self._at
        self.page[PHASE] = self._after.setdefault(name, self.page[PHASE])  # after a lap of the user's: as before it

    def begin(self, step: int) -> None:
        """An epoch begins, at this step of the run."""
        self.page[STEP] = step
        self.page[PHASE] = DATA

    def skip(self) -> None:
        """Leaves out the time since the lap before: it belongs to no step but, for example, to an evaluation."""
        self._at = time.perf_counter()

    def step(self) -> None:
        """A step is over."""
        self.steps += 1
        if self.steps == WARM_UP:
            self.seconds.clear()

    def report(self, group: Group, **facts: Any) -> dict[str, Any] | None:
        """Collective. All ranks' times in ms a step, and in words; None if there were too few steps to tell.

        facts: of this rank, for the diagnosis: workers, cpus, node.
        """
        steps = self.steps - WARM_UP
        mine = {"ms": {name: 1e3 * s / steps for name, s in self.seconds.items()} if steps > 0 else {}, **facts}
        ranks = group.gather(mine)
        if not all(rank["ms"] for rank in ranks):
            return None
        words = {"table": table(ranks), "diagnosis": diagnose(ranks), "stragglers": stragglers(ranks)}
        return {"steps": steps, "ranks": ranks, **words}


def report_times(
    stopwatch: Stopwatch, rank: Rank, record: AttemptRecord, loader: Any, *, aloud: bool = True
) -> dict[str, Any] | None:
    """Collective, at the end of a loop and now and then. Where the steps' time went, in the run folder and, if
    `aloud`, in words."""
    workers = getattr(loader, "num_workers", None)
    cpus, node = cpus_of_rank(rank.local_world_size), SlurmEnv.read().node_name
    report = stopwatch.report(rank.group, workers=workers, cpus=cpus, node=node)
    if report is None or not rank.is_first:
        return report
    record.write_times(report)
    spent_s = report["steps"] * sum(report["ranks"][0]["ms"].values()) / 1000
    if aloud and report["diagnosis"] != [NOTHING] and spent_s >= WORTH_A_LINE_S:
        say("clusterdp: " + " ".join(report["diagnosis"]))
    return report
