"""Who ends because another rank has failed can say which one it was: rank 0, which holds the note, goes last."""

from __future__ import annotations

import multiprocessing
from datetime import timedelta
from multiprocessing.connection import Connection

import pytest
import torch.distributed as dist

from clusterdp.train.ranks.peers import PeerWatch
from clusterdp.train.ranks.store_notes import StoreNotes

KEY = bytes(range(32))
FORK = multiprocessing.get_context("forkserver")


def rank(number: int, pipe: Connection) -> None:
    """Does what it is told, one word after the other."""
    port = pipe.recv() if number else 0
    store = dist.TCPStore(
        "127.0.0.1", port, is_master=number == 0, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    pipe.send(store.port)
    peers = PeerWatch(StoreNotes(store, KEY, "7.0"), number, 2)
    while True:
        word = pipe.recv()
        if word == "tell":
            peers.tell("ValueError: a bad sample")
        if word == "leave":
            pipe.send("leaving")
            peers.leave(7)
        pipe.send(peers.first_failure())


@pytest.mark.parametrize("failed", [0, 1])
def test_rank_0_waits_for_the_other_rank_before_exiting_after_a_failure(failed: int) -> None:
    pipes = [FORK.Pipe() for _ in range(2)]
    processes = [FORK.Process(target=rank, args=(number, pipes[number][1])) for number in range(2)]
    for process in processes:
        process.start()
    near = [pipe[0] for pipe in pipes]
    near[1].send(near[0].recv())
    near[1].recv()

    def ask(number: int, word: str) -> object:
        near[number].send(word)
        return near[number].recv()

    ask(failed, "tell")
    ask(0, "leave")
    if failed == 0:
        assert ask(1, "look") == "rank 0: ValueError: a bad sample"
    ask(1, "leave")
    for process in processes:
        process.join()
        assert process.exitcode == 7


def test_rank_0_waits_a_limited_time_for_a_silently_dead_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []

    def leave_now(code: int) -> None:
        left.append(code)

    monkeypatch.setattr("clusterdp.train.ranks.peers.leave_now", leave_now)
    monkeypatch.setattr("clusterdp.train.ranks.peers.LAST_WAIT_S", 0.05)
    PeerWatch(StoreNotes(dist.HashStore(), KEY, "7.0"), 0, 2).leave(5)
    assert left == [5]
