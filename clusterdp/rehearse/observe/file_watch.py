"""FileWatch: listens to what a run does with its files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from clusterdp.rehearse.observe import inotify, processes
from clusterdp.rehearse.observe.file_events import FileEvent
from clusterdp.rehearse.observe.file_use import FileUse, is_best, is_checkpoint
from clusterdp.rehearse.observe.live_run import LiveRun
from clusterdp.rehearse.observe.save_shape import own_name

WAIT_S = 0.2
HEARD_TWICE_S = 0.5  # at most, between finding a file in a new folder and hearing that it was closed
WRITTEN = inotify.CLOSE_WRITE | inotify.FOUND
LOOKS = 200  # at most, for who has a file open


class FileWatch:
    """In a thread of its own, until uses() is called. Without inotify no file is seen."""

    def __init__(self, live: LiveRun, counts: Callable[[str], bool] = is_checkpoint):
        """counts: whether a file does, by its path below the working folder or its whole path elsewhere."""
        self._live = live
        self._counts = counts
        self._elsewhere: set[str] = set()  # files of the run in folders that others use, too
        self._uses: dict[str, FileUse] = {}
        self.last_saved = 0.0  # when a file was closed or renamed, but for models that are kept for their score
        self._found: set[str] = set()
        self._looks = LOOKS
        self._over = threading.Event()
        self._source: inotify.Inotify | None = None
        with suppress(OSError):
            self._source = inotify.Inotify(live.run.code)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        left = FileUse()  # the last that was renamed; where it has come to is told next
        while self._source:
            over = self._over.is_set()  # asked first: what has been done until then is heard
            events = [*self._source.events(WAIT_S)]
            for mask, path in events:
                name = path.removeprefix(f"{self._live.run.code}/")
                if (name != path or path in self._elsewhere) and self._counts(name):
                    use = self._uses.setdefault(name, FileUse())
                    self._note(mask, path, use)
                    if mask & (WRITTEN | inotify.MOVED_TO) and not is_best(path):
                        self.last_saved = time.time()
                    left = use if mask & inotify.MOVED_FROM else left
                    if mask & inotify.MOVED_TO:
                        left.size, left = use.size, FileUse()
            if over and not events:
                return

    def _note(self, mask: int, path: str, use: FileUse) -> None:
        now = time.time()
        if mask & inotify.MODIFY and self._looks and is_checkpoint(path):
            self._look(path, use)
        if mask & inotify.CLOSE_READ:
            use.read.append(now)
        if mask & inotify.FOUND:  # a small file is written before its new folder can be listened to
            self._found.add(path)
        elif mask & inotify.CLOSE_WRITE and path in self._found:
            self._found.remove(path)
            if now - use.written[-1] < HEARD_TWICE_S:  # it was not whole yet
                use.written.pop()
                use.steps.pop()
        if mask & WRITTEN:
            use.written.append(now)
        if mask & inotify.MOVED_TO:
            use.named.append(now)
        if mask & (WRITTEN | inotify.MOVED_TO):
            use.steps.append(self._live.step() or 0)
            with suppress(OSError):  # it may be gone already
                use.size = os.stat(path).st_size
        if mask & (inotify.MOVED_FROM | inotify.DELETE):
            use.gone.append(now)

    def _look(self, path: str, use: FileUse) -> None:
        self._looks -= 1
        ranks = self._live.ranks()
        having = [rank for rank, pids in ranks.items() if any(f.path == path for f in processes.written_files(pids))]
        if len(having) > len(use.by):
            use.by = having

    def heard(self, event: FileEvent) -> None:
        """Before a rank changes a file elsewhere, its folder is listened to, too: on another disk, or of a node."""
        for path, here in ((event.path, event.here), (event.to, event.to_here)):
            name = own_name(self._live.run, path) if path else ""
            if self._source and name.startswith("/") and self._counts(name):
                self._elsewhere.add(path)
                self._source.listen_to(str(here.parent), str(Path(path).parent))

    def uses(self) -> dict[str, FileUse]:
        """By their paths below the working folder, or whole paths elsewhere."""
        self._over.set()
        self._thread.join()
        if self._source:
            self._source.close()
            self._source = None
        return self._uses
