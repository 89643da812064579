"""PeerWatch: when one rank fails, ends the other ranks at once and prints which rank failed.

Gloo notices the closed connections of a dead rank at the next collective. NCCL does not notice closed connections on
every transport: the other ranks would wait in a kernel until NCCL's timeout. A rank that loads data for minutes notices
nothing. The nodes' agents notice the end of each rank, and pass on what a failing rank says (see Control).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from clusterdp.train.output.say import say
from clusterdp.train.ranks.control import NEWS_S, Control

GRACE_S = 1.0  # seconds in which the main thread may report a failure itself


class PeerWatch:
    def __init__(self, control: Control | None, rank: int, attempt: str):
        self.control, self.rank, self.attempt = control, rank, attempt
        self.step: Callable[[], int | None] = lambda: None  # returns this rank's step; None before there is a job
        self._ended = threading.Event()

    def start(self) -> PeerWatch:
        if self.control is not None:
            self.control.on_failure = self._end
            if self.control.failure is not None:  # it came before
                threading.Thread(target=self._end, daemon=True).start()
        return self

    def stop(self) -> None:
        """Ends the watch, because all ranks end in order."""
        self._ended.set()

    def tell(self, what: str) -> None:
        """Tells the other ranks that this one has failed. The first rank to fail counts as the cause."""
        if self.control is not None:
            self.control.fail(what)

    def first_failure(self, *, is_certain: bool = False) -> str | None:
        """Returns the first failure; None if there is none. is_certain: there is one, and is waited for."""
        return self.control.await_failure(NEWS_S if is_certain else 0.0) if self.control is not None else None

    def _end(self) -> None:
        if not self._ended.wait(GRACE_S):
            assert self.control is not None
            say(f"clusterdp: ending rank {self.rank}, because another failed: {self.control.failure}", error=True)
            leave_now(1)  # the main thread may be blocked in C for ever


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
