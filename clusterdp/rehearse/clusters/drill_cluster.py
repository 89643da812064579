"""DrillCluster: what a drill needs of the cluster on which its run is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol

from clusterdp.rehearse.observe.file_events import FileEvents


class DrillCluster(Protocol):
    """A fault that cannot be made there raises NotPossibleHere. An action is in history() once the cluster has accepted
    it."""

    ranks_are_here: bool  # so that they can be looked at, stopped and killed
    restart_s: float  # within which a requeued job runs again
    file_events: FileEvents | None  # of its tasks, if they can be seen

    def __enter__(self) -> DrillCluster: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wrongly_shared(self, files: Iterable[str]) -> list[str]:
        """Those of these files that are in a node's own folder on a real cluster, and in a shared one here."""

    def submitted(self, job: str) -> None:
        """This is the job that is disturbed."""

    def start_soon(self) -> None:
        """Called again and again while a run is waited for: lets a requeued job begin."""

    def causes_of(self, causes: Sequence[str]) -> tuple[str, ...]:
        """The causes that may be on record here, for these of the fake cluster."""

    def run(self, *words: str) -> str: ...
    def history(self) -> list[dict[str, Any]]: ...
    def preempt(self, job: str, grace_s: float | None = None) -> None: ...
    def advance(self, seconds: float) -> None: ...
    def kill_rank(self, job: str, rank: int) -> None: ...
    def fail(self, node: str) -> None: ...
