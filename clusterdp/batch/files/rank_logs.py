"""The logs of ranks: which files of an attempt they are, and the lines of each rank in a file of several.

srun writes node-00003.log for the ranks of a node, and before each line its rank (--label): `24: loss 0.1`. Any other
launcher, and an older run, has rank-00003.out for each rank. With srun's labels, three things cannot be told apart:
slurmstepd's own lines are labelled as those of a node's first rank, the last line of a rank may have had no end, and a
line without a label, which another process has written, counts as one of the rank before it.
"""

import os
import re
import stat
import sys
from typing import Dict, List, NamedTuple, Optional, Tuple

PIECE = 1024  # bytes; slurmstepd cuts longer lines, and labels each piece
LONGEST = 256 << 10  # bytes of a line without an end that are held back
LOOK = 64 << 10  # bytes at both ends of a file in which its ranks are looked for
MOST = 4 << 20  # bytes that are read at the end of a file in search of the lines of a rank
NAME = re.compile(r"rank-([0-9]{1,9})\.out|node-([0-9]{1,9})\.log")
LABEL = re.compile(rb"^([0-9]{1,9}): ", re.MULTILINE)


class LogFile(NamedTuple):
    """number: of the rank, or of the node if its ranks share the file."""

    number: int
    path: str
    is_shared: bool


def log_files(folder: str) -> List[LogFile]:
    """Returns the logs of the ranks in a folder, by their numbers; an empty list if it cannot be listed."""
    try:
        found = [log_file(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []
    return sorted(file for file in found if file)


def log_file(folder: str, name: str) -> Optional[LogFile]:
    """Returns the log that a name in the folder stands for; None if it is not a log of ranks."""
    found = NAME.fullmatch(name)
    return LogFile(int(found[1] or found[2]), os.path.join(folder, name), bool(found[2])) if found else None


def log_of(files: List[LogFile], rank: int) -> Optional[LogFile]:
    """Returns the log of a rank; None if the rank has none, or has printed nothing into that of its node. The log in
    which the rank is by Slurm's default order is looked at first."""
    place = rank // max(1, len(ranks_in(files[0]))) if files else 0
    return next((file for file in files[place : place + 1] + files if rank in ranks_in(file)), None)


def ranks_in(file: LogFile) -> List[int]:
    """Returns the ranks in the begin and the end of a log, in their order."""
    if not file.is_shared:
        return [file.number]
    data, start = end_of(file.path, LOOK)
    return sorted(map(int, set(LABEL.findall(_read(file.path, LOOK)[0] + b"\n" + data if start else data))))


def ends_in(file: LogFile, most: int) -> Dict[int, bytes]:
    """Returns the last `most` bytes of each rank in a log. The rank that printed last comes last."""
    if not file.is_shared:
        return {file.number: _read(file.path, -most)[0]}
    look, start, known, found = LOOK, 1, ranks_in(file), {}  # type: int, int, List[int], Dict[int, bytes]
    while start and look <= MOST and any(len(found.get(rank, b"")) < most for rank in known):
        data, start = end_of(file.path, look)
        found, look = whole(data), 8 * look
    order = sorted(found, key=lambda rank: data.rfind(b"\n%d: " % rank))
    return {rank: found[rank][-most:] for rank in order}


def end_of(path: str, most: int) -> Tuple[bytes, int]:
    """Returns the whole lines in the last `most` bytes of a file, or the end of a longer line, and where they begin."""
    data, start = _read(path, -most)
    lines = (data[data.find(b"\n") + 1 :] if start else b"") or data
    return lines, start + len(data) - len(lines)


def text_of(folder: str, rank: int) -> str:
    """Returns all that a rank has printed; empty if it has no log, or a log that cannot be read."""
    file = log_of(log_files(folder), rank)
    data = _read(file.path, -sys.maxsize)[0] if file else b""
    return (whole(data).get(rank, b"") if file and file.is_shared else data).decode("utf-8", "replace")


def whole(data: bytes) -> Dict[int, bytes]:
    """Returns the text of each rank in a shared log that does not grow."""
    lines = RankLines()
    found = lines.take(data if data.endswith(b"\n") or not data else data + b"\n")
    for rank, rest in lines.rest().items():
        found[rank] = found.get(rank, b"") + rest
    return found


class RankLines:
    """The lines of each rank in a shared log, which is given part by part."""

    def __init__(self) -> None:
        self._open: Dict[int, bytes] = {}  # the begin of a long line, by rank
        self._last = b"0"

    def take(self, data: bytes) -> Dict[int, bytes]:
        """Returns the text of each rank in whole lines of the log. A long line waits for its last piece."""
        groups: Dict[bytes, List[bytes]] = {}
        for line in data.split(b"\n")[:-1]:
            label, _, text = line.partition(b": ")
            lines = groups.get(label)
            if lines is None:
                if not label.isdigit() or len(label) > 9:
                    label, text = self._last, line
                lines = groups.setdefault(label, [])
            lines.append(text)
            self._last = label
        return {int(label): text for label, lines in groups.items() for text in [self._joined(int(label), lines)]}

    def _joined(self, rank: int, lines: List[bytes]) -> bytes:
        text = self._open.pop(rank, b"")
        if PIECE not in map(len, lines):
            return text + b"\n".join(lines) + b"\n"
        text += b"".join(line if len(line) == PIECE else line + b"\n" for line in lines)
        end = text.rfind(b"\n") + 1
        if 0 < len(text) - end < LONGEST:
            self._open[rank], text = text[end:], text[:end]
        return text

    def rest(self) -> Dict[int, bytes]:
        """Returns what waits for the rest of its line."""
        rest, self._open = self._open, {}
        return rest


def _read(path: str, most: int) -> Tuple[bytes, int]:
    """Returns the first `most` bytes of a file, or the last ones if it is negative, and where they begin; nothing of
    what cannot be read, or is not a file."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            start = file.seek(max(0, status.st_size + most) if most < 0 else 0)
            return file.read(min(abs(most), status.st_size)) if stat.S_ISREG(status.st_mode) else b"", start
    except OSError:
        return b"", 0
