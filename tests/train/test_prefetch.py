"""Prefetcher: what comes out is what went in, in order, however far ahead it looks; and a checkpoint never skips it."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from clusterdp.train import JobHandle, Prefetcher
from clusterdp.train.data import prefetch
from clusterdp.train.data.prefetch import to_device
from tests.cuda_double import Cuda, OnGpu

DATA = TensorDataset(torch.arange(10.0))


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_prefetcher_keeps_the_order_of_batches(count: int, ahead: bool) -> None:
    batches = [(torch.full((2,), float(i)), f"name {i}") for i in range(count)]
    seen = list(Prefetcher(batches, "cpu", transform=lambda batch: (batch[0] * 2, batch[1]), ahead=ahead))
    assert [(x.tolist(), name) for x, name in seen] == [([2.0 * i] * 2, f"name {i}") for i in range(count)]


def test_prefetcher_reads_one_batch_ahead() -> None:
    taken: list[int] = []
    source = (taken.append(i) or torch.tensor(i) for i in range(5))
    batches = iter(Prefetcher(source, "cpu"))
    next(batches)
    assert taken == [0, 1]


def test_to_device_moves_nested_tensors() -> None:
    Pair = namedtuple("Pair", "x y")
    batch = {"a": [torch.ones(1), 3], "b": Pair(torch.ones(2), "name")}
    moved = to_device(batch, torch.device("meta"))
    assert (moved["a"][0].device.type, moved["b"].x.device.type) == ("meta", "meta")
    assert (moved["a"][1], moved["b"].y, type(moved["b"])) == (3, "name", Pair)


@pytest.mark.parametrize("stop_at", [0, 1, 4, 5, 7])
def test_checkpoint_counts_trained_not_prefetched_batches(job: JobHandle, stop_at: int) -> None:
    def batches(job: JobHandle, most: int | None = None) -> list[Any]:
        loop = job.loop(job.loader(DATA, 2, shuffle=False), {}, epochs=2, move=lambda batch: batch[0] + 100)
        seen = []
        for x in loop:
            if len(seen) == most:
                break
            seen.append(x.tolist())
            if len(seen) == most:
                loop.save()
                break
        return seen

    whole = [[100 + i, 101 + i] for i in range(0, 10, 2)] * 2
    first = batches(job, stop_at) if stop_at else []
    assert first + batches(JobHandle(job._settings, job.group, job.stop_signal, "1.1")) == whole


def test_loader_without_known_position_is_not_prefetched(job: JobHandle) -> None:
    taken: list[int] = []

    class Counts(list[Any]):
        def __iter__(self) -> Any:
            return (taken.append(i) or i for i in range(3))

    loop = job.loop(Counts([0, 1, 2]), {}, move=lambda batch: batch)
    next(iter(loop))
    assert taken == [0]


def test_loader_without_seeded_samples_is_not_prefetched(job: JobHandle) -> None:
    """The augmentations would draw from the streams that a checkpoint saves."""
    plain = [torch.tensor(float(i)) for i in range(4)]
    loader = job.loader(plain, 1, seed_samples=False, num_workers=0)  # type: ignore[arg-type]
    batches = job.loop(loader, {}, move=lambda batch: batch).batches
    assert isinstance(loader, DataLoader)
    assert batches._moved(iter(())).gi_frame.f_locals["self"].ahead is False  # type: ignore[attr-defined]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    monkeypatch.setattr(prefetch, "to_device", lambda batch, device: batch)
    prefetch._side_stream.cache_clear()
    return Cuda(monkeypatch)


@pytest.mark.parametrize("ahead", [True, False])
def test_transform_reads_a_gpu_batch_after_its_kernel(cuda: Cuda, ahead: bool) -> None:
    """Not proved by it: how long a real GPU takes."""
    step = cuda.current_stream()

    def batches() -> Any:
        for i in range(3):
            made = OnGpu.of(torch.zeros(1))
            step.add(lambda made=made, i=i: made.fill_(i + 1.0))  # a kernel that is queued, and has not run
            yield made

    def double(batch: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(1)
        cuda.current_stream().add(lambda: out.copy_(batch * 2))  # type: ignore[arg-type,return-value]
        return out

    seen = []
    for batch in Prefetcher(batches(), "cuda", transform=double, ahead=ahead):
        prefetch._side_stream(torch.device("cuda")).run()  # as early as CUDA allows
        step.run()
        seen.append(batch.item())
    assert seen == [2.0, 4.0, 6.0]


def test_memory_of_a_gpu_batch_is_kept_for_both_streams(cuda: Cuda) -> None:
    batch = OnGpu.of(torch.zeros(1))
    list(Prefetcher([batch], "cuda", transform=lambda batch: batch))
    assert batch.used_on == [prefetch._side_stream(torch.device("cuda")), cuda.current_stream()]


def test_transform_may_return_cpu_tensors_beside_gpu_ones(cuda: Cuda) -> None:
    lengths = torch.ones(2)
    [(_, found)] = Prefetcher([OnGpu.of(torch.zeros(1))], "cuda", transform=lambda batch: (batch, lengths))
    assert found is lengths


def test_prefetchers_of_a_device_share_one_stream(cuda: Cuda) -> None:
    first, second = (Prefetcher([], "cuda") for _ in range(2))
    assert first._stream is second._stream
