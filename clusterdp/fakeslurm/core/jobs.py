"""The jobs of a cluster by their numbers: those that live apart from the history, so that no turn costs more for it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterdp.fakeslurm.core.model import JobRecord


class JobTable(dict[int, "JobRecord"]):
    """All jobs that are known, by id. `note` is to be called when one has changed: it keeps the indexes true."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, JobRecord] = {}  # at least those that are not over
        self._wholes: dict[
            int, dict[int, JobRecord]
        ] = {}  # by the id of an array, or of a heterogeneous job: their records
        self._ends: list[tuple[float, int]] = []  # a heap of those that are over

    def __setitem__(self, number: int, job: JobRecord) -> None:
        super().__setitem__(number, job)
        self.live[number] = job
        self.note(job)

    def __delitem__(self, number: int) -> None:
        whole = self._whole_of(self[number])
        super().__delitem__(number)
        self.live.pop(number, None)
        if whole in self._wholes:
            self._wholes[whole].pop(number, None)
            if not self._wholes[whole]:
                del self._wholes[whole]

    def note(self, job: JobRecord) -> None:
        whole = self._whole_of(job)
        if whole:
            self._wholes.setdefault(whole, {})[job.id] = job
        if not job.over:
            self.live[job.id] = job
        elif self.live.pop(job.id, None):
            heapq.heappush(self._ends, (job.end or 0, job.id))

    def together(self, number: int) -> list[JobRecord]:
        """The records of this array, or the components of this heterogeneous job; [] if it is neither."""
        return list(self._wholes.get(number, {}).values())

    def named(self, number: int) -> list[JobRecord]:
        """Whom this number means: a job, all records of an array, all components."""
        found = {job.id: job for job in self.together(number)}
        if number in self:
            found[number] = self[number]
        return [found[each] for each in sorted(found)]

    def over_before(self, moment: float) -> Iterator[JobRecord]:
        """Those that ended before then, each once; the caller forgets them."""
        while self._ends and self._ends[0][0] < moment:
            end, number = heapq.heappop(self._ends)
            job = self.get(number)
            if job and job.over and (job.end or 0) == end:
                yield job

    @staticmethod
    def _whole_of(job: JobRecord) -> int:
        return job.array.id if job.array else job.het.leader if job.het else 0
