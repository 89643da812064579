"""Note: what a watcher knows of its silent rank. Each rank has a file in the folder `hang` of the attempt."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterdp.plainfile import read_plain
from clusterdp.rundir import Attempt, write_durably
from clusterdp.train.hang.page import DATA, LONG

HEADER = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
# The code in which a rank waits for the others. A backward pass waits in the engine, and computes there as well.
WAITING = ("/torch/distributed/", "/torch/cuda/", "/clusterdp/train/ranks/")
ENGINE = "/torch/autograd/"
LIBRARIES = ("/torch/", "/clusterdp/", "/lib/python", "<frozen", "<string>")


@dataclass(frozen=True)
class Note:
    """step: steps done. phase: of PHASES, or `first step`. order: of the phase. silent_s: since the last sign.
    limit_s: how long a rank may be silent in this phase. state, wchan, cpu_s: of its process, from /proc; cpu_s: spent
    since the last sign. stack: of all threads, as faulthandler writes it; empty if the rank did not answer.
    thread: the main one. children: of its processes, such as a loader's workers, a line each, with stacks."""

    rank: int
    node: str
    pid: int
    step: int
    phase: str
    order: int
    silent_s: float
    limit_s: float
    round: int
    state: str = ""
    wchan: str = ""
    cpu_s: float | None = None
    stack: str = ""
    thread: int = 0
    children: str = ""

    @property
    def place(self) -> str:
        return place(of_thread(self.stack, self.thread))

    @property
    def waits(self) -> bool:
        """In a collective, or in a backward pass, which may wait in one, as far as Python's stack tells."""
        return waits(of_thread(self.stack, self.thread), also_in_backward=True)

    @property
    def surely_waits(self) -> bool:
        return waits(of_thread(self.stack, self.thread), also_in_backward=False)

    @property
    def is_stopped(self) -> bool:
        """By SIGSTOP, or by a debugger."""
        return self.state in ("T", "t")

    @property
    def may_take_long(self) -> bool:
        return self.phase in LONG

    @property
    def position(self) -> tuple[int, int]:
        return self.step, self.order

    @property
    def where(self) -> str:
        """`step 121, in backward`. Within a step, the one at work is named, which is not done yet."""
        words = {"data": "waiting for data", "step": "in the step", "agreement": "between two steps"}
        words |= {"program": "outside of the loop", "end": "at its end", "start": "at its start"}
        step = self.step + (self.order >= DATA)
        return f"step {step}, {words.get(self.phase, f'in {self.phase}')}"

    def write(self, path: Path) -> None:
        """OSError if that fails."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)


def read_notes(folder: Path) -> list[Note]:
    """Those of all ranks, in their order. Files other than notes are left out."""
    return sorted(filter(None, map(_read, sorted(folder.glob("rank-*.json")))), key=lambda note: note.rank)


def _read(path: Path) -> Note | None:
    try:
        return Note(**json.loads(read_plain(path)))
    except (OSError, ValueError, TypeError):
        return None


def leave_hung(attempt: Attempt) -> None:
    """Unless it is there already. The nodes are those of the last report; none if there is none."""
    with suppress(OSError):  # a full disk: then it counts as a crash
        if not attempt.hung.exists():
            nodes = attempt.hang_nodes.read_text() if attempt.hang_nodes.exists() else "\n"
            write_durably(attempt.hung, nodes)


def of_thread(dump: str, ident: int) -> list[tuple[str, int, str]]:
    """(file, line, function) of each frame of the thread, the innermost first; empty if it is not in the dump."""
    frames: list[tuple[str, int, str]] = []
    ours = False
    for line in dump.splitlines():
        if header := HEADER.match(line):
            ours = int(header[1], 16) == ident
        elif ours and (frame := FRAME.match(line)):
            frames.append((frame[1], int(frame[2]) if frame[2].isdigit() else 0, frame[3]))
    return frames


def waits(frames: list[tuple[str, int, str]], *, also_in_backward: bool) -> bool:
    """Not while torch's own modules are imported: some of them only when they are needed, and on a busy machine for
    half a minute."""
    places = (*WAITING, ENGINE) if also_in_backward else WAITING
    imports = any(function == "<module>" and "/torch/" in file for file, _, function in frames)
    return bool(frames) and not imports and any(part in frames[0][0] for part in places)


def place(frames: list[tuple[str, int, str]]) -> str:
    """`train.py:31 in main`: the innermost frame of the user's own code, else the innermost of all."""
    own = [frame for frame in frames if not any(part in frame[0] for part in LIBRARIES)]
    for file, line, function in own or frames:
        return f"{file.rpartition('/')[2]}:{line} in {function}"
    return ""
