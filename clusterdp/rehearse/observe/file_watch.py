"""FileWatch: watches how a run uses its files, by inotify."""

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
HEARD_TWICE_S = 0.5  # longest time between FOUND and CLOSE_WRITE of the same writing, for a file in a new folder
WRITTEN = inotify.CLOSE_WRITE | inotify.FOUND
LOOKS = 200  # maximum number of searches for the ranks that have a file open


class FileWatch:
    """Watches a run's files in a thread of its own, until uses() is called. Without inotify, FileWatch sees no file."""

    def __init__(self, live: LiveRun, counts: Callable[[str], bool] = is_checkpoint):
        """`counts`: decides by its path whether a file is watched (relative to the working folder if the file is below
        it)."""
        self._live = live
        self._counts = counts
        self._elsewhere: set[str] = set()  # the run's files in folders that other programs use, too
        self._uses: dict[str, FileUse] = {}
        self.last_saved = 0.0  # when a file other than a best model was last closed after writing, or renamed
        self._found: set[str] = set()
        self._looks = LOOKS
        self._over = threading.Event()
        self._source: inotify.Inotify | None = None
        with suppress(OSError):
            self._source = inotify.Inotify(live.run.code)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        left = FileUse()  # use of the last file that was renamed away: the event with its new name comes next
        while self._source:
            over = self._over.is_set()  # read before the events, so that all events before uses() are handled
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
        if mask & inotify.FOUND:  # a small file may be complete before its new folder is watched
            self._found.add(path)
        elif mask & inotify.CLOSE_WRITE and path in self._found:
            self._found.remove(path)
            if now - use.written[-1] < HEARD_TWICE_S:  # the file was not complete when it was found
                use.written.pop()
                use.steps.pop()
        if mask & WRITTEN:
            use.written.append(now)
        if mask & inotify.MOVED_TO:
            use.named.append(now)
        if mask & (WRITTEN | inotify.MOVED_TO):
            use.steps.append(self._live.step() or 0)
            with suppress(OSError):  # the file may be deleted already
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
        """Starts to watch a file's folder that is on another disk, or in a node's own /tmp, before a rank changes the
        file."""
        for path, here in ((event.path, event.here), (event.to, event.to_here)):
            name = own_name(self._live.run, path) if path else ""
            if self._source and name.startswith("/") and self._counts(name):
                self._elsewhere.add(path)
                self._source.listen_to(str(here.parent), str(Path(path).parent))

    def uses(self) -> dict[str, FileUse]:
        """Ends the watch, and returns the FileUse of each file by path (relative to the working folder if the file is
        below it)."""
        self._over.set()
        self._thread.join()
        if self._source:
            self._source.close()
            self._source = None
        return self._uses
