"""Agents that are killed, stopped or starved in trees whose ranks are stand-ins: sockets of this process."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import clusterdp
from clusterdp.batch.nodes.agent import WIDTH, Order
from clusterdp.batch.nodes.messages import BEAT_S, MISSED, RANK, Kind
from clusterdp.train.ranks.node_agent import START, _connected, _listen
from tests.batch.test_agent import KEY, PATIENCE_S, End

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(sys.platform != "linux", reason="stops")]

AGENTS, RANKS = 10, 2  # the root has 8 children, of which the first has one
KILLS, STOPS, AT_ONCE = 100, 20, 5
LOAD, LOADED_S = 100, 60.0


class Tree:
    """ranks: the stand-ins of each agent. pids: the agents."""

    def __init__(self) -> None:
        self.ranks: list[list[End]] = []
        below = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]  # of the agents that have children
        for number in range(AGENTS):
            listening, address = _listen()
            above = (number - 1) // WIDTH
            parent = ("127.0.0.1", below[above].getsockname()[1], f"n{above}", above * RANKS) if number else None
            fds = {"ranks_fd": listening.fileno(), "agents_fd": below[number].fileno() if number < len(below) else -1}
            order = Order(
                number, AGENTS, RANKS, number * RANKS, f"n{number}", parent, KEY, PATIENCE_S, folder="", **fds
            )
            words = [sys.executable, "-I", "-S", "-c", START, str(Path(clusterdp.__file__).resolve().parents[1])]
            passed = [fd for fd in fds.values() if fd >= 0]
            subprocess.run(words, input=json.dumps(order._asdict()).encode(), pass_fds=passed, check=True)
            self.ranks.append([End(_connected(address)) for _ in range(RANKS)])
            for local, end in enumerate(self.ranks[-1]):
                end.send(Kind.HELLO, 0, RANK.pack(number * RANKS + local))
            listening.close()
        for server in below:
            server.close()
        for end in self.ends():
            end.reduce(1, 7)
        self.pids = [
            next(number for end in ends for _, number, _ in [end._next() or (0, 0, b"")]) for ends in self.ranks
        ]
        assert all(end.receive() == (Kind.RESULT, 1, b"\7" + bytes(7)) for end in self.ends())

    def ends(self, but: int | None = None) -> list[End]:
        return [end for number, ends in enumerate(self.ranks) if number != but for end in ends]

    def names(self, victim: int) -> bool:
        """Whether each other stand-in is told of the victim's node. Waits for it."""
        said = [end.receive() for end in self.ends(but=victim)]
        return all(each and each[0] == Kind.FAILED and f"the agent of n{victim} ".encode() in each[2] for each in said)

    def close(self) -> None:
        for end in self.ends():
            end.connection.close()
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def tree() -> Iterator[Tree]:
    tree = Tree()
    try:
        yield tree
    finally:
        tree.close()


def test_killed_agent_is_named_to_all_other_ranks_at_once() -> None:
    took = []
    for kill in range(KILLS):
        with tree() as one:
            began, victim = time.monotonic(), kill % AGENTS
            os.kill(one.pids[victim], signal.SIGKILL)
            assert one.names(victim)
            took.append(time.monotonic() - began)
            assert [end.receive() for end in one.ranks[victim]] == [None] * RANKS
    print(f"{KILLS} kills: median {sorted(took)[KILLS // 2]:.3f} s, most {max(took):.3f} s")
    assert max(took) < BEAT_S


def test_stopped_agent_is_named_to_all_other_ranks_in_time() -> None:
    took = []
    for first in range(0, STOPS, AT_ONCE):
        with ExitStack() as stack:
            trees = [stack.enter_context(tree()) for _ in range(AT_ONCE)]
            began = time.monotonic()
            for stop, one in enumerate(trees, first):
                os.kill(one.pids[stop % AGENTS], signal.SIGSTOP)
            for stop, one in enumerate(trees, first):
                assert one.names(stop % AGENTS)
                took.append(time.monotonic() - began)
    print(f"{STOPS} stops: {min(took):.1f} to {max(took):.1f} s")
    assert min(took) > (MISSED - 1) * BEAT_S  # since the last beat, which came up to a beat before the stop
    assert max(took) < (MISSED + 1) * BEAT_S + 1.0


def _burn() -> None:
    while True:
        pass


def test_no_agent_is_taken_for_stopped_on_a_busy_machine() -> None:
    context = multiprocessing.get_context("fork")
    hogs = [context.Process(target=_burn, daemon=True) for _ in range(LOAD)]
    with tree() as one:
        for hog in hogs:
            hog.start()
        try:
            end = time.monotonic() + LOADED_S
            number = 1
            while time.monotonic() < end:
                number += 1
                for rank in one.ends():
                    rank.reduce(number, number)
                assert {(rank.receive() or [0])[0] for rank in one.ends()} == {Kind.RESULT}
        finally:
            for hog in hogs:
                hog.kill()
    print(f"{number} exchanges in {LOADED_S:.0f} s at a load of {LOAD}")
