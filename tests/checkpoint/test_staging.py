"""Staging: copies from GPUs, by a double of CUDA. Not proved here: what a real GPU does in between."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterdp.checkpoint.format.layout import HEADER
from clusterdp.checkpoint.save import writer
from clusterdp.checkpoint.save.state_snapshot import StatePart
from clusterdp.checkpoint.save.writer import RankWriter, StagingMemory
from clusterdp.checkpoint.state.rank_group import RankGroup
from clusterdp.storage import open_storage
from tests.cuda_double import Cuda, OnGpu

LARGE = 1 << 20  # elements of 4 bytes: more than a huge page


class Pinned:
    """cudaHostRegister and cudaHostUnregister. events: their calls, and the waits for copies."""

    def __init__(self, patch: pytest.MonkeyPatch, fails: bool = False):
        self.events: list[str] = []
        self.fails = fails
        runtime = SimpleNamespace(cudaHostRegister=self.register, cudaHostUnregister=self.unregister)
        patch.setattr(torch.cuda, "cudart", lambda: runtime)
        patch.setattr(torch.cuda, "check_error", self.check)
        patch.setattr(writer.Buffer, "hide_from_children", lambda buffer: self.events.append("hidden from children"))

    def register(self, address: int, size: int, flags: int) -> int:
        self.events.append(f"register {flags}")
        return int(self.fails)

    def unregister(self, address: int) -> None:
        self.events.append("unregister")

    def check(self, code: int) -> None:
        if code:
            raise RuntimeError("CUDA error: operation not permitted\nmore")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def part_of(size: int, card: str = "cuda:0") -> StatePart:
    """A part with one tensor on this GPU, whose copies are queued there and not done."""
    part = StatePart.of({"x": torch.zeros(size)})
    tensors: dict[str, torch.Tensor] = {name: OnGpu.of(tensor, card) for name, tensor in part.tensors.items()}
    return StatePart(part.skeleton, tensors, part.layout, {})


@pytest.fixture
def rank(tmp_path: Path) -> RankWriter:
    return RankWriter(open_storage(tmp_path), "step", "token", RankGroup(None))


def empty_without_pinning(patch: pytest.MonkeyPatch) -> list[bool]:
    """torch.empty() on a machine without CUDA. Returns what its calls ask for."""
    asked: list[bool] = []
    empty = torch.empty

    def record(*size: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*size, **options)  # type: ignore[no-any-return]

    patch.setattr(torch, "empty", record)
    return asked


def stage(rank: RankWriter, memory: StagingMemory, shared: StatePart, own: StatePart) -> list[Any]:
    staged = rank.stage(memory, shared, own)
    gc.collect()
    return list(staged.waits)


def test_own_memory_stays_pinned_between_saves(rank: RankWriter, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned, memory = Pinned(monkeypatch), StagingMemory()
    for _ in range(2):
        stage(rank, memory, part_of(LARGE), part_of(LARGE))
    assert pinned.events == ["register 1", "hidden from children"] * 2


def test_wait_covers_each_gpu_of_the_state(rank: RankWriter, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    Pinned(monkeypatch)
    arrived: list[str] = []
    for card in ("cuda:0", "cuda:1"):
        cuda.current_stream(torch.device(card)).add(lambda card=card: arrived.append(card))  # type: ignore[misc]
    waits = stage(rank, StagingMemory(), part_of(LARGE, "cuda:1"), part_of(LARGE, "cuda:0"))
    assert arrived == []
    for wait in waits:
        wait()
    assert sorted(arrived) == ["cuda:0", "cuda:1"]


def test_wait_makes_the_gpu_of_the_copies_current(
    rank: RankWriter, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new thread would open a context on GPU 0."""
    Pinned(monkeypatch)
    entered: list[torch.device] = []

    @contextmanager
    def device(which: torch.device) -> Iterator[None]:
        entered.append(which)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    for wait in stage(rank, StagingMemory(), part_of(LARGE, "cuda:3"), StatePart.of({})):
        wait()
    assert entered == [torch.device("cuda:3")]


def test_save_copies_through_unpinned_memory_if_registering_fails(
    rank: RankWriter, cuda: Cuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pinned, memory = Pinned(monkeypatch, fails=True), StagingMemory()
    caplog.set_level(logging.WARNING)
    stage(rank, memory, part_of(LARGE), StatePart.of({}))
    assert pinned.events == ["register 1"]
    assert caplog.messages == [
        "a save copies from the GPU through memory that is not pinned: CUDA error: operation not permitted"
    ]


def test_small_memory_is_allocated_pinned_not_registered(
    rank: RankWriter, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, asked = Pinned(monkeypatch), empty_without_pinning(monkeypatch)
    stage(rank, StagingMemory(), StatePart.of({}), part_of(100))
    assert (pinned.events, asked[-1]) == ([], True)


def test_cpu_state_is_neither_pinned_nor_waited_for(rank: RankWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = Pinned(monkeypatch)
    staged = rank.stage(StagingMemory(), StatePart.of({"x": torch.zeros(LARGE)}), StatePart.of({}))
    for wait in staged.waits:
        wait()
    assert pinned.events == []


@pytest.mark.parametrize("cut", [0, 1])
def test_gaps_between_tensors_are_zero_after_a_larger_save(rank: RankWriter, cut: int) -> None:
    staging = StagingMemory().shared
    large, small = (
        StatePart.of({"x": torch.full((4096,), 255, dtype=torch.uint8)}),
        StatePart.of({"a": torch.ones(1, dtype=torch.uint8), "b": torch.ones(3, dtype=torch.uint8)}),
    )
    staging.fill(large, 0, large.layout.total, rank.note)
    body = staging.fill(small, cut, small.layout.total, rank.note)[HEADER:]
    assert len(body) > 4 - cut, "the alignment makes a gap"
    assert sum(body) == 4 - cut
