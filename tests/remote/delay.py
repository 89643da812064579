"""DelayingProxy: a TCP connection to a port of this machine with the delay of a long way. (Kernels without netem.)"""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress


class DelayingProxy:
    """Passes on what comes to `port`, each way after `delay_s`. Counts the turns from this side to the other."""

    def __init__(self, target: int, delay_s: float):
        self.target, self.delay_s = target, delay_s
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.turns = 0
        self._last = ""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self.server.accept()
                there = socket.create_connection(("127.0.0.1", self.target))
                for each in (here, there):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pump(here, there, "there")
                self._pump(there, here, "here")

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        pieces: queue.Queue[tuple[float, bytes]] = queue.Queue()

        def read() -> None:
            data = b"-"
            while data:
                data = b""
                with suppress(OSError):
                    data = source.recv(1 << 16)
                if data and way != self._last:
                    self._last = way
                    self.turns += way == "there"
                pieces.put((time.monotonic() + self.delay_s, data))

        def write() -> None:
            while True:
                due, data = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))
                with suppress(OSError):
                    if not data:
                        sink.shutdown(socket.SHUT_WR)
                        return
                    sink.sendall(data)

        for target in (read, write):
            threading.Thread(target=target, daemon=True).start()

    def close(self) -> None:
        self.server.close()
