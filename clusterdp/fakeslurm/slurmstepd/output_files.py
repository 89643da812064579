"""The targets of the tasks' output: srun (labelled, line by line) or files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ..core.step_plan import StepPlan, StreamTarget, TaskPlan

CHUNK = 1 << 18  # bytes per read
PIECE = 1024  # bytes; longer lines are passed on in pieces, each with a label and an end of its own
# Compiled at import, because each slurmstepd is a fresh copy of the fork server, with nothing compiled later.
PIECES = re.compile(rb"[^\n]{%d}|[^\n]*\n|[^\n]+" % PIECE)
FIELD = re.compile(r"%(\d*)([a-zA-Z%])")
LETTER = re.compile(r"(?<!%)%\d*([a-zA-Z])")


class OpenFailed(Exception):
    """The stdin, stdout or stderr file of a task cannot be opened."""


class OutputFiles:
    """The output files of a step. Each file is opened only once, even if several tasks write to it."""

    def __init__(self, plan: StepPlan):
        self._plan = plan
        self._open: dict[str, int] = {}
        self._closed = False

    def descriptor(self, target: StreamTarget, task: TaskPlan) -> int:
        """Returns the descriptor of this task's output file. The caller must not close the descriptor. Raises
        OpenFailed."""
        if target.kind == "null" or (target.kind == "one" and target.rank != task.rank):
            return self._cached(os.devnull, os.O_RDWR)
        path = self._path(target, task)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if target.append else os.O_TRUNC)
        return self._cached(path, flags)

    def input(self, target: StreamTarget, task: TaskPlan) -> int:
        if target.kind == "null":
            return self._cached(os.devnull, os.O_RDWR)
        path = self._path(target, task)
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise OpenFailed(path) from error

    def _path(self, target: StreamTarget, task: TaskPlan) -> str:
        # In a step over several components, Slurm adds 1 to %t for each component before the task's component.
        component = self._plan.component_of(task)
        values = {**component.patterns, "t": task.rank + task.component, "n": task.node_index}
        if self._plan.release.node_in_file_names:
            values["N"] = task.node
        return os.path.join(component.folder, expand(target.pattern, values))

    def _cached(self, path: str, flags: int) -> int:
        if self._closed:  # a second open might truncate the file
            raise OpenFailed(path)
        if path not in self._open:
            try:
                old = os.umask(self._plan.umask)
                try:
                    if self._plan.release.makes_output_folders:
                        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
                    self._open[path] = os.open(path, flags | os.O_CLOEXEC, 0o666)
                finally:
                    os.umask(old)
            except OSError as error:
                raise OpenFailed(path) from error
        return self._open[path]

    def close(self) -> None:
        self._closed = True
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def goes_straight(target: StreamTarget) -> bool:
    """Whether the task itself writes to its output file, without slurmstepd in between."""
    return target.kind == "null" or (target.kind == "file" and bool(separates(target.pattern)))


class LineBuffer:
    """Collects a task's output into complete lines, with the rank in front if --label is given."""

    def __init__(self, label: bytes, unbuffered: bool):
        self._label, self._unbuffered = label, unbuffered
        self._rest = b""

    def take(self, data: bytes) -> bytes:
        """Adds a task's output. Returns the bytes that can be written now: complete lines, or unbuffered all bytes."""
        if self._unbuffered:
            return self._labelled(data, [data[at : at + PIECE] for at in range(0, len(data), PIECE)])
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        end += (len(data) - end) // PIECE * PIECE  # of a long line that has not ended
        self._rest = data[end:]
        return self._labelled(data[:end])

    def finish(self) -> bytes:
        rest, self._rest = self._rest, b""
        return self._labelled(rest)

    def _labelled(self, data: bytes, reads: Sequence[bytes] = ()) -> bytes:
        if not self._label:
            return data
        pieces = [piece for part in reads or [data] for piece in PIECES.findall(part)]
        return b"".join(self._label + piece + b"\n"[piece.endswith(b"\n") :] for piece in pieces)


def label(rank: int, tasks: int) -> bytes:
    """Returns the label of a task. srun pads labels to the width of the last of `tasks`, slurmstepd does not."""
    return f"{rank:>{len(str(max(tasks - 1, 0)))}}: ".encode()


def expand(pattern: str, values: Mapping[str, object]) -> str:
    """Replaces %letters in a file name by `values`. Unknown letters stay. Numbers are padded with zeros to the width,
    as in %4t.

    If the name has a backslash, Slurm removes the backslashes and replaces no letter.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def replacement(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter == "%":
            return "%"
        if letter not in values:
            return match[0]
        text = str(values[letter])
        return text.zfill(min(int(width), 10)) if width and text.isdigit() else text

    return FIELD.sub(replacement, pattern)


def separates(pattern: str) -> str:
    """Returns "task" or "node" if the file name differs for each task or node, else ""."""
    letters = set(LETTER.findall(pattern.replace("%%", "")))
    if "\\" in pattern:
        return ""
    return "task" if "t" in letters else "node" if letters & {"n", "N"} else ""
