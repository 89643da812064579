"""PeerWatch: when one rank fails, the others end too, at once, and say which one it was.

Gloo notices the closed connections of a dead rank at its next collective. NCCL does not on every transport: the others
would wait in a kernel until its timeout. A rank that loads data for minutes notices nothing. So a rank that fails
leaves a note in the store before it exits, and a thread on each rank looks for one every second. It uses no collective.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from clusterdp.train.output.say import say
from clusterdp.train.ranks.store_notes import StoreNotes

FAILED = "failed"
LEAVING = "leaving"  # /<rank>
EVERY_S = 1.0  # between two looks at the store
LAST_WAIT_S = 3.0  # of rank 0 for the others: two looks at the store, and some


class PeerWatch:
    def __init__(self, notes: StoreNotes, rank: int, world_size: int):
        self.notes = notes
        self.rank = rank
        self.world_size = world_size
        self.alone = world_size == 1
        self.step: Callable[[], int | None] = lambda: None  # of this rank, once there is a job
        self._ended = threading.Event()
        self._leaving = False
        self._thread = threading.Thread(target=self._watch, name="clusterdp-peers", daemon=True)

    def start(self) -> PeerWatch:
        if not self.alone:
            self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the thread, before the store is closed: a daemon thread inside torch at interpreter exit crashes."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def tell(self, what: str) -> None:
        """Records for the others that this rank has failed. The first rank to do so is the cause."""
        if self.alone:
            return
        with suppress(RuntimeError):  # rank 0, which holds the store, may be gone already
            self.notes.leave(FAILED, self.rank, what)

    def first_failure(self) -> str | None:
        """Another rank's note, if there is one."""
        if self.alone:
            return None
        try:
            note = self.notes.find(FAILED)
        except RuntimeError:
            return "rank 0 is gone"
        return f"rank {note[0]}: {note[1]}" if note and note[0] != self.rank else None

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            first_failure = self.first_failure()
            if first_failure is None:
                continue
            if self._ended.wait(EVERY_S):  # the main thread may be reporting it itself
                return
            say(f"clusterdp: ending rank {self.rank}, because another failed: {first_failure}", error=True)
            self.leave(1)  # the main thread may be blocked in C for ever

    def leave(self, code: int) -> NoReturn:
        """Ends this process by leave_now(). Rank 0 holds the store with the note, and exits last: a rank that finds
        no store can only report that rank 0 is gone. It waits for 3 s at most, since a rank may have died silently."""
        with suppress(RuntimeError):
            if not self.alone and not self._leaving:  # once: this thread and the main one may both come here
                self._leaving = True
                self.notes.leave(f"{LEAVING}/{self.rank}", self.rank)
            deadline = time.monotonic() + LAST_WAIT_S
            staying = set(range(1, self.world_size)) if self.rank == 0 and self.notes.key else set()
            while staying and time.monotonic() < deadline:
                staying -= {rank for rank in staying if self.notes.find(f"{LEAVING}/{rank}")}
                time.sleep(0.02)
        leave_now(code)


def leave_now(code: int) -> NoReturn:
    """Ends this process without teardown, which can wait for ranks that are gone; its DataLoader workers go first.

    The kernel closes the sockets, and by that the other ranks' gloo sees it.
    """
    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
