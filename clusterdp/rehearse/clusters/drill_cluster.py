"""DrillCluster: the operations of a run's cluster that a drill needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol

from clusterdp.rehearse.observe.file_events import FileEvents


class DrillCluster(Protocol):
    """A cluster for drills. A fault that is not possible on it raises NotPossibleHere. history() has an action as soon
    as the cluster has accepted it."""

    ranks_are_here: bool  # the ranks run on this machine, and can be watched, stopped and killed
    restart_s: float  # longest time until a requeued job runs again
    file_events: FileEvents | None  # the file events of its tasks, if they can be seen

    def __enter__(self) -> DrillCluster: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wrongly_shared(self, files: Iterable[str]) -> list[str]:
        """Returns the files that are in a node's own folder on a real cluster, but in a shared folder here."""

    def submitted(self, job: str) -> None:
        """Sets the job that is disturbed."""

    def start_soon(self) -> None:
        """Lets a requeued job begin. Called repeatedly while a run goes on."""

    def causes_of(self, causes: Sequence[str]) -> tuple[str, ...]:
        """Returns the causes that this cluster may record for these causes of the fake cluster."""

    def run(self, *words: str) -> str: ...
    def history(self) -> list[dict[str, Any]]: ...
    def preempt(self, job: str, grace_s: float | None = None) -> None: ...
    def advance(self, seconds: float) -> None: ...
    def kill_rank(self, job: str, rank: int) -> None: ...
    def fail(self, node: str) -> None: ...
