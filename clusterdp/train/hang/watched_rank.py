"""WatchedRank: the watched process from the outside: reads its page, state and stacks, and kills it."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterdp import procfs
from clusterdp.batch.beside import STACKS_SIGNAL
from clusterdp.train.hang import flight_record
from clusterdp.train.hang.page import BYTES

if TYPE_CHECKING:
    from clusterdp.rundir import Attempt

MOST_CHILDREN = 8  # child processes whose stacks are requested
MACOS = sys.platform == "darwin"  # macOS has no /proc; there a process without a handler ignores the stacks signal
ANSWER_S, CHILD_S = 1.0, 0.1  # seconds in which a rank, and a child process, must write its stacks
TIMED_OUT = 0.95  # part of train.timeout_s after which a silent rank's collective has probably timed out
DUMP_S = 3.0  # seconds in which the flight recorder must write; it reads its pipe once a second


class WatchOrder(NamedTuple):
    """A rank's instructions for its watcher, which go to the node's agent."""

    run_dir: str
    attempt: str
    rank: int
    world_size: int
    local_world_size: int
    node: str
    nodelist: str  # of the job, in the order of the ranks
    pid: int
    thread: int
    hang_after_s: float | None  # None: the watcher derives the limit from the duration of the steps
    on_hang: str | None
    timeout_s: float
    dump: str  # the file to which torch's flight recorder writes
    dump_pipe: str  # a line in this pipe makes the recorder write
    dump_folder: str  # this rank's own folder for both


class WatchedRank:
    """The watched process, seen from the outside. page, stacks, output: descriptors of its files."""

    def __init__(self, order: WatchOrder, page: int, stacks: int, output: int):
        self.order, self._stacks = order, stacks
        self._files = [page, stacks, output]
        self._page = memoryview(mmap.mmap(page, BYTES)).cast("q")

    def numbers(self) -> tuple[int, ...]:
        return tuple(self._page)

    def state(self) -> str:
        return procfs.state(self.order.pid)

    def is_stopped(self) -> bool:
        return self.state() in ("T", "t")

    def wchan(self) -> str:
        return procfs.wchan(self.order.pid)

    def cpu_s(self) -> float | None:
        """Returns the CPU seconds of all threads of the rank."""
        fields = procfs.stat(self.order.pid)
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if len(fields) > 13 else None

    def stacks(self) -> tuple[str, str]:
        """Returns the stacks of the rank's threads and of its child processes; empty if no process answers."""
        stack = self._stack(self.order.pid)
        told = []
        for pid in [each for each in procfs.children(self.order.pid) if each != os.getpid()][:MOST_CHILDREN]:
            told.append(
                f"its process {pid} ({procfs.name(pid)}, state {procfs.state(pid)}, {procfs.wchan(pid) or '-'})"
            )
            told.append(self._stack(pid, CHILD_S).rstrip())
        return stack, "\n".join(filter(None, told))

    def request_dump(self) -> float | None:
        """Asks for a dump of the flight recorder. Returns the time of the last dump, or None if the rank has no
        recorder that can be asked."""
        before = self._dumped_at()
        return before if flight_record.request(self.order.dump_pipe) else None

    def flight_record(self, before: float, deadline: float) -> flight_record.FlightRecord | None:
        """Waits for a dump that is newer than `before`, until the deadline (time.monotonic()), and returns its
        record."""
        while True:
            record = flight_record.read(self.order.dump) if self._dumped_at() > before else None
            if record is not None or time.monotonic() > deadline:
                return record
            time.sleep(0.02)

    @property
    def attempt(self) -> Attempt:
        from clusterdp.rundir import RunDir

        return RunDir(Path(self.order.run_dir)).attempt(self.order.attempt)

    def keep_dump(self) -> None:
        """Copies the last dump, unless another watcher of this node has done so."""
        if self._dumped_at():
            flight_record.keep(self.order.dump, self.attempt.flight_record(self.order.node))

    def forget_dump(self) -> None:
        """Removes the last dump, because the rank makes progress again. Other folders than ours are not changed."""
        with suppress(OSError):
            if self.order.dump.startswith(self.order.dump_folder):
                os.unlink(self.order.dump)

    def _dumped_at(self) -> float:
        try:
            return os.stat(self.order.dump).st_mtime
        except OSError:
            return 0.0

    def _stack(self, pid: int, answer_s: float = ANSWER_S) -> str:
        fd, is_ready = self._stacks, MACOS or procfs.disposition(pid, STACKS_SIGNAL) == "handled"
        if not STACKS_SIGNAL or procfs.state(pid) in ("T", "t", "Z", "X") or not is_ready:
            return ""
        begin = os.fstat(fd).st_size
        os.kill(pid, STACKS_SIGNAL)
        deadline, size = time.monotonic() + answer_s, begin
        while time.monotonic() < deadline:
            time.sleep(0.02)
            before, size = size, os.fstat(fd).st_size
            if size == before > begin:
                break
        return os.pread(fd, size - begin, begin).decode(errors="replace")

    def say(self, text: str) -> None:
        """Prints to the log of the rank."""
        with suppress(OSError, IndexError):  # the rank has just ended
            os.write(self._files[-1], f"{text}\n".encode())

    def close(self) -> None:
        """Frees what the rank has left. A reader of its output then sees the end."""
        while self._files:
            os.close(self._files.pop(0))
        if os.path.isdir(self.order.dump_folder):
            flight_record.remove(self.order.dump_folder)

    def kill(self) -> None:
        others = [pid for pid in procfs.descendants(self.order.pid) if pid != os.getpid()]
        for pid in (self.order.pid, *others):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
