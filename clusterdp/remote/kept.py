"""What is kept about a host on the user's machine, in private files: its last answers, shown with their age when it
cannot be reached; and calls that submit a new run. A call is written down before the connection is made, and forgotten
when its outcome is known; until then, each call to the same host asks for it."""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from clusterdp.plainfile import read_plain
from clusterdp.remote.host import RemoteHost, cache_folder, write_private

LARGEST = 4 << 20  # bytes of an answer that is kept
MOST = 200  # answers of a host that are kept, the newest


def keep(host: RemoteHost, words: Sequence[str], printed: bytes, name: str = "", file: bytes = b"") -> None:
    """Keeps a whole answer. A cache that cannot be written is not an error."""
    if len(printed) + len(file) > LARGEST:
        return
    about = {"asked": [host.folder, *words], "time": time.time(), "printed": len(printed), "name": name}
    path = _path(host, words)
    with suppress(OSError):
        write_private(path, json.dumps(about).encode() + b"\n" + printed + file)
        for old in sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime)[:-MOST]:
            old.unlink()


def kept_answer(host: RemoteHost, words: Sequence[str]) -> tuple[float, bytes, str, bytes] | None:
    """Returns the time of the last answer, its output, and the name and the bytes of a file that came with it."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        head, _, rest = read_plain(_path(host, words)).partition(b"\n")
        about = json.loads(head)
        if about["asked"] != [host.folder, *words]:
            return None
        printed, file = rest[: about["printed"]], rest[about["printed"] :]
        return (float(about["time"]), printed, str(about["name"]), file)
    return None


def _path(host: RemoteHost, words: Sequence[str]) -> Path:
    key = zlib.crc32(json.dumps([host.folder, *words]).encode())  # hashlib takes longer to load
    return cache_folder(host.name) / "answers" / f"{key:08x}"


class OpenCall:
    """The record of a call. It is locked as long as this process lives: the calls of other terminals were not cut."""

    def __init__(self, host: RemoteHost, typed: Sequence[str]):
        self.token = os.urandom(8).hex()
        self.path = _calls(host) / self.token
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        record = [host.folder, time.strftime("%H:%M:%S"), *typed]
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)  # before the record: nobody finds a record without a lock
        os.write(self.fd, json.dumps(record).encode())
        os.fsync(self.fd)

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self.fd)


def cut_calls(host: RemoteHost) -> dict[str, list[str]]:
    """Returns the calls to a host whose outcome is unknown: token -> folder there, time, and words as typed."""
    found: dict[str, list[str]] = {}
    with suppress(FileNotFoundError):
        for path in sorted(_calls(host).iterdir()):
            with suppress(OSError, ValueError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # BlockingIOError: the call goes on
                found[path.name] = json.load(file)
    return found


def forget_call(host: RemoteHost, token: str) -> None:
    (_calls(host) / token).unlink(missing_ok=True)


def _calls(host: RemoteHost) -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local/state") / "clusterdp" / "calls" / host.name
