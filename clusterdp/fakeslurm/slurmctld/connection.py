"""The daemon's end of a connection to a command or to a slurmstepd."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque

from ..core import wire
from ..core.orders import Order, encode


class ConnectionLost(Exception):
    """The other side closed the connection."""


class Connection:
    """A connection to a command, with its words and environment, or to a slurmstepd."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop):
        self.socket, self._loop = sock, loop
        self._frames, self._queue = wire.Frames(), deque[tuple[str, bytes]]()
        self._out = bytearray()
        self._kind, self._text = "o", list[str]()  # successive texts of one kind go into one frame, however long
        self._handed_over = False
        self.command = ""
        self.words: list[str] = []
        self.environ: dict[str, str] = {}
        self.cwd, self.umask, self.pid, self.token = "/", 0o022, 0, ""
        self.terminal = False  # whether the command's stdin is a terminal
        self.dropped: re.Pattern[str] | None = None  # texts that the command does not print

    async def _frame(self) -> tuple[str, bytes]:
        while not self._queue:
            data = await self._loop.sock_recv(self.socket, 1 << 16)
            if not data:
                raise ConnectionLost
            self._queue += self._frames.feed(data)
        return self._queue.popleft()

    async def open(self) -> bytes | None:
        """Reads a command's request and returns None. For a slurmstepd, returns its first report."""
        while True:
            kind, payload = await self._frame()
            if kind == "J":
                return payload
            if kind == "C":
                self.command, *self.words = wire.split(payload)
            elif kind == "D":
                about = dict(word.split("=", 1) for word in wire.split(payload))
                self.cwd, self.umask, self.pid = about["cwd"], int(about["umask"]), int(about["pid"])
                self.token, self.terminal = about.get("token", ""), about.get("terminal") == "1"
            elif kind == "E":
                self.environ = dict(word.split("=", 1) for word in wire.split(payload) if "=" in word)
            elif kind == "G":
                return None

    async def report(self) -> bytes:
        """Returns the next report of a slurmstepd."""
        while True:
            kind, payload = await self._frame()
            if kind == "J":
                return payload

    def send_order(self, order: Order) -> None:
        try:
            self.socket.send(wire.frame("J", encode(order)))
        except OSError:
            pass

    def print(self, text: str) -> None:
        """Writes a text and a newline to the command's stdout."""
        self.write(text + "\n")

    def write(self, text: str) -> None:
        self._add_text("o", text)

    def error(self, text: str) -> None:
        """Writes a text and a newline to the command's stderr."""
        self._add_text("e", text + "\n")

    def _add_text(self, kind: str, text: str) -> None:
        if self.dropped and self.dropped.match(text):
            return
        if kind != self._kind:
            self._frame_text()
            self._kind = kind
        self._text.append(text)

    def _frame_text(self) -> None:
        text, self._text = "".join(self._text), []
        if text:
            self._out += wire.frame(self._kind, text.encode("utf-8", "surrogateescape"))

    def discard_output(self) -> None:
        """Deletes the command's output that has not been sent yet."""
        self._out.clear()
        self._text.clear()

    async def flush(self) -> None:
        self._frame_text()
        data, self._out = bytes(self._out), bytearray()
        if data:
            await self._loop.sock_sendall(self.socket, data)

    async def read_file(self, path: str) -> bytes | int:
        """Returns the bytes of a file that the command reads, or an errno. With path "", the command reads stdin."""
        self.request("r", path)
        await self.flush()
        while True:
            kind, payload = await self._frame()
            if kind == "F":
                return payload
            if kind == "Y":
                return int(payload)

    async def exit(self, code: int) -> None:
        if self._handed_over:
            return
        self.request("x", str(code))
        await self.flush()

    async def hung_up(self) -> None:
        """Waits until the command has ended, for example because the command was killed."""
        try:
            while True:
                await self._frame()
        except (ConnectionLost, OSError):
            return

    async def program_ended(self) -> int:
        """Waits for the end of salloc's program and returns its wait status."""
        while True:
            kind, payload = await self._frame()
            if kind == "w":
                return int(payload)

    def request(self, kind: str, text: str) -> None:
        """Sends a frame to the command, which may ask for a file, stdin or a wait status. wire.py lists the kinds."""
        self._frame_text()
        self._out += wire.frame(kind, text.encode("utf-8", "surrogateescape"))

    async def signal(self) -> int:
        """Returns the next signal that the command received."""
        while True:
            kind, payload = await self._frame()
            if kind == "s":
                return int(payload)

    def hand_over(self) -> socket.socket:
        """Returns this connection's socket, which a slurmstepd gets. This object no longer writes to the socket."""
        self._handed_over = True
        return self.socket

    def close(self) -> None:
        self.socket.close()
