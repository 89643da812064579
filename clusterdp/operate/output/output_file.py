"""The file that `-o` names. It may be a link, a pipe or a device: what a rename would replace, and must not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from clusterdp.errors import OutputError
from clusterdp.rundir import write_durably


def write_output(path: Path, content: bytes, example: str) -> None:
    """A plain file is replaced when the new one is complete; a link stays, and what it points to is replaced. Into a
    pipe or a device it is written. OutputError; `example`: a name such as FILE.html."""
    try:
        if is_plain(path):
            write_durably(Path(os.path.realpath(path)), content)
        else:
            with open(path, "wb", buffering=0) as file:  # a folder is an error
                left = memoryview(content)
                while left:
                    left = left[file.write(left) or 0 :]
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}. Name another with -o {example}.") from None


def is_plain(path: Path) -> bool:
    """Whether a plain file is there, or none yet; links are followed."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True
