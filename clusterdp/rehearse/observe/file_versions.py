"""FileVersions: what a run has written in its working folder, with a copy of each file from the moment it was whole."""

from __future__ import annotations

import json
import os
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

WAIT_S = 0.2
ROOM = 1 << 29  # bytes, of all copies of a run
LARGEST = 1 << 26  # bytes, of one copy: it is made while the program runs, from the cache
WHOLE = inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.FOUND
INDEX = "index.jsonl"
VERSIONS = "-versions"  # after a run's name: the folder of its copies


@dataclass(frozen=True)
class Version:
    """name: path below the working folder. at: seconds since 1970. step: how far rank 0 had come by what it had
    printed; 0 if nothing. copy: of the file as it was then; empty if it was deleted, or too large to be kept."""

    name: str
    at: float
    step: int
    copy: str
    is_gone: bool = False


class FileVersions:
    """Keeps them in a thread of its own, until close() is called, and with an inotify of its own: a copy takes time,
    and FileWatch notes when each event comes. Without inotify no version is kept."""

    def __init__(self, live: LiveRun, kept: Path):
        self._live = live
        self._kept = kept
        self._room = ROOM
        self._count = 0
        self._over = threading.Event()
        self._source: inotify.Inotify | None = None
        with suppress(OSError):
            self._source = inotify.Inotify(live.run.code)
        kept.mkdir()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while self._source:
            over = self._over.is_set()  # asked first: what has been done until then is heard
            events = [*self._source.events(WAIT_S)]
            for mask, path in events:
                self._note(mask, path)
            if over and not events:
                return

    def _note(self, mask: int, path: str) -> None:
        name = os.path.relpath(path, self._live.run.code)
        if mask & (inotify.MOVED_FROM | inotify.DELETE):
            self._write(Version(name, time.time(), 0, "", is_gone=True))
        elif mask & WHOLE or (mask & inotify.CREATE and _is_link(path)):
            at = time.time()
            with suppress(OSError):  # renamed or deleted meanwhile, which is told next
                self._write(Version(name, at, self._live.step() or 0, self._copy(path)))

    def _copy(self, path: str) -> str:
        size = os.lstat(path).st_size
        if size > min(LARGEST, self._room):
            return ""
        copy = self._kept / f"{self._count}{Path(path).suffix}"  # by which its kind is told
        shutil.copy2(path, copy, follow_symlinks=False)
        self._count += 1
        self._room -= size
        return str(copy)

    def _write(self, version: Version) -> None:
        with (self._kept / INDEX).open("a") as file:
            file.write(json.dumps(asdict(version)) + "\n")

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        if self._source:
            self._source.close()
            self._source = None


def _is_link(path: str) -> bool:
    """Symbolic, or one more name of a file that has one: neither is closed or renamed."""
    with suppress(OSError):
        status = os.lstat(path)
        return stat.S_ISLNK(status.st_mode) or status.st_nlink > 1
    return False


def folder_of_versions(run: Path) -> Path:
    """Beside the run's own folder."""
    return run.with_name(f"{run.name}{VERSIONS}")


def read_versions(run: Path) -> list[Version]:
    """Oldest first; none where none were kept. run: its folder."""
    with suppress(OSError):
        lines = (folder_of_versions(run) / INDEX).read_text().splitlines()
        return [Version(**json.loads(line)) for line in lines]
    return []


def files_at(versions: Sequence[Version], time: float) -> dict[str, Version]:
    """The last version of each file that was there at this time, by its name."""
    found: dict[str, Version] = {}
    for version in versions:
        if version.at <= time:
            found[version.name] = version
    return {name: version for name, version in found.items() if not version.is_gone}
