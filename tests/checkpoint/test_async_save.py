"""Saves that are written while the training goes on: what is copied, when it counts, and how it fails."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer, CheckpointError, Commit, LostContact, StateError, list_checkpoints
from clusterdp.storage import LocalStorage
from tests.checkpoint.gang import on_ranks
from tests.checkpoint.training import Counter


class Gate(LocalStorage):
    """Writes wait until somebody opens the gate; `fail` is raised instead of the next one."""

    def __init__(self, path: Path | str):
        super().__init__(path)
        self.gate = threading.Event()
        self.writing = threading.Event()
        self.fail: OSError | None = None

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        self._pass()
        super().write(name, chunks)

    def write_at(self, name: str, size: int, start: int, chunks: Iterable[memoryview]) -> None:
        self._pass()
        super().write_at(name, size, start, chunks)

    def _pass(self) -> None:
        self.writing.set()
        assert self.gate.wait(60)
        if self.fail is not None:
            failure, self.fail = self.fail, None
            raise failure


class Nice(LocalStorage):
    """Notes how much its writers give way to others."""

    writing = committing = 0

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        self.writing = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        super().write(name, chunks)

    def publish(self, name: str, data: bytes) -> None:
        self.committing = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        super().publish(name, data)


def counter(value: float) -> Counter:
    x = Counter()
    x.state = {"tensor": torch.full((300_000,), value), "value": value}
    return x


def steps(url: object) -> list[int]:
    return [info.step for info in list_checkpoints(str(url))]


def until_committed(checkpointer: Checkpointer) -> Commit:
    deadline = threading.Event()
    for _ in range(60_000):
        if (commit := checkpointer.step()) is not None:
            return commit
        deadline.wait(0.001)
    raise AssertionError("it was never committed")


def test_async_save_stores_the_state_at_the_call_not_later_changes(tmp_path: Path) -> None:
    storage, x = Gate(tmp_path), counter(1.0)
    x.per_rank = False
    checkpointer = Checkpointer(storage, {"x": x})
    assert checkpointer.async_save(1)
    assert storage.writing.wait(60), "it is being written"
    x.state["tensor"].fill_(2.0)
    assert checkpointer.step() is None
    assert steps(tmp_path) == [], "nothing is committed before it is written"
    storage.gate.set()
    assert until_committed(checkpointer).step == 1
    fresh = counter(0.0)
    Checkpointer(tmp_path, {"x": fresh}).restore()
    assert fresh.state["tensor"].unique().tolist() == [1.0]


def test_async_save_copies_per_rank_state_before_later_changes(tmp_path: Path) -> None:
    storage, x = Gate(tmp_path), counter(1.0)
    x.per_rank = True
    checkpointer = Checkpointer(storage, {"x": x})
    checkpointer.async_save(1)
    x.state["tensor"].fill_(2.0)
    storage.gate.set()
    checkpointer.wait()
    fresh = counter(0.0)
    fresh.per_rank = True
    Checkpointer(tmp_path, {"x": fresh}).restore()
    assert fresh.state["tensor"].unique().tolist() == [1.0]


def test_async_save_is_skipped_and_counted_during_an_unfinished_save(tmp_path: Path) -> None:
    storage = Gate(tmp_path)
    checkpointer = Checkpointer(storage, {"x": counter(1.0)})
    assert checkpointer.async_save(1)
    assert not checkpointer.async_save(2)
    assert not checkpointer.async_save(3)
    assert checkpointer.skipped == 2
    storage.gate.set()
    until_committed(checkpointer)
    assert checkpointer.skipped == 0
    assert checkpointer.async_save(4)
    assert checkpointer.wait() is not None
    assert checkpointer.wait() is None, "there is nothing to wait for"
    assert steps(tmp_path) == [1, 4]


def test_save_waits_for_the_commit_of_a_running_async_save(tmp_path: Path) -> None:
    storage = Gate(tmp_path)
    checkpointer = Checkpointer(storage, {"x": counter(1.0)})
    checkpointer.async_save(1)
    threading.Timer(0.05, storage.gate.set).start()
    assert checkpointer.save(2).step == 2
    assert steps(tmp_path) == [1, 2]


def test_failed_async_save_is_raised_by_step_and_the_next_save_commits(tmp_path: Path) -> None:
    storage = Gate(tmp_path)
    storage.gate.set()
    checkpointer = Checkpointer(storage, {"x": counter(1.0)})
    checkpointer.save(1)
    storage.fail = OSError(28, "No space left on device")
    checkpointer.async_save(2)
    with pytest.raises(CheckpointError, match=r"No space left on device\. Free some space"):
        until_committed(checkpointer)
    assert steps(tmp_path) == [1]
    checkpointer.async_save(3)
    checkpointer.wait()
    assert steps(tmp_path) == [1, 3]
    assert not (tmp_path / "step_00000002").exists(), "its space was given back"


def commit_at_the_same_call(rank: int, size: int, folder: str) -> list[int]:
    """Rank 1 is slow to write; and yet all hear of the commit in the same call."""
    storage = Gate(folder)
    if rank != 1:
        storage.gate.set()
    checkpointer = Checkpointer(storage, {"x": counter(1.0)})
    calls = []
    for step in (1, 2, 3):
        checkpointer.async_save(step)
        called = 0
        while True:
            called += 1
            if rank == 1 and called == 5:
                storage.gate.set()
            if checkpointer.step() is not None:
                break
            time.sleep(0.001)  # a training step: a loop that does nothing else would starve the thread that writes
        calls.append(called)
    return calls


def test_all_ranks_report_an_async_commit_in_the_same_step_call(tmp_path: Path) -> None:
    calls = on_ranks(3, commit_at_the_same_call, str(tmp_path))
    assert calls[0] == calls[1] == calls[2]
    assert calls[0][0] > 5, "nobody commits before all have written"
    assert steps(tmp_path) == [1, 2, 3]


def fail_on_one(rank: int, size: int, folder: str) -> tuple[str, int]:
    storage = Gate(folder)
    storage.gate.set()
    checkpointer = Checkpointer(storage, {"x": counter(1.0)})
    checkpointer.save(1)
    if rank == 2:
        storage.fail = OSError(122, "Disk quota exceeded")
    checkpointer.async_save(2)
    called = 0
    try:
        while True:
            called += 1
            checkpointer.step()
    except CheckpointError as error:
        said = str(error)
    checkpointer.async_save(3)
    checkpointer.wait()
    return said, called


def test_async_error_on_one_rank_fails_all_ranks_in_the_same_step(tmp_path: Path) -> None:
    answers = on_ranks(3, fail_on_one, str(tmp_path))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0].startswith("rank 2: ")
    assert "Disk quota exceeded. Free some space there" in answers[0][0]
    assert steps(tmp_path) == [1, 3]


def test_advance_to_raises_lostcontact_without_waiting_for_the_remaining_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would wait for may be waiting for a rank that waits for this one's end."""
    checkpointer = Checkpointer(tmp_path, {"x": counter(1.0)})
    checkpointer.async_save(1)

    def lose(self: Any) -> None:
        raise LostContact("a rank is gone")

    def wait(self: Any) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr("clusterdp.checkpoint.save.save.Save.advance", lose)
    monkeypatch.setattr("clusterdp.checkpoint.state.rank_group.ProgressExchange.drain", wait)
    with pytest.raises(LostContact):
        checkpointer.advance_to(1)


