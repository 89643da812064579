"""FlightRecord: whether a rank's last collective is done, from a dump of the flight recorder in torch's NCCL group.

The recorder writes a dump if a collective times out, or if a line is written to its pipe. A C++ thread does so, even
while the rank waits for its GPU or holds the GIL. Gloo's group has neither a dump nor a pipe.
Variables and format: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

from __future__ import annotations

import os
import pickle
import stat
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from clusterdp.plainfile import read_plain

ENTRIES = "2000"  # collectives that the recorder keeps, which is also the default of torch 2.13
# Older versions of torch know only the second name of each pair; newer ones print a warning about it.
SIZE, DUMP = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_folder = ""
_kept: set[Path] = set()


class FlightRecord(NamedTuple):
    """`collective`: the last collective that the rank has started, such as `all_reduce 121`. `pending`: whether a
    collective is not done, because the rank waits for other ranks in it."""

    collective: str
    pending: bool


class _Plain(pickle.Unpickler):
    """Refuses classes and functions, so that reading a dump executes nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a dump has no {module}.{name}")


def place(rank: int) -> tuple[str, str, str]:
    """Chooses this rank's own folder for a dump, which switch_on() makes. Returns the paths of the dump, the pipe and
    the folder. The dump and the pipe are in other folders if the user has set the recorder's variables."""
    import tempfile  # only ranks need it

    global _folder
    _folder = os.path.join(tempfile.gettempdir(), f"clusterdp-flight-{os.urandom(8).hex()}")
    ours = os.path.join(_folder, "rank_")
    dump = next((os.environ[name] for name in DUMP if name in os.environ), ours)
    return f"{dump}{rank}", f"{os.environ.get(PIPE, ours)}{rank}.pipe", _folder


def switch_on(*, old_names: bool) -> None:
    """Sets the recorder's variables that the user has not set, if the rank has a hang watch. Call switch_on() before
    the NCCL group starts. If the folder cannot be made, the recorder is not changed.

    `old_names`: whether torch knows only the old names of the variables."""
    if not _folder:
        return
    at = 1 if old_names else 0
    with suppress(OSError):
        os.mkdir(_folder, 0o700)
        ours = os.path.join(_folder, "rank_")
        for names, value in ((SIZE, ENTRIES), (DUMP, ours)):
            if not any(name in os.environ for name in names):
                os.environ[names[at]] = value
        os.environ.setdefault(PIPE, ours)
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def request(pipe: str) -> bool:
    """Asks the rank for a dump. Returns whether the rank has such a pipe."""
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(fd, "wb", buffering=0) as file, suppress(OSError):
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return file.write(b"1\n") == 2
    return False


def read(dump: str) -> FlightRecord | None:
    """Returns the record in a dump; None if the dump is missing, not yet complete, or has another form."""
    try:
        entries = _Plain(BytesIO(read_plain(Path(dump)))).load()["entries"]
        last = entries[-1]
        number = last["p2p_seq_id"] if last.get("is_p2p") else last["collective_seq_id"]
        name = str(last["profiling_name"]).rpartition(":")[2]
        pending = any(entry["state"] != "completed" and not entry["retired"] for entry in entries)
        return FlightRecord(f"{name} {int(number)}", pending)
    except Exception:  # a dump that is being written, or damaged, can make an unpickler raise any exception
        return None


def keep(dump: str, copy: Path) -> None:
    """Copies a dump, unless `copy` exists: all watchers of a node have the same `copy`."""
    if copy not in _kept:
        with suppress(OSError):
            data = read_plain(Path(dump))
            _kept.add(copy)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("xb") as file:
                file.write(data)


def remove(folder: str) -> None:
    """Removes the files of the folder, and the folder."""
    with suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
