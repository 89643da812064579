"""Where a loader goes on: with one that keeps its own place, one whose data set does, and one that knows nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import ConfigError, StateError
from clusterdp.rundir import RunDir, read_events
from clusterdp.train import JobHandle, Loop, Stopped, StopSignal
from clusterdp.train.loop.batches import Batches
from clusterdp.train.settings import WorkerSettings
from tests.torch_version import quiet_gloo
from tests.train import programs
from tests.train.ranks import running

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11, torch 2.13
DATA = TensorDataset(torch.arange(10.0))


class Stream(IterableDataset[Any]):
    """Items of a stream, dealt out to the loader's workers; it knows its place, as torchdata wants it."""

    def __init__(self, size: int = 10):
        self.size, self.start, self.place = size, 0, 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        own = range(number, self.size, workers)
        self.start, self.place = 0, self.start
        while self.place < len(own):
            self.place += 1
            yield (torch.tensor(float(own[self.place - 1])),)

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["place"]


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.size


class Mosaic(IterableDataset[Any]):
    """A stand-in with the protocol of Mosaic's StreamingDataset: it is told how many samples all ranks are through,
    goes on there once, and knows its epoch by counting."""

    def __init__(self) -> None:
        self.next_epoch, self.resume = 0, (-1, 0)
        self.opened: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        epoch, start = self.resume if self.resume[0] >= self.next_epoch else (self.next_epoch, 0)
        self.next_epoch = epoch + 1
        self.opened.append((epoch, start))
        for i in range(start, 10):
            yield (torch.tensor(float(10 * epoch + i)),)

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, int]:
        assert from_beginning
        return {"epoch": self.next_epoch - 1, "sample_in_epoch": num_samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.resume = state["epoch"], state["sample_in_epoch"]


class Shuffled(IterableDataset[Any]):
    """Through a buffer of four, from which the global random numbers choose."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        buffer: list[int] = []
        for item in range(10):
            buffer.append(item)
            if len(buffer) == 4:
                yield (
                    torch.tensor(
                        float(buffer.pop(int(torch.randint(4, ())))),
                    ),
                )
        random.shuffle(buffer)
        yield from ((torch.tensor(float(item)),) for item in buffer)


class Lazy(Sampler[int]):
    """Draws each index when it is asked for it."""

    def __init__(self) -> None: ...

    def __iter__(self) -> Iterator[int]:
        return (int(torch.randint(10, ())) for _ in range(10))

    def __len__(self) -> int:
        return 10


class Noisy(Dataset[tuple[torch.Tensor]]):
    """Augmented at random, wherever it is read."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (torch.rand(()) + random.random(),)


class Own(Noisy):
    """Draws from generators that it keeps."""

    def __init__(self) -> None:
        self.draw = random.Random(7)
        self.transforms = [numpy.random.RandomState(8), torch.Generator()]

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        noise, flip = self.transforms
        return (index + torch.rand((), generator=flip) + self.draw.random() + noise.random_sample(),)  # type: ignore[call-overload, union-attr, attr-defined]


class Permuted(Sampler[int]):
    """An order by numpy's generator."""

    def __init__(self) -> None:
        self.draw = numpy.random.default_rng(7)

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw.permutation(10).tolist())

    def __len__(self) -> int:
        return 10


def by_own() -> Any:
    return RandomSampler(DATA, generator=torch.Generator())