def drift(rank: int, size: int, folder: str) -> list[Any]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 9))
    net(torch.randn(8, 40) + rank)  # statistics differ, as DDP lets them
    checkpointer = Checkpointer(folder, {"model": net}, check_replicas_every=2)
    checkpointer.save(1)
    with torch.no_grad():
        net[2].weight[0, rank] += 1e-6 if rank == size - 1 else 0.0
    checkpointer.save(2)  # not compared: the first of every two is
    said = []
    for _ in range(2):  # and what has failed once is compared again
        with pytest.raises(StateError) as caught:
            checkpointer.save(3)
        said.append(str(caught.value))
    with torch.no_grad():
        net[2].weight.fill_(1.0)
    checkpointer.save(4)
    return said


@pytest.mark.parametrize("size", [2, 4])
def test_save_fails_with_the_tensor_names_if_replicas_differ(tmp_path: Path, size: int) -> None:
    answers = on_ranks(size, drift, str(tmp_path))
    assert len({repr(answer) for answer in answers}) == 1
    first, again = answers[0]
    assert first == again
    assert "the ranks are no longer the same" in first
    assert "model/2.weight" in first
    assert "running_mean" not in first
    assert "0.weight" not in first
    assert steps(tmp_path) == [1, 2, 4]


def drift_far_away(rank: int, size: int, folder: str) -> list[Any]:
    """Rank 2 has another value in the slice that rank 0 writes and rank 3 looks at."""
    net = torch.nn.ModuleDict({name: torch.nn.Linear(40, 40) for name in "abcd"})
    checkpointer = Checkpointer(folder, {"model": net})
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(1.0)
        net["a"].weight[0, 0] += rank == 2
    checkpointer.save(1)
    with pytest.raises(StateError) as caught:
        checkpointer.save(2, compare_all=True)
    with torch.no_grad():
        net["a"].weight.fill_(2.0)
    checkpointer.save(3, compare_all=True)
    return [str(caught.value)]


def test_save_with_compare_all_finds_a_different_replica_on_any_rank(tmp_path: Path) -> None:
    answers = on_ranks(4, drift_far_away, str(tmp_path))
    assert answers == answers[:1] * 4
    assert "no longer the same, and only one of them could be saved: model/a.weight (rank 2 beside" in answers[0][0]
    assert steps(tmp_path) == [1, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="no thread has a priority of its own here")
def test_async_save_writes_at_low_priority_but_save_does_not(tmp_path: Path) -> None:
    storage = Nice(tmp_path)
    checkpointer = Checkpointer(storage, {"x": counter(1.0)})
    before = os.getpriority(os.PRIO_PROCESS, 0)
    checkpointer.save(1)
    assert (storage.writing, storage.committing) == (before, before)
    checkpointer.async_save(2)
    until_committed(checkpointer)
    assert min(storage.writing, storage.committing) >= 10
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
