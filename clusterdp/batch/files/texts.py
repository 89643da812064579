"""Files and output as text. Bytes that are not UTF-8 are kept, because folders and logs may have any bytes."""

import os
import re
from typing import List, Optional

LAST = 1 << 20  # number of bytes that are read from the end of a job's output, which may have gigabytes


def native(text: str) -> str:
    """Returns text of JSON in the form that os.fsencode() takes: Python 3.6 under LANG=C refuses `é` in a path."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def as_bytes(text: str) -> bytes:
    """Returns the original bytes of a text. Half a character (a lone surrogate of JSON) becomes a question mark."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def shown(text: str) -> str:
    """Returns the text in a form that is valid in JSON."""
    return as_bytes(text).decode("utf-8", "replace")


def read(path: str, most: int = LAST, begin: Optional[int] = None) -> str:
    """Returns at most the last `most` bytes of a file, from position `begin` on, as text; empty if the file cannot be
    read."""
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
    """Returns the whole number that a text of digits means; None for any other text."""
    return int(word) if re.match(r"[0-9]+$", word) and len(word) < 16 else None


def warn(text: str, stream: int = 2) -> None:
    """Prints a line to the job's output."""
    data = as_bytes("clusterdp: " + text + "\n")
    try:
        os.write(stream, data)
    except OSError:
        pass  # if the disk is full, the line is lost


def warn_of_fault(error: Exception, what_follows: str) -> str:
    """Prints an error of this program with its traceback. Returns the error as one line."""
    import traceback  # slow to import; exists even if this program's files are gone, as part of the standard library

    said = "a fault in the batch program: {}: {}".format(type(error).__name__, error)
    warn(traceback.format_exc().rstrip())
    warn("{}. {}".format(said, what_follows))
    return said
