"""The loop, in one process: what it restores, counts, saves and says."""

from __future__ import annotations

import math
import os
import random
import signal
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from clusterdp.checkpoint import list_checkpoints
from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import ConfigError, StateError
from clusterdp.rundir import read_events
from clusterdp.train import JobHandle, Loop, Stopped, StopSignal
from clusterdp.train.ranks.shared_flags import SharedFlags
from clusterdp.train.settings import WorkerSettings

DATA = TensorDataset(torch.arange(10.0))


class Counter:
    """A state that a test can look at."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def seen(
    job: JobHandle, loader: Any, stop_at: int | None = None, **options: Any
) -> tuple[list[Any], Loop[Any], Counter]:
    """The batches of an attempt that gets a signal in step `stop_at`. Each draws a random number, as dropout would."""
    stop = job.this_rank.stop = StopSignal()
    job.this_rank.flags = SharedFlags(None, stop)
    counter = Counter()
    batches = []
    with stop:
        loop = job.loop(loader, {"counter": counter}, **{"epochs": 3, **options})
        try:
            for (batch,) in loop:
                counter.value += 1
                batches.append((loop.epoch, *batch.tolist(), torch.rand(()).item(), random.random()))
                if loop.step + 1 == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
        except Stopped:
            loop.batches.opened = (
                None  # its workers end now, as with a process; the garbage collector waits 5 s for each
            )
    return batches, loop, counter


@pytest.fixture
def another(job: JobHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes handles for further runs, with folders of their own."""
    monkeypatch.setattr(
        "clusterdp.train.ranks.shared_flags.MOST_STEPS", 1
    )  # these steps take microseconds; look after each

    def make(name: str, **saving: Any) -> JobHandle:
        run_dir = tmp_path / name
        (run_dir / "attempts" / "1.0").mkdir(parents=True)
        torch.manual_seed(5)
        random.seed(5)
        settings = WorkerSettings(
            run_dir=run_dir, checkpoint=CheckpointConfig(url=str(run_dir / "checkpoints"), **saving)
        )
        return JobHandle(settings, job.group, job.stop_signal, "1.0")

    return make


def saved(job: JobHandle) -> list[int]:
    assert job._run is not None
    return [event["step"] for event in read_events(job._run) if event["event"] == "saved"]


def foreign_loader(workers: int = 0) -> Any:
    """With a sampler that we did not make, which draws from the global random numbers."""
    return DataLoader(DATA, batch_size=2, shuffle=False, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("stop_at", [1, 3, 5, 9])
def test_loop_resumed_at_any_step_yields_the_same_batches_and_random_numbers(
    another: Any, ours: bool, workers: int, stop_at: int
) -> None:
    def loader(job: JobHandle) -> Any:
        return job.loader(DATA, 2, num_workers=workers) if ours else foreign_loader(workers)

    whole, _, _ = seen(another("whole"), loader(another("unused")))
    job = another("run")
    first, _, _ = seen(job, loader(another("unused2")), stop_at)
    assert stop_at <= len(first) < 15
    job = another_attempt(job)
    second, _, counter = seen(job, loader(job))
    assert first + second == whole
    assert counter.value == 15


@pytest.mark.parametrize("stop_at", [3, 5, 7, 12])
def test_cosine_lr_schedule_over_the_loader_length_is_unchanged_by_a_resume(another: Any, stop_at: int) -> None:
    whole = rates(another("whole"))
    job = another("run")
    first = rates(job, stop_at)
    assert len(first) < 15
    assert first + rates(another_attempt(job)) == whole
    assert whole[0] == 1
    assert whole == sorted(whole, reverse=True)


def rates(job: JobHandle, stop_at: int | None = None) -> list[float]:
    """The learning rate of each step, by a schedule over 3 epochs of len(loader) steps, and another in its length."""
    stop = job.this_rank.stop = StopSignal()
    job.this_rank.flags = SharedFlags(None, stop)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    loader = job.loader(DATA, 2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 + math.cos(math.pi * step / (3 * len(loader)))) / 2
    )
    found: list[float] = []
    with stop:
        loop = job.loop(loader, {"optimizer": optimizer, "scheduler": scheduler}, epochs=3)
        try:
            for epoch in loop.epochs():
                for i, _ in enumerate(epoch, epoch.done):
                    assert i == loader.done == loop.step % 5  # type: ignore[attr-defined]
                    found.append(scheduler.get_last_lr()[0])
                    optimizer.step()
                    scheduler.step()
                    if loop.step + 1 == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
                    if i + 1 == len(loader):
                        assert loop.window_ends
        except Stopped:
            pass
    return found