LOADERS: dict[str, Any] = {
    "torchdata, map-style": lambda: StatefulDataLoader(DATA, 2, shuffle=True),
    "torchdata, map-style, 2 workers": lambda: StatefulDataLoader(DATA, 2, shuffle=True, num_workers=2),
    "torchdata, iterable": lambda: StatefulDataLoader(Stream(), 2),
    "torchdata, iterable, 2 workers": lambda: StatefulDataLoader(Stream(), 2, num_workers=2),
    "torchdata, workers that persist": lambda: StatefulDataLoader(
        Stream(), 2, num_workers=1, persistent_workers=True, generator=torch.Generator()
    ),
    "Mosaic": lambda: DataLoader(Mosaic(), 2),
    "a global order of its own": lambda: DataLoader(DATA, 2, shuffle=True),
    "an order of its own": lambda: DataLoader(DATA, 2, shuffle=True, generator=torch.Generator()),
    "a stream that knows nothing": lambda: DataLoader(Stream(), 2),
    "a shuffle buffer": lambda: DataLoader(Shuffled(), 2),
    "a shuffle buffer, 2 workers": lambda: DataLoader(Shuffled(), 2, num_workers=2),
    "a sampler that draws as it goes": lambda: DataLoader(DATA, 2, sampler=Lazy()),
    "a sampler that draws as it goes, 2 workers": lambda: DataLoader(DATA, 2, sampler=Lazy(), num_workers=2),
    "a generator of its sampler": lambda: DataLoader(DATA, 2, sampler=by_own()),
    "a generator of its batch sampler": lambda: DataLoader(DATA, batch_sampler=BatchSampler(by_own(), 2, False)),
    "a generator of numpy's in its sampler": lambda: DataLoader(DATA, 2, sampler=Permuted()),
    "generators of its data set": lambda: DataLoader(Own(), 2),
    "generators of its data set, 2 workers": lambda: DataLoader(Own(), 2, num_workers=2),
    "torchdata, a generator": lambda: StatefulDataLoader(DATA, 2, shuffle=True, generator=torch.Generator()),
    "torchdata, a generator, workers that persist": lambda: StatefulDataLoader(
        DATA, 2, shuffle=True, num_workers=1, persistent_workers=True, generator=torch.Generator()
    ),
    "torchdata, a generator of its sampler": lambda: StatefulDataLoader(DATA, 2, sampler=by_own()),
    "torchdata, a generator of its batch sampler": lambda: StatefulDataLoader(
        DATA, batch_sampler=BatchSampler(by_own(), 2, False)
    ),
    "torchdata, a generator of its batch sampler, 2 workers": lambda: StatefulDataLoader(
        DATA, batch_sampler=BatchSampler(by_own(), 2, False), num_workers=2
    ),
    "torchdata, generators of its data set": lambda: StatefulDataLoader(Own(), 2, shuffle=True),
    "any iterable": lambda: [(torch.tensor([i, i + 0.5]),) for i in range(5)],
}


