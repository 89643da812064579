"""The agent of a node: who may speak to it, and that nobody's silence, death or nonsense makes it wait."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import clusterdp
from clusterdp.batch.nodes.agent import CALM_S, STRANGERS, Agent, Order, _joined
from clusterdp.batch.nodes.messages import BEAT_S, HEAD, LATE_S, MISSED, RANK, Kind, Link, message
from clusterdp.train.ranks.node_agent import START, _connected, _listen

KEY = bytes(range(32)).hex()
PATIENCE_S = 60.0


class End:
    """One end of a connection to an agent."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(PATIENCE_S)
        self.connection, self.data = connection, b""

    def send(self, kind: int, number: int = 0, body: bytes = b"") -> None:
        self.connection.sendall(message(kind, number, body))

    def receive(self) -> tuple[int, int, bytes] | None:
        """The next message that is neither a beat nor the agent's own name; None at the end."""
        while (found := self._next()) is not None and found[0] in (Kind.BEAT, Kind.HELLO):
            pass
        return found

    def _next(self) -> tuple[int, int, bytes] | None:
        while len(self.data) < HEAD.size or len(self.data) < HEAD.size + HEAD.unpack_from(self.data)[0]:
            try:
                more = self.connection.recv(65536)
            except ConnectionResetError:
                more = b""
            if not more:
                return None
            self.data += more
        size, kind, number = HEAD.unpack_from(self.data)
        body, self.data = self.data[HEAD.size : HEAD.size + size], self.data[HEAD.size + size :]
        return kind, number, body

    def is_quiet(self) -> bool:
        """Whether no message has come, except a beat or the agent's own name."""
        while self.data or select.select([self.connection], [], [], 0)[0]:
            if (found := self._next()) is None or found[0] not in (Kind.BEAT, Kind.HELLO):
                return False
        return True

    def reduce(self, number: int, *values: int) -> None:
        self.send(Kind.REDUCE, number, b"".join(value.to_bytes(8, "little", signed=True) for value in values))


class Root:
    """The root agent of a tree of three, with one rank."""

    def __init__(self, abstract: bool = sys.platform == "linux"):
        listening, self.address = _listen(abstract=abstract)
        below = socket.create_server(("127.0.0.1", 0))
        self.port = below.getsockname()[1]
        folder = os.path.dirname(self.address) if self.address.startswith("/") else ""
        fds = {"ranks_fd": listening.fileno(), "agents_fd": below.fileno()}
        self.order = Order(0, 3, 1, 0, "n0", None, KEY, PATIENCE_S, folder=folder, **fds)
        words = [sys.executable, "-I", "-S", "-c", START, str(Path(clusterdp.__file__).resolve().parents[1])]
        order = json.dumps(self.order._asdict()).encode()
        mark = {"CLUSTERDP_TEST": self.address}
        subprocess.run(words, input=order, pass_fds=fds.values(), env={**os.environ, **mark}, check=True)
        listening.close()
        below.close()
        self.ends: list[End] = []
        self.rank = self.connected(0)

    def close(self) -> None:
        for end in self.ends:
            end.connection.close()

    @property
    def pid(self) -> int:
        mark = f"CLUSTERDP_TEST={self.address}".encode()
        (found,) = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if mark in variables_of(pid)]
        return int(found)

    def end(self, connection: socket.socket) -> End:
        self.ends.append(End(connection))
        return self.ends[-1]

    def connected(self, rank: int) -> End:
        end = self.end(_connected(self.address))
        end.send(Kind.HELLO, 0, RANK.pack(rank))
        return end

    def child(self, number: int, key: str = KEY) -> End:
        order = Order(
            number, 3, 1, number, f"n{number}", ("127.0.0.1", self.port, "n0", 0), key, PATIENCE_S, -1, -1, ""
        )
        return self.end(_joined(order))

    def stranger(self) -> End:
        return self.end(socket.create_connection(("127.0.0.1", self.port)))

    def exchanges(self, first: End, second: End, number: int = 1) -> None:
        for value, end in enumerate((self.rank, first, second)):
            end.reduce(number, value, -value)
        for end in (self.rank, first, second):
            assert end.receive() == (Kind.RESULT, number, b"\2" + bytes(15))


@pytest.fixture
def root() -> Iterator[Root]:
    root = Root()
    yield root
    root.close()