@pytest.mark.parametrize("at", [(0, 2), (1, 6)], ids=str)
def test_epoch_left_by_break_is_not_trained_again_after_an_interrupted_evaluation(
    another: Any, at: tuple[int, int]
) -> None:
    whole = evaluated(another("whole"), leave_at=3)
    job = another("run")
    first = evaluated(job, at, leave_at=3)
    assert len(first) == 4 * (at[0] + 1)
    assert first + evaluated(another_attempt(job), leave_at=3) == whole
    assert len(whole) == 12


@pytest.mark.parametrize("leaves", ["epoch", "training", "flat"])
def test_epoch_left_by_break_counts_as_ended_unless_the_training_ends_too(job: JobHandle, leaves: str) -> None:
    loop = job.loop(job.loader(DATA, 2), {}, epochs=2)
    ended = []
    if leaves == "flat":
        for _ in loop:
            break
    else:
        for epoch in loop.epochs():
            for _ in epoch:
                break
            if leaves == "training":
                break
            ended += [loop.position.ended for _ in loop.watch([0])]
    ended += [loop.position.ended for _ in loop.watch([0])]
    assert ended == ([True, True, False] if leaves == "epoch" else [False])


def test_epoch_left_after_a_watch_in_its_batch_is_saved_as_ended(job: JobHandle) -> None:
    loop = job.loop(job.loader(DATA, 2), {})
    for epoch in loop.epochs():
        for _ in epoch:
            assert list(loop.watch([0])) == [0]
            break
        loop.save()
        assert loop.position.ended


def counted_epochs(
    job: JobHandle, make_loader: Any, die_in: int | None = None, stop_at: int | None = None, **saving: Any
) -> list[Any]:
    """Trains three epochs that are left by a break. After each, a counter changes, and random numbers are drawn."""
    counter, seen = Counter(), []
    stop = job.this_rank.stop = StopSignal()
    job.this_rank.flags = SharedFlags(None, stop)
    loop = job.loop(make_loader(job), {"counter": counter}, epochs=3, **saving)
    with stop, suppress(Stopped):
        for epoch in loop.epochs():
            for i, (numbers,) in enumerate(epoch, epoch.done):
                if epoch.index == die_in and i == 1:
                    return seen
                seen.append((epoch.index, numbers.tolist(), torch.rand(()).item()))
                if loop.step == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                if i == 2:
                    break
            counter.value += 1
            seen.append((epoch.index, counter.value, torch.rand(()).item()))
    return seen


@pytest.mark.parametrize(
    "make_loader",
    [
        lambda job: job.loader(DATA, 2),
        lambda job: DataLoader(DATA, 2, shuffle=True, generator=torch.Generator().manual_seed(3)),
        lambda job: DataLoader(DATA, 2, shuffle=True),
    ],
    ids=["own", "generator", "global"],
)
def test_code_after_an_epoch_left_by_break_runs_once_around_a_save(another: Any, make_loader: Any) -> None:
    whole = counted_epochs(another("whole", async_save=False), make_loader)
    job = another("run", async_save=False)
    first = counted_epochs(job, make_loader, die_in=1, every_steps=3)
    assert saved(job) == [3]
    assert first[:4] + counted_epochs(another_attempt(job), make_loader) == whole


def test_code_after_an_epoch_left_by_break_runs_once_around_a_stop(another: Any) -> None:
    def make_loader(job: JobHandle) -> Any:
        return job.loader(DATA, 2)

    whole = counted_epochs(another("whole", async_save=False), make_loader)
    ends = set()
    for at in range(7):
        job = another(f"run{at}", async_save=False)
        first = counted_epochs(job, make_loader, stop_at=at)
        ends.add(whole.index(first[-1]))
        assert first + counted_epochs(another_attempt(job), make_loader) == whole
    assert {3, 7} <= ends  # the code after the epochs, which ran before the save


