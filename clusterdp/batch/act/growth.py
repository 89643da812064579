"""Growth: finds out whether a run on few nodes of its range should go back into the queue, because more are idle."""

import os
import time
from typing import Optional, Sequence

from ..files.job import LOADED, Job
from ..files.rules import Rules
from ..files.texts import words
from ..nodes.placement import Placement
from ..processes.slurm import Slurm

MOST_S = 120  # seconds between two looks at most; each asks the controller three times


class Growth:
    """restart.grow_after_s: the job grows if, for this time, enough nodes have been idle for a larger number of its
    range, and no other job has waited for nodes of its partition. look() is called every `pause_s`. bad: nodes that the
    run avoids since earlier attempts."""

    def __init__(self, rules: Rules, job: Job, slurm: Slurm, placement: Placement, bad: Sequence[str]) -> None:
        self._rules, self._job, self._slurm, self._placement, self._bad = rules, job, slurm, placement, bad
        self._after_s = rules.grow_after_s or 0.0
        self.pause_s = max(1, min(MOST_S, int(self._after_s / 4)))
        self._since: Optional[float] = None

    @property
    def is_wanted(self) -> bool:
        rules = self._rules
        return rules.grow_after_s is not None and any(size > self._placement.size for size in rules.sizes)

    def look(self) -> int:
        """Returns the number of nodes that the run could have, if it should be requeued; else 0."""
        size = self._possible()
        if not size or not os.path.exists(self._job.file(LOADED)):
            self._since = None
            return 0
        if self._since is None:
            self._since = time.monotonic()
        return size if time.monotonic() - self._since >= self._after_s else 0

    def _possible(self) -> int:
        never = ",".join(filter(None, [self._rules.exclude, *words(self._job.file("avoid")), *self._bad]))
        own = self._job.node_count - self._rules.spare_nodes - len(self._placement.lost)
        nodes = own + len(self._slurm.usable_nodes(never, ("idle",)))
        size = max([size for size in self._rules.sizes if size <= nodes], default=0)
        return 0 if size <= self._placement.size or self._slurm.has_waiting() else size