def variables_of(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it is gone, or another user's
        return []


def test_agent_reduces_its_rank_and_its_children_to_the_maximum(root: Root) -> None:
    root.exchanges(root.child(1), root.child(2))


def test_gather_reaches_rank_0_alone_and_share_everybody(root: Root) -> None:
    first, second = root.child(1), root.child(2)
    for end, body in ((first, b"b"), (root.rank, b"a"), (second, b"c" * 3_000_000)):
        end.send(Kind.GATHER, 1, body)
    got = root.rank.receive()
    assert got is not None
    assert sorted(got[2]) == sorted(b"ab" + b"c" * 3_000_000)
    assert first.is_quiet()
    root.rank.send(Kind.SHARE, 2, b"all")
    assert [end.receive() for end in (root.rank, first, second)] == [(Kind.RESULT, 2, b"all")] * 3


def test_child_with_wrong_key_is_refused_and_right_one_joins_late(root: Root) -> None:
    first = root.child(1)
    root.rank.reduce(1, 0, 0)
    first.reduce(1, 1, -1)
    with pytest.raises(ConnectionRefusedError):
        root.child(2, key=KEY[::-1])
    second = root.child(2)
    second.reduce(1, 2, -2)
    assert second.receive() == (Kind.RESULT, 1, b"\2" + bytes(15))


def test_parent_of_another_name_is_refused(root: Root) -> None:
    """Else the store, to which anybody can write, would say whose node is blamed."""
    for parent in (("n7", 0), ("n0", 7)):
        order = root.order._replace(number=1, parent=("127.0.0.1", root.port, *parent))
        with pytest.raises(ConnectionRefusedError, match="another key"):
            _joined(order)


def test_message_in_two_parts_counts_once_it_is_whole(root: Root) -> None:
    first, second = root.child(1), root.child(2)
    whole = message(Kind.REDUCE, 1, b"\3" + bytes(7))
    first.connection.sendall(whole[:9])
    root.rank.reduce(1, 1)
    second.reduce(1, 2)
    assert second.is_quiet()
    first.connection.sendall(whole[9:])
    assert root.rank.receive() == (Kind.RESULT, 1, b"\3" + bytes(7))


@pytest.mark.parametrize("number", [0, 1, 3])
def test_child_joins_once_and_under_a_number_of_the_parent(root: Root, number: int) -> None:
    first = root.child(1)
    with pytest.raises((ConnectionRefusedError, ConnectionResetError)):
        root.child(number)
    root.exchanges(first, root.child(2))


NONSENSE: dict[str, Callable[[End], None]] = {
    "nothing": lambda end: None,
    "half a message": lambda end: end.connection.sendall(HEAD.pack(60, 9, 0) + b"x" * 7),
    "an exchange": lambda end: end.reduce(1, 7, 7),
    "a failure": lambda end: end.send(Kind.FAILED, 0, RANK.pack(0) + b"boo"),
    "a long message": lambda end: end.connection.sendall(HEAD.pack(1 << 31, 9, 0) + b"x" * 4096),
    "a reset": lambda end: end.connection.close(),
}


@pytest.mark.parametrize("says", NONSENSE)
def test_stranger_neither_delays_nor_changes_an_exchange(root: Root, says: str) -> None:
    silent, strangers = root.stranger(), [root.stranger() for _ in range(3)]
    assert silent.receive() is not None
    for end in strangers:
        NONSENSE[says](end)
    root.exchanges(root.child(1), root.child(2))
    for end in strangers if says in ("an exchange", "a failure", "a long message") else ():
        received = end.receive()
        assert received is None or received[0] == Kind.CHALLENGE
        assert received is None or end.receive() is None
    assert silent.is_quiet()  # its time is not over yet


def test_oldest_stranger_gives_way_to_new_ones(root: Root) -> None:
    strangers = [root.stranger() for _ in range(STRANGERS + 1)]
    for end in strangers[1:]:
        assert end.receive() is not None
    assert strangers[0].receive() is not None
    assert strangers[0].receive() is None
    assert strangers[1].is_quiet()  # its time is not over yet
    root.exchanges(root.child(1), root.child(2))


def test_death_of_a_child_fails_all_with_its_node(root: Root) -> None:
    first, second = root.child(1), root.child(2)
    second.connection.close()
    for end in (root.rank, first):
        received = end.receive()
        assert received is not None
        assert (received[0], received[2][4:]) == (Kind.FAILED, b"the agent of n2 has ended, or cannot be reached")
        assert RANK.unpack_from(received[2]) == (2,)


def test_silent_child_fails_all_with_its_node_after_six_beats(root: Root) -> None:
    first, _ = root.child(1), root.child(2)  # the second one never beats
    began = time.monotonic()
    while (received := first._next()) == (Kind.BEAT, 0, b""):
        first.send(Kind.BEAT)
    assert received == (Kind.FAILED, 0, RANK.pack(2) + b"the agent of n2 is stopped, or cannot be reached")
    assert time.monotonic() - began >= MISSED * BEAT_S


class Clock:
    """The time as the agent has it."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Clock, Agent, Link]]:
    """The time, and an agent in this process with its connection to a child."""
    clock = Clock()
    monkeypatch.setattr(f"{Agent.__module__}.time", clock)
    inner, watching = socket.socketpair()
    agent = Agent(Order(0, 2, 1, 0, "n0", None, KEY, PATIENCE_S, -1, -1, ""), [], SimpleNamespace(line=inner))
    ours, child = socket.socketpair()
    link = Link(agent.waiting, ours)
    link.name = ("agent", 1)
    agent.links[link.name] = link
    yield clock, agent, link
    for each in (child, ours, inner, watching):
        each.close()


@pytest.mark.parametrize("late_every", [MISSED, CALM_S // BEAT_S])
@pytest.mark.parametrize(("late_s", "fails"), [(0.0, True), (LATE_S - 0.1, True), (LATE_S + 0.1, False)])
def test_late_agent_judges_no_silence(
    parent: tuple[Clock, Agent, Link], late_s: float, late_every: int, fails: bool
) -> None:
    clock, agent, _ = parent
    for turn in range(2 * int(CALM_S)):
        clock.now += BEAT_S + (late_s if turn % late_every == 0 else 0.0)
        agent._beat()
    assert bool(agent.failure) is fails


@pytest.mark.parametrize("pause", [MISSED, MISSED + 1])
def test_slow_neighbour_is_lost_after_six_silent_beats(parent: tuple[Clock, Agent, Link], pause: int) -> None:
    """It is stopped, or cut off, and comes back."""
    clock, agent, link = parent
    for turn in range(4 * pause):
        clock.now += BEAT_S
        link.missed = 0 if turn % pause == 0 else link.missed
        agent._beat()
    assert bool(agent.failure) is (pause > MISSED)


def test_half_a_message_of_a_dead_child_fails_all(root: Root) -> None:
    first, second = root.child(1), root.child(2)
    first.connection.sendall(message(Kind.REDUCE, 1, bytes(16))[:9])
    first.connection.close()
    received = second.receive()
    assert received is not None
    assert (received[0], RANK.unpack_from(received[2])) == (Kind.FAILED, (1,))


def test_first_failure_is_passed_on_and_later_ones_are_not(root: Root) -> None:
    first, second = root.child(1), root.child(2)
    first.send(Kind.FAILED, 0, RANK.pack(1) + b"ValueError: a bad sample")
    assert root.rank.receive() == (Kind.FAILED, 0, RANK.pack(1) + b"ValueError: a bad sample")
    root.rank.send(Kind.FAILED, 0, RANK.pack(0) + b"RuntimeError: Connection closed")
    assert second.receive() == (Kind.FAILED, 0, RANK.pack(1) + b"ValueError: a bad sample")
    root.rank.connection.close()  # the agent ends with its rank
    assert second.receive() is None


def test_late_agent_learns_of_a_failure(root: Root) -> None:
    root.rank.send(Kind.FAILED, 0, RANK.pack(0) + b"ValueError")
    root.rank.reduce(1, 1)
    assert root.child(1).receive() == (Kind.FAILED, 0, RANK.pack(0) + b"ValueError")


def test_different_exchanges_with_one_number_fail_all(root: Root) -> None:
    first = root.child(1)
    root.rank.reduce(1, 5)
    first.reduce(1, 5, 6)
    received = first.receive()
    assert received is not None
    assert received[2][4:] == b"the ranks make different exchanges at the same time"


def test_agent_stays_until_its_children_are_done(root: Root) -> None:
    first, second = root.child(1), root.child(2)
    root.rank.send(Kind.LEFT, 0, RANK.pack(0))
    for end in (first, second):
        assert end.receive() == (Kind.LEFT, 0, RANK.pack(0))
    assert root.rank.receive() is None
    first.send(Kind.DONE)
    assert first.receive() is None
    assert second.is_quiet()
    second.send(Kind.DONE)
    assert second.receive() is None


def test_second_connection_of_a_rank_is_closed(root: Root) -> None:
    root.exchanges(root.child(1), root.child(2))
    with pytest.raises(OSError, match="refused"):  # no further rank is awaited
        root.connected(0)


def test_socket_in_a_folder_is_private_and_removed(tmp_path: Path) -> None:
    """Where abstract sockets do not exist."""
    listening, address = _listen(abstract=False)
    assert len(address) <= 100
    folder = Path(address).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    listening.close()
    (folder / "agent").unlink()
    folder.rmdir()
    root = Root(abstract=False)
    root.exchanges(root.child(1), root.child(2))
    assert not Path(root.address).parent.exists()
    root.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP])
def test_agent_ignores_the_signals_of_a_preemption(root: Root, number: int) -> None:
    first, second = root.child(1), root.child(2)
    os.kill(root.pid, number)
    root.exchanges(first, second)