@pytest.mark.parametrize("keep", [False, True])
def test_epoch_is_whole_after_a_look_at_its_first_batch(job: JobHandle, keep: bool) -> None:
    loop = job.loop(job.loader(DATA, 2), {})
    seen = []
    for epoch in loop.epochs():
        batches = iter(epoch)
        first = next(batches)[0].tolist()
        if not keep:
            del batches
        for (batch,) in epoch:
            batches = None  # type: ignore[assignment]
            seen.append((*batch.tolist(), loop.position.ended))
    assert len(seen) == 5
    assert (*first, False) == seen[0]
    assert not any(ended for *_, ended in seen)


def test_iterator_kept_from_an_earlier_epoch_does_not_end_the_next_epoch(job: JobHandle) -> None:
    loop = job.loop(job.loader(DATA, 2), {}, epochs=3)
    ended = []
    for epoch in loop.epochs():
        batches = iter(epoch)  # closes the iterator of the epoch before
        next(batches)
        next(batches)
        ended.append(loop.position.ended)
    assert ended == [False] * 3


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("at", [(0, 2), (1, 0), (1, 6)], ids=str)
def test_interrupted_evaluation_is_repeated_with_the_same_random_numbers(
    another: Any, at: tuple[int, int], in_background: bool
) -> None:
    """Its iterator draws, and so does what is evaluated. A stop saves within it, or a periodic save before a kill."""
    whole = evaluated(another("whole"))
    job = another("run", async_save=False)
    first = evaluated(job, at, in_background)
    assert 5 <= len(first) < 15
    assert first + evaluated(another_attempt(job)) == whole


def evaluated(
    job: JobHandle, at: tuple[int, int] | None = None, in_background: bool = False, leave_at: int | None = None
) -> list[float]:
    """The random number of each step, of three epochs with an evaluation after each. at: epoch and batch of the
    evaluation that is interrupted. leave_at: the batch after which each epoch is left."""
    stop = job.this_rank.stop = StopSignal()
    job.this_rank.flags = SharedFlags(None, stop)
    found = []
    with stop:
        loop: Loop[Any] = job.loop(job.loader(DATA, 2), {}, epochs=3)
        try:
            for epoch in loop.epochs():
                for i, _ in enumerate(epoch, epoch.done):
                    found.append(torch.rand(()).item())
                    if i == leave_at:
                        break
                order = torch.randperm(10).tolist()
                for i, _ in enumerate(loop.watch(DataLoader(Subset(DATA, order), 1))):
                    torch.rand(3), random.random()
                    if (epoch.index, i) == at:
                        if in_background:
                            job.this_rank.flags.set("save")
                        else:
                            os.kill(os.getpid(), signal.SIGTERM)
                    if in_background and (epoch.index, i - 3) == at:
                        raise Stopped("killed", loop.step)
        except Stopped:
            pass
    return found


def another_attempt(job: JobHandle) -> JobHandle:
    """Of the same run; its random numbers begin elsewhere, as those of a new process do."""
    torch.manual_seed(99)
    random.seed(99)
    return JobHandle(job._settings, job.group, job.stop_signal, "1.1")


