"""The agent: a process on each node of an attempt with several ranks. The ranks of the node speak to it over a unix
socket, and the agents form a tree over TCP, in which an agent has up to WIDTH children.

A rank starts it, and writes an Order to its stdin. The sockets that the agent listens to are open already.

An agent that connects to its parent proves that it has the attempt's key, and the parent proves it, too (HMAC-SHA256
over two nonces): CHALLENGE from the parent, JOIN, WELCOME. A stranger is dropped. The agent waits for no connection: a
slow one has a buffer.

The agent ends with the ranks of its node. If it ends before, its ranks see the end of their connections, and end, and
so do its neighbours in the tree. Neighbours also beat, and miss the beats of an agent that is stopped or cut off.

Torch-free, for Python 3.6, as the keeper.
"""

import array
import hmac
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .messages import BEAT_S, HEAD, LATE_S, MISSED, NONCE, RANK, Kind, Link, Name, is_of_this_user, message, peer

WIDTH = 8  # children of an agent
SOCKET = "agent"  # name of the unix socket, if it lies in a folder
DIGEST = 32  # bytes of a proof
STRANGERS = 64  # connections without a name, of which the oldest is dropped for a new one
STRANGER_S = 10.0  # seconds after which such a connection is dropped
CALM_S = 10.0  # seconds without a late look, after which an agent judges its neighbours again
END_S = 2.0  # limit of the seconds in which the neighbours must read what this agent has sent them
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Order(NamedTuple):
    """What an agent is told at its start."""

    number: int  # of this agent; 0 is the root, on the node of rank 0
    agents: int
    ranks: int  # on this node
    rank: int  # one of them
    node: str
    parent: Optional[Tuple[str, int, str, int]]  # host, port, node, one of its ranks; None for the root
    key: str
    limit_s: float  # seconds in which the parent must answer
    ranks_fd: int
    agents_fd: int  # -1 if the agent has no children
    folder: str  # of the unix socket, which is removed when all ranks have connected; "" if it is in no folder


