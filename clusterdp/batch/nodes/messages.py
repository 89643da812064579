"""Messages between a rank and its node's agent, or between two agents, and Link, the connection that carries them.

A message is HEAD, and a body:

    HELLO    from a rank: its number; back from the agent, with its process id as the number of the exchange
    REDUCE   up the tree: 8-byte integers, of which each agent passes on the greatest of its node and its children;
             RESULT of the root comes down to all ranks
    GATHER   up the tree, and to rank 0: an ENTRY and bytes of each rank
    SHARE    from rank 0, whose agent is the root; RESULT comes down to all ranks
    LEFT     from a rank that ends in order, and to all: this rank takes part in no exchange any more
    FAILED   from a rank that fails, or from an agent that has lost a rank or an agent, and to all: a rank and a text.
             Each agent passes the first one on
    DONE     from an agent to its parent: all ranks of its node and of its children have left
    BEAT     from an agent to its neighbours, once in BEAT_S
    WATCH    from a rank: watch it for a hang. Three descriptors have come with HELLO
    NOTE     up the tree, to the root's watch: about a silent rank, whose number is that of the exchange
    HUNG     from the root's watch, to all agents: they kill their ranks

An exchange has a number: the ranks count them, and make the same ones in the same order. Any number can be under way.

Torch-free, for Python 3.6, as the agent.
"""

import array
import collections
import enum
import os
import selectors
import socket
import struct
import time
from typing import Any, Deque, Iterator, List, Optional, Tuple

HEAD = struct.Struct("<IBQ")  # bytes of the body, kind, number of the exchange
ENTRY = struct.Struct("<II")  # a rank, and the number of its bytes, which follow
RANK = struct.Struct("<I")
NONCE = 16  # bytes of a CHALLENGE
SHORT = 256  # bytes that a connection without a name may send
LONG = 1 << 16  # bytes that are read at once; for more, malloc maps new memory for each message, at 18 us
BEAT_S = 1.0  # seconds between two beats, and between two looks at an agent
LATE_S = 0.5  # seconds after which a look is late: it starts the count of missed beats again
MISSED = 5  # beats in a row
GONE_MS = 10000  # milliseconds after which the kernel ends a connection whose other end does not acknowledge

Kind = enum.IntEnum(
    "Kind", "HELLO REDUCE GATHER SHARE RESULT LEFT FAILED DONE BEAT WATCH NOTE HUNG CHALLENGE JOIN WELCOME"
)
Name = Tuple[str, int]  # ("rank", rank) or ("agent", number)


def message(kind: int, number: int = 0, body: bytes = b"") -> bytes:
    return HEAD.pack(len(body), kind, number) + body


def split(data: bytearray) -> Iterator[Tuple[int, int, bytes]]:
    """Takes the complete messages from the begin of `data`. Yields kind, number and body of each. The caller goes on to
    the end."""
    at = 0
    while len(data) - at >= HEAD.size:
        size, kind, number = HEAD.unpack_from(data, at)
        end = at + HEAD.size + size
        if end > len(data):
            break
        yield kind, number, bytes(data[at + HEAD.size : end])
        at = end
    del data[:at]


def is_of_this_user(connection: socket.socket) -> bool:
    """Returns whether the other end of a unix socket is a process of this user. (Without SO_PEERCRED, the socket lies
    in a private folder.)"""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    return bool(peer(connection)[1] == os.getuid())


def peer(connection: socket.socket) -> Tuple[int, ...]:
    """Returns pid, uid and gid of the process at the other end of a unix socket on Linux."""
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))


class Link:
    """A connection to a rank, or to another agent."""

    def __init__(self, waiting: selectors.BaseSelector, connection: socket.socket, name: Optional[Name] = None) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: for an agent that is too late to judge its neighbours
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)
        self.connection = connection
        self.name = name
        self.files: List[int] = []  # descriptors that a rank has sent with its name
        self.about = ""  # node of an agent
        self.rank = 0  # the rank, or one of the agent's
        self.has_left = False
        self.missed = 0  # looks since the other end has sent something
        self.nonce = os.urandom(NONCE)
        self.since = time.monotonic()
        self._waiting = waiting
        self._read = bytearray()
        self._unsent: Deque[Any] = collections.deque()
        waiting.register(connection, selectors.EVENT_READ, self)

    def send(self, data: bytes) -> None:
        if not self._unsent:
            data = self._rest(data)
            if not data:
                return
            self._waiting.modify(self.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        self._unsent.append(data)

    def send_more(self) -> None:
        while self._unsent:
            self._unsent[0] = self._rest(self._unsent[0])
            if self._unsent[0]:
                return
            self._unsent.popleft()
        self._waiting.modify(self.connection, selectors.EVENT_READ, self)

    def _rest(self, data: Any) -> Any:
        """Sends what the connection takes. Returns the rest; nothing if the other end is gone, which read() finds."""
        try:
            return memoryview(data)[self.connection.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            return b""

    def read(self) -> Iterator[Tuple[int, int, bytes]]:
        """Yields the messages that have come. Raises OSError at the end, or if a connection without a name sends more
        than a name."""
        try:
            size = SHORT if self.name is None else LONG
            data, sent, _, _ = self.connection.recvmsg(size, socket.CMSG_SPACE(3 * 4))
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        for _, _, packed in sent:
            self.files.extend(array.array("i", packed))
        self.missed = 0
        self._read += data
        for found in split(self._read):
            yield found
        if self.name is None and len(self._read) >= SHORT:
            raise ConnectionAbortedError

    def close(self) -> None:
        self._waiting.unregister(self.connection)
        self.connection.close()
        for file in self.files:
            os.close(file)

    def finish(self, deadline: float) -> None:
        """Sends the rest, and waits until the other end has read it: a connection that is closed with unread bytes may
        lose sent ones."""
        self._waiting.unregister(self.connection)
        try:
            self.connection.settimeout(max(deadline - time.monotonic(), 0.01))
            for data in self._unsent:
                self.connection.sendall(data)
            self.connection.shutdown(socket.SHUT_WR)
            while self.connection.recv(LONG) and time.monotonic() < deadline:
                pass
        except OSError:
            pass
        self.connection.close()