@pytest.fixture
def attempt(job: JobHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs an attempt of a run: what it saw, with the random numbers that it drew."""
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.MOST_STEPS", 1)

    def run(
        name: str, make_loader: Any, stop_at: int | None = None, watch_at_end: bool = False, epochs: int = 3
    ) -> tuple[list[Any], Any]:
        run_dir = tmp_path / name
        (run_dir / "attempts" / "1.0").mkdir(parents=True, exist_ok=True)
        seed = 5 if not (run_dir / "checkpoints").exists() else 99  # a new process begins somewhere else
        torch.manual_seed(seed)
        random.seed(seed)
        settings = WorkerSettings(run_dir=run_dir, checkpoint=CheckpointConfig(url=str(run_dir / "checkpoints")))
        stop = StopSignal()
        handle = JobHandle(settings, job.group, stop, "1.0")
        seen: list[Any] = []
        loader = make_loader()
        loop: Loop[Any] = handle.loop(loader, {}, epochs=epochs)
        with stop:
            try:
                for epoch in loop.epochs():
                    for (batch,) in epoch:
                        seen.append((loop.epoch, *batch.tolist(), torch.rand(()).item(), random.random()))
                        if loop.step + 1 == stop_at and not watch_at_end:
                            os.kill(os.getpid(), signal.SIGTERM)
                    if loop.step == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
                    for _ in loop.watch(range(3)):
                        pass
            except Stopped:
                pass
        if callable(end := getattr(getattr(loader, "_iterator", None), "_shutdown_workers", None)):
            end()  # a process that was stopped would end now
        loop.batches.opened = None  # the garbage collector would wait 5 s for each of its workers
        return seen, loop

    return run


@pytest.mark.parametrize("kind", LOADERS)
def test_every_kind_of_loader_resumes_with_the_same_batches_and_random_numbers(attempt: Any, kind: str) -> None:
    whole, _ = attempt("whole", LOADERS[kind], epochs=2)
    at_end = len(whole) // 2  # of the first epoch
    for stop_at in (1, 7, at_end):
        first, _ = attempt(f"run-{stop_at}", LOADERS[kind], stop_at, watch_at_end=stop_at == at_end, epochs=2)
        second, _ = attempt(f"run-{stop_at}", LOADERS[kind], epochs=2)
        assert len(first) == stop_at + (stop_at != at_end)
        assert first + second == whole


def test_resumed_loader_without_state_is_read_again_and_reported(
    attempt: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt("run", lambda: DataLoader(Stream(), 2), 7)
    assert "read again" not in capsys.readouterr().out
    attempt("run", lambda: DataLoader(Stream(), 2))
    assert (
        "clusterdp: loader: it has no state to resume from: 3 batches of epoch 1 were read again and dropped, in 0."
        in (capsys.readouterr().out)
    )


def test_mosaic_dataset_resumes_at_its_saved_sample_in_the_epoch(attempt: Any) -> None:
    _, loop = attempt("run", lambda: DataLoader(Mosaic(), 2), 7)
    assert loop.batches.state["loader"].state_dict() == {"epoch": 1, "sample_in_epoch": 6}
    loader: Any = DataLoader(Mosaic(), 2)
    attempt("run", lambda: loader)
    assert loader.dataset.opened == [(1, 6), (2, 0)]


def test_weighted_random_sampler_in_job_loader_keeps_its_weights_and_resumes(attempt: Any, job: JobHandle) -> None:
    def loader() -> Any:
        weights = WeightedRandomSampler([0.0, 1.0, 3.0] + [1.0] * 7, 10)
        return job.loader(DATA, 2, sampler=weights, collate_fn=torch.utils.data.default_collate)

    whole, _ = attempt("whole", loader)
    first, _ = attempt("run", loader, 7)
    second, _ = attempt("run", loader)
    assert first + second == whole
    values = [value for batch in whole for value in batch[1:3]]
    assert 0.0 not in values
    assert len(set(values[:10])) < 10


def test_job_loader_batches_an_iterable_data_set(attempt: Any, job: JobHandle) -> None:
    batches, _ = attempt("run", lambda: job.loader(Stream(), 2))
    assert [batch[1:3] for batch in batches[:5]] == [(i, i + 1.0) for i in range(0, 10, 2)]


def test_accumulation_refuses_a_loader_without_length(job: JobHandle) -> None:
    loop = job.loop(DataLoader(Stream(), 2), {}, accumulate=2)
    with pytest.raises(ConfigError, match="has no length"):
        next(iter(loop))


def test_loader_ending_before_its_length_is_an_error_with_accumulation(job: JobHandle) -> None:
    class Short(SizedStream):
        def __len__(self) -> int:
            return 16

    loop = job.loop(DataLoader(Short(), 2), {}, accumulate=4)
    with pytest.raises(StateError, match="ended 3 batches before its length"):
        list(loop)


@quiet_gloo
@pytest.mark.parametrize("sized", [False, True])
def test_epoch_of_uneven_loaders_ends_on_all_ranks_with_the_shortest(tmp_path: Path, sized: bool) -> None:
    with running(tmp_path, programs.uneven_streams, [5, 3, 4], sized, size=3) as ranks:
        assert ranks.answers == [[0, 1, 2, 0, 1, 2]] * 3
    dropped = "clusterdp: rank 0 has 5 batches, another rank only 3; 2 dropped.\n"
    share = "clusterdp: rank {} has 3 steps in an epoch\n"
    assert ranks.rank_log(0) == (dropped + share.format(0) if sized else "")
    assert ranks.rank_log(1) == (share.format(1) if sized else "")


@quiet_gloo
def test_each_rank_prints_its_share_of_the_samples(tmp_path: Path) -> None:
    with running(tmp_path, programs.shared_samples, 10, size=2) as ranks:
        assert ranks.answers == [3, 3]
    for rank in (0, 1):
        said = f"clusterdp: rank {rank} has 3 steps of 2 samples in an epoch; the 10 samples are shared by 2 ranks\n"
        assert ranks.rank_log(rank) == said


def test_single_rank_prints_steps_and_samples_of_a_phase_once(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    first = job.loop(job.loader(DATA, batch_size=4), {}, epochs=2, name="warm")
    assert len(list(first)) == 6
    assert capsys.readouterr().out == (
        "clusterdp: phase 'warm': rank 0 has 3 steps of 4 samples in an epoch, 10 samples in all\n"
    )


def test_resume_prints_a_changed_global_batch(
    tmp_path: Path, job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = job.loop(job.loader(DATA, 2), {}, every_steps=1)
    for _ in loop:
        if loop.step == 3:
            loop.save()
            break
    job = JobHandle(job._settings, job.group, job.stop_signal, "1.1")
    list(job.loop(job.loader(DATA, 3), {}))
    said = capsys.readouterr().out
    assert "the global batch was 2 samples and is 3: same order, but other steps. 2 a rank would keep it." in said


def test_global_batch_of_a_resume_counts_accumulated_batches(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = job.loop(job.loader(DATA, 4), {}, accumulate=1)
    for _ in loop:
        loop.save()
        break
    list(JobHandle(job._settings, job.group, job.stop_signal, "1.1").loop(job.loader(DATA, 2), {}, accumulate=2))
    assert "global batch" not in capsys.readouterr().out
    list(JobHandle(job._settings, job.group, job.stop_signal, "1.2").loop(job.loader(DATA, 2), {}, accumulate=3))
    assert "the global batch was 4 samples and is 6" in capsys.readouterr().out


@pytest.mark.parametrize(("first", "then", "steps"), [(2, 1, 3), (1, 2, 4), (2, 3, 2)])
@pytest.mark.parametrize("torchdata", [False, True])
def test_distributed_sampler_gives_each_sample_once_on_other_ranks(
    tmp_path: Path, torchdata: bool, first: int, then: int, steps: int
) -> None:
    where = str(tmp_path)
    seen: list[int] = []
    with running(tmp_path / "first", programs.distributed_samples, where, torchdata, steps, size=first) as ranks:
        seen += [sample for answer in ranks.answers for sample in answer]
    with running(tmp_path / "then", programs.distributed_samples, where, torchdata, 99, size=then) as ranks:
        seen += [sample for answer in ranks.answers for sample in answer]
        said = ranks.rank_log(0)
    again = steps * first % then
    assert len(seen) == 24 + 2 * again
    assert set(seen) == set(range(24))
    assert f"each of the {then} goes on after {steps * first // then}: {again} come again. With a Dist" in said


class Told(Noisy):
    """Knows the epoch that it was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (torch.tensor([index, self.epoch]),)


def test_nested_samplers_and_data_sets_know_the_epoch(job: JobHandle) -> None:
    data = ConcatDataset([Subset(Told(), range(8))])
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    loader = DataLoader(data, batch_sampler=BatchSampler(sampler, 8, False))
    epochs = [batch.tolist() for (batch,) in job.loop(loader, {}, epochs=2)]
    assert [{epoch for _, epoch in rows} for rows in epochs] == [{0}, {1}]
    assert [index for index, _ in epochs[0]] != [index for index, _ in epochs[1]]


def test_rank_with_surplus_batches_resumes_with_the_next_epoch(attempt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with those that it had left over."""

    def measure(feed: Batches[Any]) -> None:
        feed.per_epoch, feed._surplus = 3, True  # of the 5 that this rank has

    monkeypatch.setattr(Batches, "measure", measure)
    kind = LOADERS["torchdata, map-style"]
    whole, _ = attempt("whole", kind)
    first, _ = attempt("run", kind, 6, watch_at_end=True)
    second, _ = attempt("run", kind)
    assert (len(first), len(second)) == (6, 3)
    assert first + second == whole


@pytest.mark.parametrize("size", [1, 6])
def test_resume_with_another_batch_size_continues_at_the_same_sample(
    attempt: Any, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    """Where they meet: after 6 of 10 samples."""

    def loader(size: int) -> Any:
        return lambda: DataLoader(DATA, size, shuffle=True)

    whole, _ = attempt("whole", loader(2))
    first, _ = attempt("run", loader(2), 2)
    second, _ = attempt("run", loader(size))
    assert len(first) == 3
    samples = [value for batch in first + second for value in batch[1:-2]]
    assert samples[:10] == [value for batch in whole[:5] for value in batch[1:-2]]
    assert len(samples) == 30
    assert f"it has changed since the checkpoint: batch size 2 -> {size}. The run" in capsys.readouterr().out


def test_resume_after_the_last_short_batch_accepts_any_batch_size(attempt: Any) -> None:
    """All samples are done, though the epoch has not been closed."""
    first, _ = attempt("run", lambda: DataLoader(DATA, 4), 2)
    second, _ = attempt("run", lambda: DataLoader(DATA, 3))
    assert (len(first), first[-1][1:-2], second[0][:4]) == (3, (8.0, 9.0), (1, 0.0, 1.0, 2.0))


CHANGED: dict[str, Any] = {
    "batch size 2 -> 4": lambda: DataLoader(DATA, 4),
    "samples 10 -> 12": lambda: DataLoader(TensorDataset(torch.arange(12.0)), 2),
    "drop_last False -> True": lambda: DataLoader(DATA, 2, drop_last=True),
    "sampler SequentialSampler -> RandomSampler": lambda: DataLoader(DATA, 2, shuffle=True),
    "kind DataLoader -> list": lambda: [(torch.zeros(2),)] * 10,
}


@pytest.mark.parametrize("changed", CHANGED)
def test_changed_loader_is_refused_in_mid_epoch_but_accepted_at_epoch_end(
    attempt: Any, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt("middle", lambda: DataLoader(DATA, 2), 2)
    with pytest.raises(
        StateError, match=rf"changed since the checkpoint: {changed}.*3 batches of epoch 0 were counted"
    ):
        attempt("middle", CHANGED[changed])
    attempt("end", lambda: DataLoader(DATA, 2), 5, watch_at_end=True)
    second, _ = attempt("end", CHANGED[changed])
    assert second[0][0] == 1
    said = capsys.readouterr().out
    assert f"changed since the checkpoint: {changed}" in said
    assert "The run goes on with it." in said


def test_changed_num_workers_of_a_stream_is_refused_in_mid_epoch(attempt: Any) -> None:
    attempt("run", lambda: DataLoader(Stream(), 2, num_workers=2), 2)
    with pytest.raises(StateError, match="num_workers 2 -> 1"):
        attempt("run", lambda: DataLoader(Stream(), 2, num_workers=1))


def test_map_style_data_set_accepts_changed_num_workers_in_mid_epoch(attempt: Any) -> None:
    whole, _ = attempt("whole", lambda: DataLoader(DATA, 2))
    first, _ = attempt("run", lambda: DataLoader(DATA, 2), 2)
    second, _ = attempt("run", lambda: DataLoader(DATA, 2, num_workers=1))
    assert first + second == whole


# Whether what comes is what would have come: stopped in the first epoch, and in the second.
AUGMENTED: dict[str, tuple[Any, bool, bool]] = {
    "no workers": (lambda job: DataLoader(Noisy(), 2), True, True),
    "workers": (lambda job: DataLoader(Noisy(), 2, num_workers=1), True, True),
    "workers that persist": (
        lambda job: DataLoader(Noisy(), 2, num_workers=1, persistent_workers=True),
        True,
        False,
    ),
    "torchdata, no workers": (lambda job: StatefulDataLoader(Noisy(), 2), True, True),
    "torchdata": (lambda job: StatefulDataLoader(Noisy(), 2, num_workers=1), False, False),
    "ours": (lambda job: job.loader(Noisy(), 2, num_workers=1), True, True),
    "ours, not seeded": (lambda job: job.loader(Noisy(), 2, num_workers=1, seed_samples=False), False, False),
    "ours, not seeded, no workers": (lambda job: job.loader(Noisy(), 2, seed_samples=False), True, True),
}


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("kind", AUGMENTED)
def test_random_augmentations_after_a_resume_are_exact_or_reported_as_inexact(
    attempt: Any, job: JobHandle, kind: str, epoch: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, *exact = AUGMENTED[kind]
    whole, _ = attempt("whole", lambda: make(job))
    first, _ = attempt("run", lambda: make(job), 2 + 5 * epoch)
    assert "not exact" not in capsys.readouterr().out
    second, loop = attempt("run", lambda: make(job))
    (restored,) = [event for event in read_events(RunDir(tmp_path / "run")) if event["event"] == "restored"]
    said = "what comes is not exact" in capsys.readouterr().out
    assert [first + second == whole, not said, "inexact" not in restored, loop.restored.exact] == [exact[epoch]] * 4


def test_resume_after_the_first_epoch_reports_persistent_workers_as_inexact(
    attempt: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def loader() -> Any:
        return DataLoader(Noisy(), 2, num_workers=1, persistent_workers=True)

    whole, _ = attempt("whole", loader)
    first, _ = attempt("run", loader, 5, watch_at_end=True)
    second, _ = attempt("run", loader)
    assert (len(first), len(second)) == (5, 10)
    assert first + second != whole
    assert "what comes is not exact" in capsys.readouterr().out
    attempt("run", loader)
    assert "not exact" not in capsys.readouterr().out, "a run that is over draws nothing more"


class ByTheClock(Stream):
    """Shuffles in a buffer by a generator that is seeded by the clock, as WebDataset does."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        items = [*super().__iter__()]
        random.Random(time.time_ns()).shuffle(items)
        return iter(items)


def test_unrepeatable_stream_is_reported_once_after_a_resume(attempt: Any, capsys: pytest.CaptureFixture[str]) -> None:
    attempt("run", lambda: DataLoader(ByTheClock(1000), 100), 7)
    assert "exact" not in capsys.readouterr().out
    _, loop = attempt("run", lambda: DataLoader(ByTheClock(1000), 100))
    assert capsys.readouterr().out.count("of epoch 0 is not the one that it was: what comes is not exact") == 1
    assert not loop.restored.exact
    assert "WebDataset does with .shuffle(1000, rng=random)" in loop.restored.differences[-1]


class BufferShuffledExamplesIterable:
    """Named as that of Hugging Face's datasets."""

    def __init__(self, ex_iterable: Any) -> None:
        self.ex_iterable = ex_iterable


class HuggingFace(Stream):
    def __init__(self, shuffled: bool) -> None:
        super().__init__()
        self._ex_iterable = BufferShuffledExamplesIterable(None) if shuffled else object()


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("stop_at", [2, 5])
def test_stream_resume_is_inexact_only_in_mid_epoch_with_a_shuffle_buffer(
    attempt: Any, shuffled: bool, stop_at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt("run", lambda: StatefulDataLoader(HuggingFace(shuffled), 2), stop_at, watch_at_end=stop_at == 5)
    _, loop = attempt("run", lambda: StatefulDataLoader(HuggingFace(shuffled), 2))
    inexact = shuffled and stop_at == 2
    assert loop.restored.exact is not inexact
    assert ("its data set shuffles in a buffer" in capsys.readouterr().out) is inexact


def test_loop_refuses_to_resume_a_stream_shorter_than_its_position(attempt: Any) -> None:
    attempt("run", lambda: DataLoader(Stream(), 2), 2)
    with pytest.raises(StateError, match=r"epoch 0 ended after 2 batches, of which 3 had been counted\. Resume"):
        attempt("run", lambda: DataLoader(Stream(4), 2))


DRAWS = random.Random(7)


class Mixed:
    """A collate_fn that draws from a generator: of its module, of its own, or from the global one."""

    def __init__(self, draws: Any):
        self.draws = draws

    def __call__(self, samples: Any) -> Any:
        return [torch.utils.data.default_collate(samples)[0] + self.draws.random()]


def mixed(samples: Any) -> Any:
    return [torch.utils.data.default_collate(samples)[0] + DRAWS.random()]


@pytest.mark.parametrize("stop_at", [2, 7])
@pytest.mark.parametrize(
    "collate_fn",
    [
        Mixed(random.Random(7)),
        Mixed(random.Random(7)).__call__,
        mixed,
        lambda samples, draws=DRAWS: Mixed(draws)(samples),
        Mixed(random),
    ],
)
def test_collate_fn_draws_the_same_after_a_resume_of_job_loader(
    attempt: Any, job: JobHandle, collate_fn: Any, stop_at: int
) -> None:
    def make() -> Any:
        return job.loader(DATA, 2, collate_fn=collate_fn)

    whole, _ = attempt("whole", make)
    first, _ = attempt("run", make, stop_at)
    second, loop = attempt("run", make)
    assert loop.restored.exact
    assert first + second == whole


class Late(Noisy):
    """Makes its generator when it is first read, and in each process another one."""

    draw: Any = None

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        self.draw = self.draw or numpy.random.default_rng(os.getpid() + time.time_ns())
        return (index + torch.tensor(self.draw.random()),)


def noise() -> float:
    return DRAWS.random()


class Helped(Noisy):
    """Draws from a generator of its class, and from one of its module in another function."""

    draw = numpy.random.default_rng(7)

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (index + torch.tensor(self.draw.random() + noise()),)


@pytest.mark.parametrize("data", [Own, Late, Helped])
@pytest.mark.parametrize("workers", [0, 1])
def test_job_loader_seeds_the_generators_of_a_data_set(attempt: Any, job: JobHandle, data: Any, workers: int) -> None:
    def make() -> Any:
        return job.loader(data(), 2, num_workers=workers)

    whole, _ = attempt("whole", make)
    first, _ = attempt("run", make, 7)
    second, _ = attempt("run", make)
    assert first + second == whole


def test_job_loader_without_seed_samples_reports_a_data_set_generator(
    attempt: Any, job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt("run", lambda: job.loader(Own(), 2, seed_samples=False), 2)
    assert "exact" not in capsys.readouterr().out
    _, loop = attempt("run", lambda: job.loader(Own(), 2, seed_samples=False))
    assert not loop.restored.exact
    assert "its data set or collate_fn keeps a Random of its own" in capsys.readouterr().out


def test_resume_reports_a_missing_generator(attempt: Any, capsys: pytest.CaptureFixture[str]) -> None:
    attempt("run", lambda: DataLoader(Late(), 2), 5, watch_at_end=True)
    _, loop = attempt("run", lambda: DataLoader(Late(), 2))
    assert not loop.restored.exact
    assert "loader: it has no generator dataset.draw yet, which the checkpoint has" in capsys.readouterr().out


class Followed(WeightedRandomSampler):
    """Weights that follow the training."""

    def __iter__(self) -> Iterator[int]:
        order = [*super().__iter__()]
        self.weights = self.weights.flip(0) * torch.arange(1.0, 11)
        return iter(order)


@pytest.mark.parametrize("stop_at", [2, 7])
def test_sampler_with_numpys_generator_in_job_loader_resumes_exactly(
    attempt: Any, job: JobHandle, stop_at: int
) -> None:
    whole, _ = attempt("whole", lambda: job.loader(DATA, 2, sampler=Permuted()))
    first, _ = attempt("run", lambda: job.loader(DATA, 2, sampler=Permuted()), stop_at)
    second, loop = attempt("run", lambda: job.loader(DATA, 2, sampler=Permuted()))
    assert first + second == whole
    assert loop.restored.exact


def test_resume_reports_a_sampler_with_another_order(
    attempt: Any, job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    def make() -> Any:
        return job.loader(DATA, 2, sampler=Followed([1.0] * 10, 10))

    whole, _ = attempt("whole", make)
    first, _ = attempt("run", make, 7)
    assert "exact" not in capsys.readouterr().out
    second, loop = attempt("run", make)
    assert first + second != whole
    assert not loop.restored.exact
    assert "its Followed draws another order of epoch 1 than before: what comes is not exact" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_evaluation_with_the_data_sets_generator_is_repeated_after_a_stop(
    job: JobHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.MOST_STEPS", 1)

    def attempt(name: str, stops: bool = False) -> list[Any]:
        settings = WorkerSettings(run_dir=None, checkpoint=CheckpointConfig(url=str(tmp_path / name)))
        seen, data = [], Own()
        with StopSignal() as stop:
            loop = JobHandle(settings, job.group, stop, "1.0").loop(kind(data, 2), {}, epochs=2)
            try:
                for epoch in loop.epochs():
                    seen += [(loop.epoch, batch.tolist()) for (batch,) in epoch]
                    for number in loop.watch(range(5)):
                        seen.append((loop.epoch, number, data[0]))
                        if stops and number == 2:
                            os.kill(os.getpid(), signal.SIGTERM)
            except Stopped:
                return seen
        return seen

    whole = attempt("whole")
    first, second = attempt("run", stops=True), attempt("run")
    assert len(first) < 10
    assert first[:5] + second == whole


@pytest.mark.parametrize("kind", ["a generator of its sampler", "torchdata, a generator", "Mosaic"])
def test_run_with_more_epochs_continues_the_loaders_order(job: JobHandle, tmp_path: Path, kind: str) -> None:
    def attempt(name: str, epochs: int) -> list[Any]:
        settings = WorkerSettings(run_dir=None, checkpoint=CheckpointConfig(url=str(tmp_path / name)))
        loop = JobHandle(settings, job.group, StopSignal(), "1.0").loop(LOADERS[kind](), {}, epochs=epochs)
        return [batch.tolist() for (batch,) in loop]

    whole = attempt("whole", 3)
    assert attempt("run", 2) + attempt("run", 3) == whole
