"""Save: one save on all ranks. Each rank stages and writes its files, and rank 0 commits.

    stage 0   each rank writes its files in a thread                        files without a manifest
    stage 1   rank 0 knows all sizes and checksums, and commits in a thread
    stage 2   all ranks know the result

No rank waits between stages. The training loop's shared flags give all ranks the minimum of their progress (`here`),
and all ranks call `advance()` at the same step.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from clusterdp.checkpoint.errors import FailedElsewhere, LostContact
from clusterdp.checkpoint.format.chunks import Chunks
from clusterdp.checkpoint.format.layout import HEADER
from clusterdp.checkpoint.format.manifest import CheckpointInfo, FileRecord, Manifest, Section
from clusterdp.checkpoint.format.node_file import Room
from clusterdp.checkpoint.save import replica_check
from clusterdp.checkpoint.save.commit import Committer
from clusterdp.checkpoint.save.memory_copies import MemoryCopies
from clusterdp.checkpoint.save.state_snapshot import StateSnapshot
from clusterdp.checkpoint.save.writer import RankWriter, Staged, StagingMemory
from clusterdp.checkpoint.state.rank_group import RankGroup, tried
from clusterdp.errors import CheckpointError

STAGES = 2
T = TypeVar("T")
NICE = 15  # with this nice value, a training thread on the same core gets 97 % of it; a higher value slows down saves


@dataclass(frozen=True)
class Commit:
    """A checkpoint that is durable."""

    step: int
    token: str
    bytes: int  # number of bytes on disk, of all ranks
    seconds: float  # seconds since the call that began the save


class Save:
    """A save in progress. All public methods are collective, but the property `here` is not."""

    def __init__(
        self,
        ranks: RankGroup,
        committer: Committer | MemoryCopies,
        writer: RankWriter,
        taken: StateSnapshot,
        memory: StagingMemory,
        *,
        started: float,
        read_back: bool,
        compare: bool,
        on_commit: Callable[[Commit], None] | None,
        gives_way: bool,
        exchange: Callable[[], None] | None = None,
    ):
        """Copies the state. After the return, the live tensors may change. gives_way: whether threads of the save have
        a lower priority than the training. exchange: called on each rank, in a thread, when all ranks have written, and
        on rank 0 after the commit, also if the commit fails."""
        self.stage = 0
        self.step = taken.step
        self.compare_s = 0.0  # seconds that a comparison of all tensors would take; 0 if this save compares no tensors
        self._ranks, self._committer, self._writer, self._taken = ranks, committer, writer, taken
        self._started, self._read_back, self._on_commit = started, read_back, on_commit
        self._exchange = exchange
        self._chunks: Chunks | None = None
        compare = compare and ranks.size > 1 and not taken.shared.sharded  # sharded tensors have no replicas to compare
        work: Callable[[], _Report]
        try:
            staged = writer.stage(memory, taken.shared, taken.own)
            self._chunks = staged.chunks
            beside = replica_check.of_neighbour(taken.shared, ranks.rank, ranks.size) if compare else None
            work = partial(self._write, staged, beside)
        except LostContact:
            raise
        except FailedElsewhere:
            work = partial(_Report, {}, None, None, (0, 0))
        except Exception as error:  # any error, such as full memory, is reported to the other ranks
            work = partial(_fail, error)
        self._gives_way = gives_way
        self._writing = BackgroundTask(work, "write", gives_way=gives_way)
        self.cpu_s = 0.0  # seconds of a processor that this rank's files took
        self.room = Room()  # of the next save, when all ranks have written
        self._committing: BackgroundTask[Commit | None] | None = None  # the commit, on rank 0, and the exchange
        self.cleaning: BackgroundTask[None] | None = None  # the clean-up after a failure

    @property
    def here(self) -> int:
        """The number of stages that this rank has finished."""
        if self.stage == 0:
            return int(self._writing.done)
        return STAGES if self._committing is None or self._committing.done else 1

    def advance(self) -> Commit | None:
        """Waits for the end of this stage, and begins the next one. Returns the Commit after the last stage.

        If anything failed on any rank, all ranks raise the same CheckpointError, there is no new checkpoint, the old
        checkpoints are unchanged, and this save is over.
        """
        if self.stage == 0:
            self._hand_over()
            self.stage = 1
            return None
        self.stage = STAGES
        return self._conclude()

    def _write(self, staged: Staged, beside: replica_check.Sums | None) -> _Report:
        """Writes this rank's files, in a thread of this rank."""
        records = self._writer.write(staged, read_back=self._read_back)
        own, theirs = None, None
        if beside is not None:
            shared, theirs = self._taken.shared, beside.values()
            on_gpu = {name for name, tensor in shared.tensors.items() if tensor.is_cuda}
            own = replica_check.of_slice(
                shared.layout, self._ranks.rank, self._ranks.size, staged.slice[HEADER:], on_gpu
            )
            self.compare_s = beside.seconds * self._ranks.size
        files = {name: astuple(record) for name, record in records.items()}
        return _Report(files, own, theirs, staged.needs)

    def _hand_over(self) -> None:
        """Sends the reports of all ranks to rank 0."""
        report, failure = tried(self._writing.result)
        self.cpu_s = self._writing.cpu_s
        try:
            own, pieces = self._ranks.agree(failure, report, self._begin_commit)
        except LostContact:
            raise
        except CheckpointError:
            self.cleaning = BackgroundTask(self._writer.discard, "discard")
            raise
        self.room = Room(own, self._writer.room.pieces if pieces is None else tuple(pieces))
        if self._exchange is not None and self._committing is None:
            self._committing = BackgroundTask(self._exchange, "exchange", gives_way=self._gives_way)

    def _begin_commit(self, reports: list[Any]) -> tuple[int, Sequence[int] | None]:
        """Begins the commit, on rank 0. Returns the next save's Room; None in place of pieces that stay as they are:
        all ranks get this answer."""
        told = [_Report(*report) for report in reports]
        replica_check.compare([(report.own, report.beside) for report in told], self._taken.shared.layout)
        files = {
            name: FileRecord(size, tuple(sums), section and Section(*section))
            for report in told
            for name, (size, sums, section) in report.files.items()
        }
        for record in files.values():
            if record.section and record.section.file not in files:  # its header is the record of who has synced it
                raise CheckpointError(f"{record.section.file}: no rank of this node has found all bytes written.")
        total = sum(record.size for record in files.values())
        token, shared = self._writer.token, self._taken.shared
        info = CheckpointInfo(self.step, token, token, 0, 0.0, self._ranks.size, total, "")
        manifest = Manifest(
            info, files, shared.layout, shared.skeleton, self._taken.meta, self._chunks, shared.strides, shared.changed
        )
        self._committing = BackgroundTask(lambda: self._commit(manifest), "commit", gives_way=self._gives_way)
        room = Room.of([report.needs for report in told])
        return room.own, None if room.pieces == self._writer.room.pieces else room.pieces

    def _commit(self, manifest: Manifest) -> Commit:
        """Commits the save, in a thread of rank 0. If on_commit() or tidy() fails, all ranks raise the error, and the
        checkpoint stays."""
        try:
            info = self._committer.commit(manifest)
        except BaseException:
            self._committer.discard(manifest.info)
            raise
        finally:
            if self._exchange is not None:
                self._exchange()
        commit = Commit(self.step, info.token, info.bytes, time.monotonic() - self._started)
        if self._on_commit:
            self._on_commit(commit)
        self._committer.tidy(info, proved=self._read_back)
        return commit

    def _conclude(self) -> Commit:
        commit, failure = tried(lambda: self._committing.result() if self._committing else None)
        return Commit(**self._ranks.agree(failure, asdict(commit) if commit else None, lambda reports: reports[0]))


class _Report(NamedTuple):
    """A rank's report to rank 0, as JSON: its files, and checksums of its slice and of the next rank's."""

    files: Mapping[str, tuple[Any, ...]]
    own: list[int] | None
    beside: list[int] | None
    needs: tuple[int, int]


def _fail(error: Exception) -> NoReturn:
    raise error


class BackgroundTask(Generic[T]):
    """Work in a daemon thread, because a storage that hangs must not keep a finished process alive.

    gives_way: whether the thread has the nice value NICE. On two cores, a training step during a save of 300 MB on one
    rank takes 1.03 times as long as a step without a save. With a nice value of 10, the step took 1.08 to 1.19 times as
    long.
    """

    def __init__(self, work: Callable[[], T], name: str, *, gives_way: bool = False):
        self._work = work
        self._gives_way = gives_way
        self._value: T | None = None
        self.cpu_s = 0.0  # seconds of a processor that the thread took
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"clusterdp-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._gives_way:
            _give_way()
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        self.cpu_s = time.thread_time()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> T:
        """Waits for the work, and returns its result or raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


def _give_way() -> None:
    """Lowers the priority of this thread and of threads that it starts. Does nothing on macOS, where setpriority()
    would change the whole process."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
