"""Passes on the output of tasks to srun or files, and srun's stdin to the tasks."""

from __future__ import annotations

import fcntl
import os
from functools import partial

from ..core.step_plan import StepPlan, StreamTarget, TaskPlan
from .event_loop import EventLoop
from .output_files import CHUNK, LineBuffer, OutputFiles, goes_straight, label
from .srun_connection import SrunConnection

_SET_SIZE: int | None = getattr(fcntl, "F_SETPIPE_SZ", None)  # a command of fcntl that only Linux has


class TaskOutput:
    """Passes on stdout and stderr of a step's tasks."""

    def __init__(self, loop: EventLoop, plan: StepPlan, srun: SrunConnection):
        self._loop, self._plan, self._srun = loop, plan, srun
        self.files = OutputFiles(plan)
        # by the reading end of a pipe: its LineBuffer, stream, and file
        self._pipes: dict[int, tuple[LineBuffer, str, int | None]] = {}
        self._held = False

    @property
    def open(self) -> bool:
        """Whether any process can still write to a pipe."""
        return bool(self._pipes)

    def give(self, task: TaskPlan) -> tuple[int, int, list[int]]:
        """Returns the descriptors for a new task's stdout and stderr, and those to close after its start. Raises
        OpenFailed."""
        component = self._plan.component_of(task)
        stdout, own = self._end(component.stdout, task, "o")
        if component.stderr is None and not own:
            return stdout, stdout, []
        stderr, own_too = self._end(component.stderr or component.stdout, task, "e" if component.stderr else "o")
        return stdout, stderr, [end for end, mine in ((stdout, own), (stderr, own_too)) if mine]

    def _end(self, target: StreamTarget, task: TaskPlan, stream: str) -> tuple[int, bool]:
        """Returns a descriptor for the task, and whether it is a pipe. slurmstepd must pass on the bytes of a pipe."""
        if (
            (goes_straight(target) and not (self._plan.label and target.kind == "file"))
            or self._plan.batch
            or (target.kind == "one" and target.rank != task.rank)
        ):
            return self.files.descriptor(target, task), False
        sink = self.files.descriptor(target, task) if target.kind == "file" else None
        reader, writer = _wide_pipe()
        os.set_blocking(reader, False)
        prefix = label(task.rank, 1 if sink is not None else len(self._plan.tasks)) if self._plan.label else b""
        self._pipes[reader] = LineBuffer(prefix, self._plan.unbuffered), stream, sink
        if not self._held:
            self._loop.watch(reader, partial(self._ready, reader))
        return writer, True

    def _ready(self, reader: int) -> None:
        self._read(reader)

    def _read(self, reader: int) -> bool:
        """Reads once from a pipe. Returns whether more bytes may wait in the pipe."""
        try:
            data = os.read(reader, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._hand_on(reader, self._pipes[reader][0].take(data))
        else:
            self._close(reader)
        return bool(data)

    def _hand_on(self, reader: int, text: bytes) -> None:
        _, stream, sink = self._pipes[reader]
        if sink is None:
            self._srun.send(stream, text)
        elif text:
            os.write(sink, text)

    def _close(self, reader: int) -> None:
        self._hand_on(reader, self._pipes[reader][0].finish())
        self._loop.unwatch(reader)
        del self._pipes[reader]
        os.close(reader)

    def catch_up(self) -> None:
        """Reads all available output, so that a task's output comes before the report of its end."""
        for reader in list(self._pipes):
            while not self._srun.full and self._read(reader):
                pass

    def keep_pace(self) -> None:
        """Stops reading from the tasks while srun is too slow. Continues reading when srun has caught up."""
        if self._srun.full != self._held:
            self._held = self._srun.full
            for reader in self._pipes:
                if self._held:
                    self._loop.unwatch(reader)
                else:
                    self._loop.watch(reader, partial(self._ready, reader))

    def abandon(self) -> None:
        """Stops reading from all pipes, also from pipes that processes still have open."""
        for reader in list(self._pipes):
            self._close(reader)


def _wide_pipe() -> tuple[int, int]:
    """Returns a pipe with room for CHUNK bytes, if the system allows it, because fewer reads are faster."""
    reader, writer = os.pipe()
    if _SET_SIZE:
        try:
            fcntl.fcntl(writer, _SET_SIZE, CHUNK)
        except OSError:
            pass  # the system refuses, because the user has too many large pipes
    return reader, writer


class TaskInput:
    """Passes on stdin to a step's tasks. Asks srun for more bytes when the tasks have read all bytes."""

    def __init__(self, loop: EventLoop, plan: StepPlan, srun: SrunConnection, files: OutputFiles):
        self._loop, self._plan, self._srun, self._files = loop, plan, srun, files
        self._pipes: dict[int, bytearray] = {}  # by the writing end of a pipe: bytes that are not written yet

    def give(self, task: TaskPlan) -> tuple[int, list[int]]:
        """Returns the descriptor for a new task's stdin, and those to close after its start. Raises OpenFailed."""
        target = self._plan.component_of(task).stdin
        if target.kind == "file":
            file = self._files.input(target, task)
            return file, [file]
        if target.kind == "srun" or (target.kind == "one" and target.rank == task.rank):
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            self._pipes[writer] = bytearray()
            return reader, [reader]
        return self._files.input(StreamTarget("null"), task), []

    def ask(self) -> None:
        if self._pipes and not any(self._pipes.values()):
            self._srun.send("i")

    def feed(self, data: bytes) -> None:
        """Writes bytes from srun to all tasks. Empty `data` means the end of stdin."""
        for writer, waiting in list(self._pipes.items()):
            if not data:
                self._close(writer)
                continue
            waiting += data
            self._write(writer)
        self.ask()

    def _write(self, writer: int) -> None:
        waiting = self._pipes[writer]
        try:
            del waiting[: os.write(writer, waiting)]
        except BlockingIOError:
            pass
        except OSError:  # the task has closed its stdin
            self._close(writer)
            return
        if waiting:
            self._loop.watch_room(writer, partial(self._go_on, writer))
        else:
            self._loop.unwatch(writer)

    def _go_on(self, writer: int) -> None:
        self._write(writer)
        self.ask()

    def _close(self, writer: int) -> None:
        self._loop.unwatch(writer)
        os.close(writer)
        del self._pipes[writer]
