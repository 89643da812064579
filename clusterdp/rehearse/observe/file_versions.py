"""FileVersions: the files that a run writes in its working folder, each copied as soon as it is whole."""

from __future__ import annotations

import json
import os
import queue
import shutil
import stat
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterdp.rehearse.observe import inotify
from clusterdp.rehearse.observe.live_run import LiveRun

ROOM = 1 << 29  # maximum number of bytes of all copies of a run
LARGEST = 1 << 26  # maximum number of bytes of a copy, which is made from the page cache while the program runs
WHOLE = inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.FOUND
INDEX = "index.jsonl"
VERSIONS = "-versions"  # suffix of a run's name: the folder of the run's copies


@dataclass(frozen=True)
class Version:
    """The content of a file from one moment on, or its deletion."""

    name: str  # the path below the working folder
    at: float  # seconds since 1970
    step: int  # the last step that rank 0 had printed; 0 if rank 0 had printed no step
    copy: str  # the path of a copy of the file; empty if the file was deleted, or is too large to be kept
    is_gone: bool = False


class FileVersions:
    """Copies each version of a run's files, in a thread of its own until close(), because FileWatch, which hears of the
    files, must note the time of each event at once, and copies take time."""

    def __init__(self, live: LiveRun, kept: Path):
        self._live = live
        self._kept = kept
        self._room = ROOM
        self._count = 0
        self._events: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        kept.mkdir()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def heard(self, mask: int, path: str) -> None:
        """Takes an event of inotify on a file below the working folder."""
        self._events.put((mask, path))

    def _listen(self) -> None:
        for mask, path in iter(self._events.get, None):
            self._note(mask, path)

    def _note(self, mask: int, path: str) -> None:
        name = os.path.relpath(path, self._live.run.code)
        if mask & (inotify.MOVED_FROM | inotify.DELETE):
            self._write(Version(name, time.time(), 0, "", is_gone=True))
        elif mask & WHOLE or (mask & inotify.CREATE and _is_link(path)):
            at = time.time()
            with suppress(OSError):  # the file was renamed or deleted meanwhile: this event comes next
                self._write(Version(name, at, self._live.step() or 0, self._copy(path)))

    def _copy(self, path: str) -> str:
        size = os.lstat(path).st_size
        if size > min(LARGEST, self._room):
            return ""
        copy = self._kept / f"{self._count}{Path(path).suffix}"  # readers choose the format by the file's suffix
        shutil.copy2(path, copy, follow_symlinks=False)
        self._count += 1
        self._room -= size
        return str(copy)

    def _write(self, version: Version) -> None:
        with (self._kept / INDEX).open("a") as file:
            file.write(json.dumps(asdict(version)) + "\n")

    def close(self) -> None:
        self._events.put(None)
        self._thread.join()


def _is_link(path: str) -> bool:
    """Whether the path is a symbolic or hard link, because inotify reports no close and no rename of a new link."""
    with suppress(OSError):
        status = os.lstat(path)
        return stat.S_ISLNK(status.st_mode) or status.st_nlink > 1
    return False


def folder_of_versions(run: Path) -> Path:
    """Returns the folder of a run's copies, beside the run's own folder."""
    return run.with_name(f"{run.name}{VERSIONS}")


def read_versions(run: Path) -> list[Version]:
    """Returns the versions of a run's files in the order of their time, or [] if no version was kept. `run`: the run's
    folder."""
    with suppress(OSError):
        lines = (folder_of_versions(run) / INDEX).read_text().splitlines()
        return [Version(**json.loads(line)) for line in lines]
    return []


def files_at(versions: Sequence[Version], time: float) -> dict[str, Version]:
    """Returns, by name, the version of each file that existed at this time."""
    found: dict[str, Version] = {}
    for version in versions:
        if version.at <= time:
            found[version.name] = version
    return {name: version for name, version in found.items() if not version.is_gone}
