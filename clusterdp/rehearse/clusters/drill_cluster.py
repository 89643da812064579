"""DrillCluster: the operations of a run's cluster that a drill needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol

from clusterdp.rehearse.observe.file_events import FileEvents


class DrillCluster(Protocol):
    """A cluster on which a drill can make its faults.

    A method whose fault the cluster cannot make raises NotPossibleHere. history() has each fault as soon as the cluster
    has accepted it.
    """

    ranks_are_here: bool  # whether the ranks run on this machine, and can be watched, stopped and killed
    restart_s: float  # longest time until a requeued job runs again
    file_events: FileEvents | None  # the file events of the job's tasks, if the cluster can see them

    def __enter__(self) -> DrillCluster: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wrongly_shared(self, files: Iterable[str]) -> list[str]:
        """Returns those of the files that a real node has in its own folder, but that nodes share on this machine."""

    def submitted(self, job: str) -> None:
        """Sets the job to which the following faults are done."""

    def start_soon(self) -> None:
        """Asks the cluster to start a requeued job soon. A drill calls `start_soon` repeatedly while it waits."""

    def causes_of(self, causes: Sequence[str]) -> tuple[str, ...]:
        """Returns the causes that this cluster may record where the fake cluster records one of `causes`."""

    def run(self, *words: str) -> str: ...
    def history(self) -> list[dict[str, Any]]: ...
    def preempt(self, job: str, grace_s: float | None = None) -> None: ...
    def advance(self, seconds: float) -> None: ...
    def kill_rank(self, job: str, rank: int) -> None: ...
    def fail(self, node: str) -> None: ...
