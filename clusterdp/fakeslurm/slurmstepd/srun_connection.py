"""The connection of a slurmstepd to the srun that started its step: sends output to srun, gets signals and stdin from
srun.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from itertools import islice

from ..core import wire
from .event_loop import EventLoop
from .output_files import CHUNK

AT_ONCE = 64  # maximum number of pieces in one system call; systems accept a few hundred
FULL = 1 << 20  # if more bytes wait for srun, slurmstepd stops reading from the tasks


class SrunConnection:
    """The connection to srun. All methods do nothing for a batch script, which has no srun, or if srun has died."""

    def __init__(self, loop: EventLoop, connection: socket.socket | None):
        self._loop, self._connection = loop, connection
        self._frames = wire.Frames()
        self._out: deque[memoryview] = deque()  # pieces that wait for srun; not joined, because they may be gigabytes
        self._waiting = 0  # number of bytes in _out
        self.on_signal: Callable[[int], None]
        self.on_stdin: Callable[[bytes], None]
        self.on_gone: Callable[[], None]
        if connection:
            connection.setblocking(False)
            self._loop.watch(connection.fileno(), self._ready)

    @property
    def open(self) -> bool:
        return self._connection is not None

    @property
    def full(self) -> bool:
        return self._waiting > FULL

    @property
    def waits(self) -> bool:
        return self._waiting > 0

    def send(self, kind: str, payload: bytes = b"") -> None:
        if self._connection:
            for part in (wire.head(kind, payload), payload):
                if part:
                    self._out.append(memoryview(part))
                    self._waiting += len(part)

    def print(self, text: str) -> None:
        """Prints a line on srun's stderr."""
        self.send("e", (text + "\n").encode("utf-8", "surrogateescape"))

    def flush(self) -> None:
        if not self._connection:
            return
        if self._out:
            try:
                self._sent(self._connection.sendmsg(list(islice(self._out, AT_ONCE))))
            except BlockingIOError:
                pass
            except OSError:
                self._lost()
                return
        self._loop.watch(self._connection.fileno(), self._ready, write=bool(self._out))

    def _sent(self, count: int) -> None:
        self._waiting -= count
        while count:
            first = self._out.popleft()
            if len(first) > count:
                self._out.appendleft(first[count:])
            count -= min(len(first), count)

    def _ready(self) -> None:
        assert self._connection
        try:
            data = self._connection.recv(CHUNK)
        except BlockingIOError:  # no bytes to read: the descriptor was only writable
            self.flush()
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        for kind, payload in self._frames.feed(data):
            if kind == "i":
                self.on_stdin(payload)
            elif kind == "s":
                self.on_signal(int(payload))

    def _lost(self) -> None:
        if self._connection:
            self._loop.unwatch(self._connection.fileno())
            self._connection.close()
            self._connection = None
            self._out.clear()
            self._waiting = 0
            self.on_gone()
