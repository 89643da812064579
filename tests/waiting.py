"""wait_for: the one place where tests wait for what they get no event of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SLACK = 2.0  # limits are for a machine that does nothing else, and a test that waits in vain is rare
SHARE = 3  # times as long as a look takes is waited after it: a look may start processes, whose time others lack


def wait_for(
    what: str,
    look: Callable[[], T],
    timeout_s: float,
    *,
    every_s: float = 0.1,
    report: Callable[[], str] = str,
) -> T:
    """What `look` returns as soon as that is true; AssertionError after `timeout_s`, with `report`'s account."""
    deadline = time.monotonic() + SLACK * timeout_s
    while True:
        began = time.monotonic()
        if seen := look():
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {SLACK * timeout_s:g} s in vain for {what}\n{report()}".rstrip())
        time.sleep(max(every_s, min(1.0, SHARE * (time.monotonic() - began))))
