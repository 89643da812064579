"""Stopwatch: where a step's time goes, by what it was spent on, at next to no cost.

    watch = job.stopwatch                       # in a Loop it runs by itself: data, copy, saves, and the rest
    for x, y in loop:
        loss = criterion(model(x), y);   watch.lap("forward")
        loss.backward();                 watch.lap("backward")
        optimizer.step();                watch.lap("optimizer")

A lap is the time since the lap before, on the host. On a GPU, whose work the host does not wait for, that tells what
the host waits for: for data, and wherever something makes it wait; torch.profiler shows the device's own time.

    data        waiting for the loader
    copy        moving batches to the device, and the function that is move= (a Trainer's transform=), in this process
    backward    with what it takes to add the gradients up over all ranks: no lap tells how much of that the computing
                hides (profile.trace shows it), only which rank's slowness the others wait for in there
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from clusterdp.train.profile.diagnosis import diagnose, table

if TYPE_CHECKING:
    from clusterdp.train.dist.group import Group

WARM_UP = 5  # first steps, which allocate, compile, and wait for the loader's first batches


class Stopwatch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.steps = 0
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        """What ran since the lap before was `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._at
        self._at = now

    def skip(self) -> None:
        """What ran since the lap before belongs to no step: an evaluation, the setting up of an epoch."""
        self._at = time.perf_counter()

    def step(self) -> None:
        """A step is over."""
        self.steps += 1
        if self.steps == WARM_UP:
            self.seconds.clear()

    def report(self, group: Group, **facts: Any) -> dict[str, Any] | None:
        """Collective. All ranks' times in ms a step, and in words; None if there were too few steps to tell.

        facts: of this rank, for the diagnosis: workers, cpus.
        """
        steps = self.steps - WARM_UP
        mine = {"ms": {name: 1e3 * s / steps for name, s in self.seconds.items()} if steps > 0 else {}, **facts}
        ranks = group.gather(mine)
        if not all(rank["ms"] for rank in ranks):
            return None
        return {"steps": steps, "ranks": ranks, "table": table(ranks), "diagnosis": diagnose(ranks)}
