"""LocalCluster: a fake cluster of one run, whose commands are the first on PATH while it is up."""

from __future__ import annotations

import os
from collections.abc import Sequence

from clusterdp.fakeslurm.cluster import FakeCluster


class LocalCluster(FakeCluster):
    """A DrillCluster."""

    ranks_are_here = True
    restart_s = 120.0

    def __enter__(self) -> LocalCluster:
        super().__enter__()
        os.environ.update(self.environ())
        return self

    def submitted(self, job: str) -> None:
        """Each fault names the job, or is one of the whole cluster."""

    def start_soon(self) -> None:
        """Its controller is quick."""

    def causes_of(self, causes: Sequence[str]) -> tuple[str, ...]:
        return tuple(causes)
