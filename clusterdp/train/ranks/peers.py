"""PeerWatch: when one rank fails, ends the other ranks at once and prints which rank failed.

Gloo notices the closed connections of a dead rank at the next collective. NCCL does not notice closed connections on
every transport: the other ranks would wait in a kernel until NCCL's timeout. A rank that loads data for minutes notices
nothing. Therefore a failing rank writes a note to the store before it exits, and a thread on each rank checks the store
every second. The thread uses no collective.
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
LEAVING = "leaving"  # the name of a rank's note is leaving/<rank>
EVERY_S = 1.0  # seconds between two checks of the store
LAST_WAIT_S = 3.0  # seconds that rank 0 waits for the other ranks: two checks of the store, and a margin


class PeerWatch:
    def __init__(self, notes: StoreNotes, rank: int, world_size: int):
        self.notes, self.rank, self.world_size = notes, rank, world_size
        self.alone = world_size == 1
        self.step: Callable[[], int | None] = lambda: None  # returns this rank's step; None before there is a job
        self._ended = threading.Event()
        self._leaving = False
        self._thread = threading.Thread(target=self._watch, name="clusterdp-peers", daemon=True)

    def start(self) -> PeerWatch:
        if not self.alone:
            self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the thread. stop() is called before the store closes, because a daemon thread that runs torch's code
        crashes at interpreter exit."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def tell(self, what: str) -> None:
        """Records in the store that this rank has failed. The first rank to record a failure counts as the cause."""
        if self.alone:
            return
        with suppress(RuntimeError):  # rank 0, which holds the store, may be gone already
            self.notes.leave(FAILED, self.rank, what)

    def first_failure(self) -> str | None:
        """Returns another rank's failure note; None if there is none."""
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
            if self._ended.wait(EVERY_S):  # the main thread may be reporting the failure itself
                return
            say(f"clusterdp: ending rank {self.rank}, because another failed: {first_failure}", error=True)
            self.leave(1)  # the main thread may be blocked in C for ever

    def leave(self, code: int) -> NoReturn:
        """Ends this process by leave_now(). Rank 0 serves the store with the note, and exits last: a rank that cannot
        reach the store can only report that rank 0 is gone. Rank 0 waits at most 3 s, because a rank may have died
        silently."""
        with suppress(RuntimeError):
            if not self.alone and not self._leaving:  # once: the main thread may call leave(), too
                self._leaving = True
                self.notes.leave(f"{LEAVING}/{self.rank}", self.rank)
            deadline = time.monotonic() + LAST_WAIT_S
            for rank in range(1, self.world_size) if self.rank == 0 and self.notes.key else ():
                while time.monotonic() < deadline and not self.notes.find(f"{LEAVING}/{rank}"):
                    time.sleep(0.02)
        leave_now(code)


def leave_now(code: int) -> NoReturn:
    """Kills the DataLoader workers and ends this process without teardown, which could wait for ranks that are gone.
    The kernel then closes the process's sockets, and gloo on the other ranks notices the closed connections.
    """
    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