class Agent:
    def __init__(self, order: Order, listening: List[socket.socket], watch: Any) -> None:
        """listening: the sockets to which ranks, and agents, connect. watch: the NodeWatch of train/hang."""
        self.order = order
        self.waiting = selectors.DefaultSelector()
        self.listening = listening
        for each in listening:
            each.setblocking(False)
            self.waiting.register(each, selectors.EVENT_READ)
        self.strangers: List[Link] = []
        self.links: Dict[Name, Link] = {}
        self.parent: Optional[Link] = None
        self.watch, self.inner = watch, Link(self.waiting, watch.line, ("watch", 0))
        first = order.number * WIDTH + 1
        self.children = range(first, min(first + WIDTH, order.agents))
        self.failure = b""  # the body of the first FAILED
        self._ranks = 0  # that have connected
        self._has_passed_left = False
        # Number of an exchange -> its kind, how many have taken part, and what came from them.
        self._exchanges: Dict[int, Tuple[int, int, Any]] = {}
        self._ends: Dict[int, Link] = {}  # the descriptor that shows the end of a rank's process -> its link
        self._beat_at = self._judges_at = time.monotonic()

    def join(self) -> None:
        """Connects to the parent. If that fails, the ranks fail."""
        if self.order.parent is None:
            return
        try:
            self.parent = Link(self.waiting, _joined(self.order))
            self.parent.name = ("agent", (self.order.number - 1) // WIDTH)
            _, _, self.parent.about, self.parent.rank = self.order.parent
        except OSError as error:
            host, port, node, _ = self.order.parent
            said = "its node's agent cannot reach the one of {} at {}:{}: {}"
            self._fail(self.order.rank, said.format(node, host, port, error.strerror or error))

    def run(self) -> None:
        """Serves until the ranks of this node have ended, and with them, in order, those of the children."""
        deadline = time.monotonic() + self.order.limit_s
        while not self._is_over(deadline):
            beats = self.strangers or not self._ranks or self._neighbours()
            for key, events in self.waiting.select(max(0.0, self._beat_at - time.monotonic()) if beats else None):
                if key.fileobj in self.listening:
                    self._accept(key.fileobj)
                elif key.data is not None and key.data.connection.fileno() >= 0:  # not closed in this turn
                    self._serve(key.data, events, ends=key.fd in self._ends)
            self._beat()

    def _is_over(self, deadline: float) -> bool:
        if not self._ranks:
            return time.monotonic() > deadline  # the rank that has started this process is gone
        if any(kind == "rank" for kind, _ in self.links):
            return False
        return bool(self.failure) or (not self.links and self._ranks == self.order.ranks)

    def end(self) -> None:
        """Ends the connections. The parent knows then that all below have left."""
        deadline = time.monotonic() + END_S
        if self.parent is not None:
            self.parent.send(message(Kind.DONE))
        for link in [*self.links.values(), *([self.parent] if self.parent is not None else [])]:
            link.finish(deadline)

    # -- connections --

    def _accept(self, listening: Any) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:  # the other end is gone, or this process has too many open files
            return
        if connection.family == socket.AF_UNIX and not is_of_this_user(connection):
            connection.close()
            return
        link = Link(self.waiting, connection)
        if connection.family != socket.AF_UNIX:
            link.send(message(Kind.CHALLENGE, 0, link.nonce))
        self.strangers.append(link)
        if len(self.strangers) > STRANGERS:
            self.strangers.pop(0).close()

    def _neighbours(self) -> List[Link]:
        children = [link for (kind, _), link in self.links.items() if kind == "agent"]
        return [*children, self.parent] if self.parent is not None else children

    def _beat(self) -> None:
        """Beats to the neighbours in the tree, once in BEAT_S, and loses one that has said nothing for MISSED beats,
        unless this process was late lately: a busy machine, or a suspended job, makes both late, and not at once."""
        now = time.monotonic()
        if now < self._beat_at:
            return
        is_late, self._beat_at = now > self._beat_at + LATE_S, now + BEAT_S
        if is_late:
            self._judges_at = now + CALM_S
        for link in self._neighbours():
            link.missed = 0 if is_late else link.missed + 1
            link.send(message(Kind.BEAT))
            if link.missed > MISSED and now >= self._judges_at:
                self._lose(link, "is stopped")
        while self.strangers and self.strangers[0].since < now - STRANGER_S:
            self.strangers.pop(0).close()

    def _serve(self, link: Link, events: int, ends: bool) -> None:
        """ends: the rank's process has ended, also if a child of it has the connection, too."""
        try:
            if events & selectors.EVENT_WRITE:
                link.send_more()
            for kind, number, body in link.read():
                self._take(link, kind, number, body)
                if link.has_left or link.connection.fileno() < 0:
                    return
            if ends:
                raise ConnectionResetError
        except (OSError, ValueError, KeyError, struct.error):  # the last three: it does not speak as a rank or an agent
            self._lose(link)

    def _take(self, link: Link, kind: int, number: int, body: bytes) -> None:
        if link.name is None:
            self._meet(link, kind, body)
        elif kind in (Kind.REDUCE, Kind.GATHER):
            self._collect(kind, number, body)
        elif (kind == Kind.RESULT and link is self.parent) or (kind == Kind.SHARE and link is self.links["rank", 0]):
            self._pass_down(message(Kind.RESULT, number, body))
        elif kind == Kind.FAILED:
            self._pass_failure(body, link)
        elif kind == Kind.LEFT:
            self._pass_left(body, link)
            if link.name[0] == "rank":
                self._part(link)
        elif kind == Kind.DONE:
            self._part(link)
        elif kind == Kind.WATCH:
            self.watch.begin(body, link.files)
            link.files = []
        elif kind == Kind.NOTE:
            (self.parent or self.inner).send(message(kind, number, body))
        elif kind == Kind.HUNG and link in (self.parent, self.inner):
            for each in {self.inner, *self._neighbours()}.difference([self.parent]):
                each.send(message(kind, number, body))
        elif kind != Kind.BEAT:
            raise ValueError

    def _meet(self, link: Link, kind: int, body: bytes) -> None:
        if link.connection.family == socket.AF_UNIX and kind == Kind.HELLO:
            (link.rank,) = RANK.unpack(body)
            name = ("rank", link.rank)
        else:
            name = ("agent", self._verified(link, kind, body))
        if name in self.links:
            raise ValueError
        link.name, self.links[name] = name, link
        self.strangers.remove(link)
        if name[0] == "rank":
            self._ranks += 1
            link.send(message(Kind.HELLO, os.getpid()))
            self._watch_process(link)
            if self._ranks == self.order.ranks:
                self._stop_listening(self.listening[0])
                if self.order.folder:
                    os.unlink(os.path.join(self.order.folder, SOCKET))
                    os.rmdir(self.order.folder)
        elif all(("agent", child) in self.links for child in self.children):
            self._stop_listening(self.listening[1])
        if self.failure:
            link.send(message(Kind.FAILED, 0, self.failure))

    def _verified(self, link: Link, kind: int, body: bytes) -> int:
        """Returns the number of an agent that has the key. Raises ValueError if it has not, or is not awaited."""
        digest, nonce, rank = body[:DIGEST], body[DIGEST : DIGEST + NONCE], body[DIGEST + NONCE :]
        number, link.rank = struct.unpack_from("<II", rank)
        is_awaited = number in self.children and ("agent", number) not in self.links
        right = _proof(self.order.key, b"join", link.nonce, nonce, rank)
        if kind != Kind.JOIN or not is_awaited or not hmac.compare_digest(digest, right):
            raise ValueError
        link.about = rank[8:].decode("utf-8", "replace")
        own = _name(self.order.rank, self.order.node)
        link.send(message(Kind.WELCOME, 0, _proof(self.order.key, b"welcome", nonce, link.nonce, own)))
        return int(number)

    def _watch_process(self, link: Link) -> None:
        """Watches the process of a rank: the workers that it has forked keep its connection open for seconds."""
        if not hasattr(os, "pidfd_open") or not hasattr(socket, "SO_PEERCRED"):
            return
        try:
            descriptor = os.pidfd_open(peer(link.connection)[0])
        except OSError:  # this process may not see the rank's
            return
        self._ends[descriptor] = link
        self.waiting.register(descriptor, selectors.EVENT_READ, link)

    def _stop_listening(self, listening: socket.socket) -> None:
        self.waiting.unregister(listening)
        listening.close()

    def _part(self, link: Link) -> None:
        """Ends the connection to a rank or a child that takes part in nothing any more."""
        link.has_left = True
        self._close(link)

    def _lose(self, link: Link, how: str = "has ended") -> None:
        self._close(link)
        if link.name is None:
            return
        if link is self.parent:
            self.parent = None
        said = "its process has ended" if link.name[0] == "rank" else "the agent of {} {}, or cannot be reached"
        self._fail(link.rank, said.format(link.about, how))

    def _close(self, link: Link) -> None:
        link.close()
        if link.name is None:
            self.strangers.remove(link)
        elif link is not self.parent:
            del self.links[link.name]
        if link.name is not None and link.name[0] == "rank":
            self.watch.end(link.rank, in_order=link.has_left)
        for descriptor in [each for each, of in self._ends.items() if of is link]:
            self.waiting.unregister(descriptor)
            os.close(descriptor)
            del self._ends[descriptor]

    # -- exchanges --

    def _collect(self, kind: int, number: int, body: bytes) -> None:
        """Takes the part of a rank or a child. Passes on the parts of all, when they are there."""
        before, count, parts = self._exchanges.pop(number, (kind, 0, None))
        if before != kind or (kind == Kind.REDUCE and parts is not None and len(parts) * 8 != len(body)):
            self._fail(self.order.rank, "the ranks make different exchanges at the same time")
            return
        if kind == Kind.GATHER:
            parts = [*(parts or ()), body]
        else:
            values = array.array("q", body)
            parts = values if parts is None else array.array("q", map(max, parts, values))
        if count + 1 < self.order.ranks + len(self.children):
            self._exchanges[number] = kind, count + 1, parts
            return
        whole = b"".join(parts) if kind == Kind.GATHER else parts.tobytes()
        if self.parent is not None:
            self.parent.send(message(kind, number, whole))
        elif kind == Kind.REDUCE:
            self._pass_down(message(Kind.RESULT, number, whole))
        elif ("rank", 0) in self.links:
            self.links["rank", 0].send(message(Kind.GATHER, number, whole))

    def _pass_down(self, data: bytes) -> None:
        for link in self.links.values():
            link.send(data)

    def _pass_left(self, body: bytes, source: Link) -> None:
        if not self._has_passed_left:
            self._has_passed_left = True
            self._pass_to_all(message(Kind.LEFT, 0, body), source)

    def _fail(self, rank: int, said: str) -> None:
        self._pass_failure(RANK.pack(rank) + said.encode("utf-8"), None)

    def _pass_failure(self, body: bytes, source: Optional[Link]) -> None:
        if not self.failure:
            self.failure = body
            self._pass_to_all(message(Kind.FAILED, 0, body), source)

    def _pass_to_all(self, data: bytes, source: Optional[Link]) -> None:
        for link in [*self.links.values(), *([self.parent] if self.parent is not None else [])]:
            if link is not source:
                link.send(data)


def _proof(key: str, word: bytes, *parts: bytes) -> bytes:
    return hmac.new(bytes.fromhex(key), word + b"".join(parts), "sha256").digest()


def _name(rank: int, node: str) -> bytes:
    return RANK.pack(rank) + node.encode("utf-8")[:64]


def _joined(order: Order) -> socket.socket:
    """Returns a connection to the parent, which has proved that it has the key. Raises OSError."""
    assert order.parent is not None
    host, port, above, rank = order.parent
    deadline = time.monotonic() + order.limit_s
    connection = socket.create_connection((host, port), order.limit_s)
    try:
        nonce, name = os.urandom(NONCE), RANK.pack(order.number) + _name(order.rank, order.node)
        theirs = _answer(connection, Kind.CHALLENGE, NONCE, deadline)
        digest = _proof(order.key, b"join", theirs, nonce, name)
        connection.sendall(message(Kind.JOIN, 0, digest + nonce + name))
        right = _proof(order.key, b"welcome", nonce, theirs, _name(rank, above))
        if not hmac.compare_digest(_answer(connection, Kind.WELCOME, DIGEST, deadline), right):
            raise ConnectionRefusedError("it has another key")
        return connection
    except BaseException:
        connection.close()
        raise


def _answer(connection: socket.socket, kind: int, size: int, deadline: float) -> bytes:
    """Returns the body of the parent's next message. Raises OSError if it is another one, or does not come in time."""
    data = b""
    while len(data) < HEAD.size + size:
        connection.settimeout(max(deadline - time.monotonic(), 0.01))
        more = connection.recv(HEAD.size + size - len(data))
        if not more:
            raise ConnectionRefusedError("it has closed the connection")
        data += more
    if HEAD.unpack_from(data)[:2] != (size, kind):
        raise ConnectionRefusedError("it is not an agent")
    return data[HEAD.size :]


def main(watch: Any) -> int:
    order = Order(**json.loads(sys.stdin.read()))
    if os.fork():  # the rank that starts the agent has no child, for which its user, or its libraries, could wait
        return 0
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # a reader of the rank's output must not wait for the end of the agent
        os.dup2(null, stream)
    agent = Agent(order, [socket.socket(fileno=each) for each in (order.ranks_fd, order.agents_fd) if each >= 0], watch)
    try:
        agent.join()
        agent.run()
    except Exception as error:
        agent._fail(order.rank, "the agent of {} has failed: {!r}".format(order.node, error)[:400])
    agent.end()
    watch.close()
    return 0
