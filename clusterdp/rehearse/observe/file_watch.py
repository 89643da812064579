"""FileWatch: watches how a run uses its files, by inotify.

FileWatch and FileEvents (file_events.py) cannot replace each other. A trap comes before its call, and has the rank, the
step and the flags. It does not see the end of a writing, because a program that is killed calls no close(2). Traps of
reads and closes would be 20 times as many: loading torch opens 1,600 files to read. inotify reports both, also where
traps are not possible (other clusters, older kernels), but it comes late and holds no call.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from clusterdp.fakeslurm.core.file_traps import LINK, WRITE
from clusterdp.rehearse.observe import inotify, processes
from clusterdp.rehearse.observe.file_events import FileEvent
from clusterdp.rehearse.observe.file_use import FileUse, is_best, is_checkpoint
from clusterdp.rehearse.observe.live_run import LiveRun
from clusterdp.rehearse.observe.save_shape import own_name

WAIT_S = 0.2
HEARD_TWICE_S = 0.5  # longest time between FOUND and CLOSE_WRITE of the same writing, for a file in a new folder
WRITTEN = inotify.CLOSE_WRITE | inotify.FOUND
OLDEST_S = 600.0  # an older mtime is not that of a writing, because the program has set it
CLOCK_S = 0.1  # seconds by which the clock of a file system may be behind
MARKS = "/marks"  # the name of the folder of marks
LOOKS = 200  # maximum number of searches for the ranks that have a file open


class FileWatch:
    """Watches a run's files in a thread of its own, until uses() is called. Without inotify, FileWatch sees no file.

    The thread may get to an event late. Times are thus those of the files, and steps those of FileEvents, which holds
    each call until it has read the step.
    """

    def __init__(
        self,
        live: LiveRun,
        counts: Callable[[str], bool] = is_checkpoint,
        below: Callable[[int, str], None] = lambda mask, path: None,
    ):
        """`counts`: decides by its path whether a file is watched (relative to the working folder if the file is below
        it). `below`: gets each event on a file below the working folder."""
        self._live = live
        self._counts = counts
        self._below = below
        self._elsewhere: set[str] = set()  # the run's files in folders that other programs use, too
        self._uses: dict[str, FileUse] = {}
        self.last_saved = 0.0  # when a file other than a best model was last closed after writing, or renamed
        self._found: set[str] = set()
        self._opened: dict[str, deque[tuple[float, int]]] = {}  # by path: time and step of each opening to write
        self._linked: set[str] = set()  # names that files get by a link, which is no event of its own
        self._marks = tempfile.TemporaryDirectory()
        self._ahead: deque[float] = deque()  # times of the marks that are not among the handled events yet
        self._since = 0.0  # time of the last handled mark
        self._looks = LOOKS
        self._over = threading.Event()
        self._source: inotify.Inotify | None = None
        with suppress(OSError):
            self._source = inotify.Inotify(live.run.code)
            self._source.listen_to(self._marks.name, MARKS)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def mark(self) -> float:
        """Returns the present time, in seconds since 1970. Events before the mark get no later time, and events after
        the mark no earlier time."""
        now = time.time()
        if self._source:
            self._ahead.append(now)
            Path(self._marks.name, str(now)).touch()
        return now

    def _at(self, own: float) -> float:
        return max(self._since, min([own, *self._ahead]))

    def _listen(self) -> None:
        left = FileUse()  # use of the last file that was renamed away: the event with its new name comes next
        while self._source:
            over = self._over.is_set()  # read before the events, so that all events before uses() are handled
            events = [*self._source.events(WAIT_S)]
            for mask, path in events:
                if path.startswith(f"{MARKS}/"):
                    self._since = self._ahead.popleft() if mask & inotify.CREATE else self._since
                    continue
                name = path.removeprefix(f"{self._live.run.code}/")
                if name != path:
                    self._below(mask, path)
                if (name != path or path in self._elsewhere) and self._counts(name):
                    use = self._uses.setdefault(name, FileUse())
                    if mask & inotify.CREATE and path in self._linked:
                        self._linked.remove(path)
                        mask |= inotify.MOVED_TO
                    self._note(mask, path, use, left)
                    left = use if mask & inotify.MOVED_FROM else left
                    if mask & inotify.MOVED_TO:
                        left.size, left = use.size, FileUse()
            if over and not events:
                return

    def _note(self, mask: int, path: str, use: FileUse, left: FileUse) -> None:
        now = time.time()
        opened = self._opened.get(path, deque())
        if mask & inotify.MODIFY and self._looks and is_checkpoint(path):
            self._look(path, use)
        if mask & inotify.CLOSE_READ:
            use.read.append(self._at(now))
        if mask & inotify.FOUND:  # a small file may be complete before its new folder is watched
            self._found.add(path)
        elif mask & inotify.CLOSE_WRITE and path in self._found:
            self._found.remove(path)
            # The file was not complete when it was found.
            if not opened and (path in self._opened or now - use.closed[-1] < HEARD_TWICE_S):
                use.written.pop()
                use.closed.pop()
                opened.append((now, use.steps.pop()))
        if mask & (WRITTEN | inotify.MOVED_TO):
            before = left.steps[-1] if left.steps and mask & inotify.MOVED_TO else self._live.step() or 0
            own, step = opened.popleft() if opened else (now, before)
            oldest = (own if own < now else now - OLDEST_S) - CLOCK_S
            with suppress(OSError):  # the file may be deleted already
                status = os.stat(path)
                use.size = status.st_size
                own = status.st_mtime if mask & WRITTEN else status.st_ctime
            at = self._at(own if oldest <= own <= now else now)
            at = max([at, *use.written[-1:], *use.named[-1:]])
            (use.written if mask & WRITTEN else use.named).append(at)
            use.steps.append(step)
            use.closed += [self._at(now)] if mask & WRITTEN else []
            for each in self._uses.values():  # what was read before was not read later than this
                each.read = [min(at, read) for read in each.read]
            if not is_best(path):
                self.last_saved = at
        if mask & (inotify.MOVED_FROM | inotify.DELETE):
            changed = self._at(min(now, _changed_at(os.path.dirname(path), now)))
            use.gone.append(max([changed, *use.written[-1:], *use.named[-1:]]))

    def _look(self, path: str, use: FileUse) -> None:
        self._looks -= 1
        ranks = self._live.ranks()
        having = [rank for rank, pids in ranks.items() if any(f.path == path for f in processes.written_files(pids))]
        if len(having) > len(use.by):
            use.by = having

    def heard(self, event: FileEvent) -> None:
        """Starts to watch a file's folder that is on another disk, or in a node's own /tmp, before a rank changes the
        file."""
        if event.kind == WRITE and not event.appends:
            self._opened.setdefault(event.path, deque()).append((event.at, event.step))
        elif event.kind == LINK:
            self._opened.setdefault(event.to, deque()).append((event.at, event.step))
            self._linked.add(event.to)
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
        self._marks.cleanup()
        return self._uses


def _changed_at(folder: str, otherwise: float) -> float:
    with suppress(OSError):  # the folder is gone, too
        return os.stat(folder).st_mtime
    return otherwise
