"""Files and output as text. Bytes that are not UTF-8 are kept, because folders and logs may have any bytes."""

import os
import re
from typing import List, Optional

LAST = 1 << 20  # bytes of a job's output that are read: an output may have gigabytes


def native(text: str) -> str:
    """Returns text of JSON in the form that os.fsencode() takes: Python 3.6 under LANG=C refuses `é` in a path."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def as_bytes(text: str) -> bytes:
    """Returns the original bytes. Half a character (a lone surrogate of JSON) becomes a question mark."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def shown(text: str) -> str:
    """Returns text that is valid in JSON."""
    return as_bytes(text).decode("utf-8", "replace")


def read(path: str, most: int = LAST, begin: Optional[int] = None) -> str:
    """Returns the last bytes of a file, at most `most`, and none before `begin`; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - most, begin or 0, 0))
            return os.fsdecode(file.read(most))
    except OSError:
        return ""


def lines(path: str) -> List[str]:
    """Returns the lines of a small file."""
    return read(path).split("\n")


def words(path: str) -> List[str]:
    """Returns the words of a file's first line."""
    return lines(path)[0].split()


def size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def number(word: str) -> Optional[int]:
    """Returns a whole number written in digits; None for anything else."""
    return int(word) if re.match(r"[0-9]+$", word) and len(word) < 16 else None


def warn(text: str, stream: int = 2) -> None:
    """Prints a line to the job's output."""
    data = as_bytes("clusterdp: " + text + "\n")
    try:
        os.write(stream, data)
    except OSError:
        pass  # on a full disk the line is lost


def warn_of_fault(error: Exception, what_follows: str) -> str:
    """Prints a fault of this program with its traceback. Returns the fault in words."""
    import traceback  # slow to import; in the standard library, and so present even if this program's files are gone

    said = "a fault in the batch program: {}: {}".format(type(error).__name__, error)
    warn(traceback.format_exc().rstrip())
    warn("{}. {}".format(said, what_follows))
    return said
