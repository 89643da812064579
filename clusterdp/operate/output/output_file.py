"""Writes the file that `-o` names. The target may be a link, a pipe or a device, which a rename must not replace."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from clusterdp.errors import OutputError
from clusterdp.rundir import write_durably


def write_output(path: Path, content: bytes, example: str) -> None:
    """Writes `content` to `path`. A plain file is replaced when the new file is complete. A link stays, and the linked
    file is replaced. Pipes and devices are written to directly. Raises OutputError if `path` cannot be written.
    `example` is a file name for the error's message, such as FILE.html."""
    try:
        if is_plain(path):
            write_durably(Path(os.path.realpath(path)), content)
        else:
            with open(path, "wb", buffering=0) as file:  # open() fails for a folder
                left = memoryview(content)
                while left:
                    left = left[file.write(left) or 0 :]
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}. Name another with -o {example}.") from None


def is_plain(path: Path) -> bool:
    """Returns whether the path is a plain file, or does not exist yet. Follows links."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True
