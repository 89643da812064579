"""RetryPolicy: how long a store may be silent or unreachable before an error is raised."""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

T = TypeVar("T")
_log = logging.getLogger("clusterdp.storage")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0


class StorageFault(NamedTuple):
    """A client library's exception as an OSError. `transient`: the same request may succeed later."""

    error: OSError
    transient: bool


@dataclass(frozen=True)
class RetryPolicy:
    """timeout_s: time for one answer of the server; each MiB of the request or the answer adds a second.

    retry_s: the time in which requests are repeated while a server is unreachable, overloaded or loses connections.
    """

    timeout_s: float = 60.0
    retry_s: float = 120.0

    def call(self, ask: Callable[[], T], judge: Callable[[Exception], StorageFault]) -> T:
        """Returns the result of `ask`, which is repeated after a transient error. `ask` must be safe to repeat, because
        an answer may be lost although the server did the work. Raises OSError after `retry_s`."""
        end = time.monotonic() + self.retry_s
        pause, said = _FIRST_PAUSE_S, False
        while True:
            try:
                return ask()
            except Exception as error:
                fault = judge(error)
                if not fault.transient:
                    raise fault.error from error
                left = end - time.monotonic()
                if left <= 0:
                    raise self._given_up(fault.error) from error
                if not said:
                    said = True
                    _log.warning("%s. Asking again for up to %g s.", fault.error, self.retry_s)
            # The pause is random: many ranks wait for the same server, and must not all ask again at once.
            time.sleep(min(left, pause * random.uniform(0.5, 1.0)))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _given_up(self, error: OSError) -> OSError:
        number = error.errno or errno.EIO
        why = f"{error.strerror}, for {self.retry_s:g} s. See whether the server is up, and reachable from this node"
        return OSError(number, why, error.filename)
