"""Note: a watcher's note about its silent rank. Each silent rank has one, which its agent sends to the root."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from clusterdp.rundir import Attempt, write_durably
from clusterdp.train.hang.page import DATA, LONG

HEADER = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
# Code in which a rank waits for other ranks. A backward pass both waits and computes in the autograd engine.
WAITING = ("/torch/distributed/", "/torch/cuda/", "/clusterdp/train/ranks/")
ENGINE = "/torch/autograd/"
LIBRARIES = ("/torch/", "/clusterdp/", "/lib/python", "<frozen", "<string>")


@dataclass(frozen=True)
class Note:
    """A watcher's note about its silent rank."""

    rank: int
    node: str
    pid: int
    step: int  # steps done
    phase: str  # one of PHASES, or `first step`
    order: int  # index of `phase` in PHASES
    silent_s: float  # seconds since the last sign of progress
    limit_s: float  # seconds of silence that are allowed in this phase
    hang_after_s: float  # the watcher's
    round: int  # silent_s divided by hang_after_s, rounded down
    state: str = ""  # the state of the rank's process, from /proc; wchan is from /proc, too
    wchan: str = ""
    cpu_s: float | None = None  # CPU seconds since the last sign of progress, from /proc
    stack: str = ""  # the stacks of all threads, as faulthandler writes them; empty if the rank did not answer
    thread: int = 0  # the id of the main thread
    collective: str = ""  # the last collective that the rank has started; empty if its recorder did not answer
    pending: bool | None = None  # whether the rank waits in a collective; None if its recorder did not answer
    children: str = ""  # child processes of the rank, such as a loader's workers: a line for each, and its stacks

    @property
    def place(self) -> str:
        return place(of_thread(self.stack, self.thread))

    @property
    def waits(self) -> bool:
        """Whether the rank's Python stack shows a collective, or a backward pass, which may wait in a collective."""
        return waits(of_thread(self.stack, self.thread), also_in_backward=True)

    @property
    def surely_waits(self) -> bool:
        return waits(of_thread(self.stack, self.thread), also_in_backward=False)

    @property
    def is_stopped(self) -> bool:
        """Whether the rank is stopped, by SIGSTOP or a debugger."""
        return self.state in ("T", "t")

    @property
    def may_take_long(self) -> bool:
        return self.phase in LONG

    @property
    def position(self) -> tuple[int, int]:
        return self.step, self.order

    @property
    def where(self) -> str:
        """The rank's position as text: `step 121, in backward`. Within a step, the number is the unfinished step's."""
        words = {"data": "waiting for data", "step": "in the step", "agreement": "between two steps"}
        words |= {"program": "outside of the loop", "end": "at its end", "start": "at its start"}
        step = self.step + (self.order >= DATA)
        return f"step {step}, {words.get(self.phase, f'in {self.phase}')}"


def leave_hung(attempt: Attempt) -> None:
    """Writes the file `hung`, if it is missing, with the nodes of the last report. Without a report, it is empty."""
    with suppress(OSError):  # on a full disk, the hang counts as a crash
        if not attempt.hung.exists():
            nodes = attempt.hang_nodes.read_text() if attempt.hang_nodes.exists() else "\n"
            write_durably(attempt.hung, nodes)


def of_thread(dump: str, ident: int) -> list[tuple[str, int, str]]:
    """Returns (file, line, function) for each frame of the thread, innermost first; an empty list if there is none."""
    frames: list[tuple[str, int, str]] = []
    ours = False
    for line in dump.splitlines():
        if header := HEADER.match(line):
            ours = int(header[1], 16) == ident
        elif ours and (frame := FRAME.match(line)):
            frames.append((frame[1], int(frame[2]) if frame[2].isdigit() else 0, frame[3]))
    return frames


def waits(frames: list[tuple[str, int, str]], *, also_in_backward: bool) -> bool:
    """Returns whether the frames show a wait for other ranks. Imports of torch's own modules do not count: torch
    imports some of them late, which takes half a minute on a busy machine."""
    places = (*WAITING, ENGINE) if also_in_backward else WAITING
    imports = any(function == "<module>" and "/torch/" in file for file, _, function in frames)
    return bool(frames) and not imports and any(part in frames[0][0] for part in places)


def place(frames: list[tuple[str, int, str]]) -> str:
    """Returns the innermost frame of the user's own code, or the innermost of all frames if none is the user's:
    `train.py:31 in main`."""
    own = [frame for frame in frames if not any(part in frame[0] for part in LIBRARIES)]
    for file, line, function in own or frames:
        return f"{file.rpartition('/')[2]}:{line} in {function}"
    return ""