class Noise(torch.utils.data.Dataset[tuple[torch.Tensor]]):
    """Augmented at random in the loader's workers."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (torch.rand(()),)


def test_random_numbers_in_loader_workers_are_unchanged_by_a_resume(another: Any) -> None:
    job = another("whole")
    whole, _, _ = seen(job, job.loader(Noise(), 2, num_workers=1))
    job = another("run")
    first, _, _ = seen(job, job.loader(Noise(), 2, num_workers=1), stop_at=5)
    assert len(first) == 6  # stopped at the end of the second epoch
    job = another_attempt(job)
    second, _, _ = seen(job, job.loader(Noise(), 2, num_workers=1))
    assert first + second == whole


def test_loop_saves_every_n_steps_and_at_the_end(another: Any) -> None:
    job = another("run", async_save=False)
    seen(job, job.loader(DATA, 2), every_steps=4)
    url = str(job._settings.checkpoint.url)
    assert [info.step for info in list_checkpoints(url)] == [8, 12, 15]  # keep_last is 3
    assert saved(job) == [4, 8, 12, 15]


def test_loop_stops_only_between_accumulation_windows(another: Any) -> None:
    """Five batches an epoch, by two: windows of 2, 2 and 1."""
    whole, _, _ = seen(another("whole"), another("unused").loader(DATA, 2), accumulate=2)
    for stop_at in range(1, 10):
        job = another(f"run{stop_at}")
        first, _, _ = seen(job, job.loader(DATA, 2), stop_at, accumulate=2)
        assert len(first) in (4, 5, 7, 9, 10, 12)
        job = another_attempt(job)
        second, _, _ = seen(job, job.loader(DATA, 2), accumulate=2)
        assert first + second == whole


def test_accumulation_window_is_shorter_at_the_end_of_an_epoch(job: JobHandle) -> None:
    loop = job.loop(job.loader(DATA, 2), {}, epochs=2, accumulate=3)
    windows = [(loop.window, loop.window_ends) for _ in loop]
    epoch = [(3, False), (3, False), (3, True), (2, False), (2, True)]
    assert windows == epoch * 2


def test_save_and_watch_within_an_accumulation_window_are_refused(job: JobHandle) -> None:
    loop = job.loop(job.loader(DATA, 2), {}, accumulate=3)
    batches = iter(loop)
    next(batches)
    with pytest.raises(StateError, match=r"loop\.save\(\): 1 of 3 batches into a window"):
        loop.save()
    next(batches)
    with pytest.raises(StateError, match=r"loop\.watch\(\): 2 of 3 batches into a window"):
        next(loop.watch(range(3)))


def test_save_in_the_loop_body_counts_its_step_as_done(another: Any) -> None:
    job = another("run")
    loop = job.loop(job.loader(DATA, 2), {})
    for _ in loop:
        if loop.step == 2:
            loop.save()
            break
    job = another_attempt(job)
    again = job.loop(job.loader(DATA, 2), {})
    assert len(list(again)) == 2


def test_accumulate_0_is_refused(job: JobHandle) -> None:
    with pytest.raises(ConfigError, match="accumulate: 0"):
        job.loop(job.loader(DATA, 2), {}, accumulate=0)


def test_loop_saves_by_elapsed_seconds_and_at_the_end(job: JobHandle) -> None:
    seen(job, job.loader(DATA, 1), every_s=1e-9, epochs=2)
    steps = saved(job)
    assert steps[0] < 20
    assert steps[-1] == 20


def test_evaluation_after_an_epoch_is_repeated_only_if_interrupted(another: Any) -> None:
    ends: list[tuple[str, int]] = []

    def attempt(job: JobHandle, name: str, stop_in_epoch: int | None) -> None:
        stop = job.this_rank.stop = StopSignal()
        job.this_rank.flags = SharedFlags(None, stop)
        with stop:
            loop = job.loop(job.loader(DATA, 2), {"counter": Counter()}, epochs=3)
            try:
                for epoch in loop.epochs():
                    for _ in epoch:
                        pass
                    if epoch.index == stop_in_epoch:
                        os.kill(os.getpid(), signal.SIGTERM)
                    for _ in loop.watch(range(100)):
                        pass
                    ends.append((name, epoch.index))
            except Stopped:
                pass

    job = another("run")
    attempt(job, "first", 1)
    attempt(another_attempt(job), "second", None)
    assert ends == [("first", 0), ("second", 1), ("second", 2)]


def test_epoch_prints_as_its_number(another: Any) -> None:
    job = another("run")
    loop = job.loop(job.loader(DATA, 2), {}, epochs=2)
    told = [f"{epoch} {(epoch,)} {epoch:02d}" for epoch in loop.epochs() if [*epoch]]
    assert told == ["0 (0,) 00", "1 (1,) 01"]


def pass_thrice(loop: Any) -> None:
    for _ in range(3):
        assert len([*loop]) == 15


def pass_within_epochs(loop: Any) -> None:
    for _ in loop.epochs():
        for _ in loop:
            raise AssertionError


def read_the_loader(loop: Any) -> None:
    for _ in loop.epochs():
        assert [*loop.batches.loader]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (pass_thrice, r"^loop: the training has ended, and a pass over a loop is all its epochs \(epochs=3\)\. Write "),
        (pass_within_epochs, r"^loop: the training is under way, and a pass over a loop is all its epochs \(epochs=3"),
        (read_the_loader, r"^loop: epoch 0 was not read\. Write `for batch in epoch:` in it\.$"),
    ],
)
def test_loop_not_read_epoch_by_epoch_is_a_config_error(another: Any, program: Any, said: str) -> None:
    job = another("run")
    loop = job.loop(job.loader(DATA, 2), {}, epochs=3)
    with pytest.raises(ConfigError, match=said):
        program(loop)


def test_resumed_loop_of_a_finished_run_has_no_batches(another: Any) -> None:
    job = another("run")
    _, loop, _ = seen(job, job.loader(DATA, 2))
    again = another_attempt(job)
    batches, loop, counter = seen(again, again.loader(DATA, 2))
    assert batches == []
    assert (loop.step, loop.total_steps, counter.value) == (15, 15, 15)


def test_training_continued_for_more_epochs_has_their_total_steps(another: Any) -> None:
    job = another("run")
    seen(job, job.loader(DATA, 2), epochs=1)
    again = another_attempt(job)
    loop = again.loop(again.loader(DATA, 2), {"counter": Counter()}, epochs=3)
    next(iter(loop))
    assert loop.total_steps == 15


def test_stop_after_a_save_of_the_same_step_does_not_save_again(job: JobHandle) -> None:
    seen(job, job.loader(DATA, 2), stop_at=3, every_steps=1)
    steps = saved(job)
    assert len(steps) == len(set(steps))


def test_loop_trains_without_a_run_folder(group: Any) -> None:
    job = JobHandle(WorkerSettings(), group, StopSignal(), "local.1")
    batches, _, _ = seen(job, job.loader(DATA, 2))
    assert len(batches) == 15


@pytest.mark.parametrize("part", [object(), {"fun": print}, {"set": {1}}])
def test_unsavable_state_is_refused_without_a_run_folder(group: Any, part: Any) -> None:
    job = JobHandle(WorkerSettings(), group, StopSignal(), "local.1")
    with pytest.raises(StateError, match="part"):
        next(iter(job.loop(job.loader(DATA, 2), {"part": part})))


def test_state_key_named_loop_is_refused(job: JobHandle) -> None:
    with pytest.raises(StateError, match=r"state\.loop"):
        job.loop(job.loader(DATA, 2), {"loop": Counter()})


def test_metric_records_have_the_total_steps(job: JobHandle) -> None:
    loop = job.loop(job.loader(DATA, 2), {}, epochs=2)
    for (batch,) in loop:
        loop.log(loss=batch.sum())
    job.metrics.flush()
    assert job.metrics.path is not None
    lines = job.metrics.path.read_text().splitlines()
    assert '"step":1,"total":10,"epoch":0,"loss":' in lines[0]
    assert '"step":10,"total":10,"epoch":1' in lines[-1]


def test_stop_saves_before_flushing_metrics_to_sinks(another: Any) -> None:
    job = another("run")
    had: list[tuple[int, list[int]]] = []
    job.metrics.every_s = 3600.0  # the first step's record, and the newest one when it stops
    job.metrics.sinks.append(lambda record: had.append((record["step"], saved(job))))
    seen(job, job.loader(DATA, 2), stop_at=3)
    (_, before), (step, meanwhile) = had
    assert before == []
    assert meanwhile == [step]


def test_loop_log_does_not_keep_the_autograd_graph_of_a_loss(job: JobHandle) -> None:
    weight, alive = torch.ones(3, requires_grad=True), []
    loop = job.loop([1, 2, 3], {})
    for _ in loop:
        activations = weight * 2
        alive.append(weakref.ref(activations))
        loop.log(loss=activations.square().sum())
        del activations
        assert [kept() for kept in alive] == [None] * len(alive)
    assert len(alive) == 3


def test_job_wrap_returns_a_model_without_parameters_unchanged(job: JobHandle) -> None:
    net = torch.nn.ReLU()
    assert job.wrap(net) is net


def test_loop_records_time_spent_in_startup_steps_saves_and_evaluation(
    another: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("clusterdp.train.output.attempt_record.monotonic", lambda: now)
    job = another("run", every_steps=4)
    counter = Counter()
    loop = job.loop(job.loader(DATA, 2), {"counter": counter}, epochs=2)
    now += 100
    for epoch in loop.epochs():
        for _ in epoch:
            now += 3
            if loop.step in (1, 6):
                for _ in loop.watch(range(1)):
                    now += 50
        now += 20
        for _ in loop.watch(range(2)):
            now += 10
    now += 7
    job.record.time.tell()
    assert job._run is not None
    told = [event for event in read_events(job._run) if event["event"] == "spent"][-1]
    waited = told["saves_s"]  # by another clock
    assert waited > 0
    assert told["startup_s"] + told["restore_s"] == pytest.approx(100 + 3)  # with the first step
    assert told["steps_s"] == pytest.approx(3 * 9 - waited, abs=waited)
    assert told["evaluation_s"] == pytest.approx(2 * (50 + 40) + 7 - waited, abs=waited)
    assert told["step"] == 10


def test_max_steps_ends_the_training_also_after_a_resume(another: Any) -> None:
    def limited(job: JobHandle, **options: Any) -> tuple[list[Any], Loop[Any], Counter]:
        job.phases.max_steps = 8
        return seen(job, job.loader(DATA, 2), **options)  # 5 steps an epoch

    job = another("straight")
    straight, _, _ = seen(job, job.loader(DATA, 2))
    job = another("limited")
    first, _, _ = limited(job, stop_at=6)
    job = another_attempt(job)
    rest, loop, counter = limited(job)
    assert [*first, *rest] == straight[:8] and first and rest
    assert (loop.step, loop.total_steps, counter.value, loop.over) == (8, 8, 8, True)
    assert limited(another_attempt(job))[0] == []


class Resettable:
    """As NVIDIA DALI's iterators: at the end of an epoch, it stays there until reset(), and its length is not known."""

    def __init__(self) -> None:
        self.place, self._size = 0, -1

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.place == 3:
            raise StopIteration
        self.place += 1
        return self.place

    def reset(self) -> None:
        self.place = 0


