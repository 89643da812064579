"""Shards: each sample once an epoch, over ranks and workers; who resumes in the middle sees what was left."""

from __future__ import annotations

import io
import tarfile
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, Shards, read_tar
from clusterdp.train.data.make_loader import ShardLoader
from clusterdp.train.settings import WorkerSettings
from tests.train import programs
from tests.train.ranks import running

SIZES = (5, 0, 13, 7, 1, 9, 6)  # samples in each file


def counted(number: int) -> Any:
    """A file is a number here; its samples are 100 times that, and up."""
    return (100 * number + sample for sample in range(SIZES[number]))


def jittered(sample: int) -> torch.Tensor:
    return sample + 0.5 * torch.rand(())


EVERYTHING = sorted(sample for number in range(len(SIZES)) for sample in counted(number))


def shards(**options: Any) -> Shards:
    return Shards(range(len(SIZES)), counted, **{"decode": jittered, "buffer": 4, **options})


def loader(workers: int = 0, rank: int = 0, world_size: int = 1, **options: Any) -> ShardLoader:
    return ShardLoader(shards(**options), 4, rank=rank, world_size=world_size, num_workers=workers)


def seen(batches: Any) -> list[float]:
    return [number for batch in batches for number in batch.tolist()]


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (3, 0), (2, 2)])
def test_shards_give_each_sample_once_per_epoch_in_a_new_order(world_size: int, workers: int) -> None:
    orders = []
    for epoch in range(2):
        found: list[float] = []
        for rank in range(world_size):
            mine = loader(workers, rank, world_size)
            mine.set_epoch(epoch)
            found += seen(mine)
        orders.append([int(number) for number in found])
        assert sorted(orders[-1]) == EVERYTHING
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


def test_shard_is_shuffled_and_augmented_anew_in_each_pass() -> None:
    one = Shards([2], counted, jittered, buffer=4, batches=1)
    trainings_own = torch.get_rng_state()
    passes = []
    for epoch in range(2):
        numbers = [float(sample) for _, sample in islice(one.walk([0], 0, epoch), 2 * SIZES[2])]
        passes += [numbers[: SIZES[2]], numbers[SIZES[2] :]]
    orders = [tuple(map(int, numbers)) for numbers in passes]
    assert all(sorted(order) == list(counted(2)) for order in orders)
    assert len(set(orders)) == 4
    assert len({number % 1 for numbers in passes for number in numbers}) == 4 * SIZES[2]
    assert torch.equal(torch.get_rng_state(), trainings_own)


def test_shards_are_divided_anew_among_ranks_in_each_epoch() -> None:
    deals = [[shards().dealt(rank, 2, 0, epoch) for rank in range(2)] for epoch in range(3)]
    assert all(sorted(mine + others) == [*range(len(SIZES))] for mine, others in deals)
    assert len({tuple(mine) for mine, _ in deals}) == 3


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("batches", [None, 14])
def test_shard_loader_resumes_exactly_after_any_batch(workers: int, batches: int | None) -> None:
    whole = [batch.tolist() for batch in loader(workers, batches=batches)]
    assert batches is None or len(whole) == batches  # more than there are: it begins with its files again
    for done in range(0, len(whole) + 1, 1 if workers == 0 else 4):
        first = loader(workers, batches=batches)
        batches_of_it = iter(first)
        head = [next(batches_of_it).tolist() for _ in range(done)]
        second = loader(0, batches=batches)  # with other workers: it ends this epoch as it was begun
        second.load_state_dict(first.state_dict())
        assert head + [batch.tolist() for batch in second] == whole


def test_shard_loader_resumed_past_the_end_of_a_shortened_epoch_is_empty() -> None:
    first = loader(batches=6)
    list(first)
    second = loader(batches=5)
    second.load_state_dict(first.state_dict())
    assert seen(second) == []


def test_shards_without_a_shuffle_buffer_keep_their_order() -> None:
    assert seen(loader(buffer=0, decode=None)) == EVERYTHING
    assert [int(number) for number in shards(buffer=0)] == EVERYTHING


def test_missing_or_too_few_shards_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"shards: there is no file .*x-\*\.tar"):
        Shards(tmp_path / "x-*.tar")
    with pytest.raises(ConfigError, match="shards: 7 files cannot be divided among 8 ranks"):
        loader(world_size=8)
    assert seen(ShardLoader(Shards([1, 1], counted, batches=3), 4)) == []  # nothing in them: no endless search


def test_read_tar_groups_files_by_sample(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a-0.tar", "w") as tar:
        folder = tarfile.TarInfo("x")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in ("x/1.png", "x/1.cls", "x/2.png", "3.seg.png"):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    assert list(Shards(tmp_path / "*.tar", buffer=0)) == [
        {"__key__": "x/1", "png": b"x/1.png", "cls": b"x/1.cls"},
        {"__key__": "x/2", "png": b"x/2.png"},
        {"__key__": "3", "seg.png": b"3.seg.png"},
    ]
    assert next(iter(read_tar(tmp_path / "a-0.tar")))["__key__"] == "x/1"


def test_ranks_with_uneven_shards_end_their_epochs_together(tmp_path: Path) -> None:
    with running(tmp_path, programs.with_job, "tests.train.test_shards:two_epochs", {}, size=2) as ranks:
        first, second = ranks.answers
    assert len(first) == len(second) > 2
    steps = [sum(epoch == number for epoch, _ in first) for number in range(2)]
    assert min(steps) > 0
    mine, others = ({number for epoch, batch in rank if epoch == 0 for number in batch} for rank in (first, second))
    assert not mine & others


def two_epochs(job: JobHandle) -> list[Any]:
    loop = job.loop(job.loader(shards(decode=None), 2, num_workers=1), {}, epochs=2)
    return [(loop.epoch, batch.tolist()) for batch in loop]


@pytest.mark.parametrize("stop", [3, 11])
def test_loop_over_shards_resumes_exactly_at_its_checkpoint(job: JobHandle, tmp_path: Path, stop: int) -> None:
    def run(folder: str, until: int | None = None) -> list[Any]:
        settings = WorkerSettings(run_dir=tmp_path, checkpoint=CheckpointConfig(url=str(tmp_path / folder)))
        mine = JobHandle(settings, job.group, job.stop_signal, "1.0")
        loop = mine.loop(mine.loader(shards(), 4, num_workers=2), {}, epochs=2)
        found = []
        for batch in loop:
            found.append(batch.tolist())
            if len(found) == until:
                loop.save()
                break
        return found

    whole = run("whole")
    assert run("parts", stop) + run("parts") == whole
