"""The text that faulthandler writes: stacks of all threads, the newest call first."""

from __future__ import annotations

import re

HEADER = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
# Where a rank waits for the others. In a backward pass, which waits in the engine, it computes there as well.
WAITING = ("/torch/distributed/", "/torch/cuda/", "/clusterdp/train/ranks/")
ENGINE = "/torch/autograd/"
LIBRARIES = ("/torch/", "/clusterdp/", "/lib/python", "<frozen", "<string>")


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