def test_iterator_with_reset_is_read_again_in_each_epoch(job: JobHandle) -> None:
    loop = job.loop(Resettable(), {}, epochs=3)  # type: ignore[arg-type]
    assert list(loop) == [1, 2, 3] * 3
    assert loop.batches.per_epoch is None


def load_data() -> Any:
    yield (torch.zeros(2),)


def test_function_in_place_of_a_loader_is_refused_with_a_remedy(job: JobHandle) -> None:
    said = "load_data is a function, .* Pass an object whose __iter__ calls it"
    watched = job.loop([], {}).watch(load_data)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"loop.watch: {said}"):
        list(watched)
    with pytest.raises(ConfigError, match=f"loader: {said}"):
        job.loop(load_data, {}, name="second")  # type: ignore[arg-type]


def test_loop_end_on_a_single_rank_ends_training_after_the_current_step(job: JobHandle) -> None:
    loop = job.loop([torch.zeros(1)] * 100, {}, epochs=3)
    for epoch in loop.epochs():
        for _ in epoch:
            if loop.step == 2:
                loop.end()
    assert (loop.step, loop.epoch) == (3, 1)


@pytest.mark.parametrize("counts_on", [False, True])
@pytest.mark.parametrize("stop_at", [1, 5])
def test_break_in_a_resumed_epoch_is_reported_unless_earlier_epochs_ended_there(
    another: Any, capsys: pytest.CaptureFixture[str], counts_on: bool, stop_at: int
) -> None:
    """Each epoch is left after four of ten batches. An attempt that begins in the first does not know after which."""

    def run(job: JobHandle, stop_at: int | None = None) -> int:
        stop = job.this_rank.stop = StopSignal()
        job.this_rank.flags = SharedFlags(None, stop)
        loop = job.loop(job.loader(DATA, 1), {}, epochs=2)
        with stop:
            try:
                for epoch in loop.epochs():
                    for i, _ in enumerate(epoch, epoch.done if counts_on else 0):
                        if loop.step + 1 == stop_at:
                            os.kill(os.getpid(), signal.SIGTERM)
                        if i == 3:
                            break
            except Stopped:
                pass
        return loop.step

    assert run(another("whole")) == 8
    job = another("run")
    first = run(job, stop_at)
    assert 0 < first % 4 < 3
    assert "this attempt began it" not in capsys.readouterr().out
    assert (run(another_attempt(job)) == 8) is counts_on
    left = 4 if counts_on else 6
    said = f"epoch {first // 4} was left after batch {left}, and this attempt began it after batch {first % 4}. A"
    assert (said in capsys.readouterr().out) is (first < 4 if counts_on else True)
