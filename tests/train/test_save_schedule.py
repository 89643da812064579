"""When the loop saves beside the training, and what it does about saves that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from clusterdp.checkpoint import Checkpointer, CheckpointError, ClaimLost, StateError, list_checkpoints
from clusterdp.config.tree import CheckpointConfig
from clusterdp.rundir import read_events
from clusterdp.storage import LocalStorage
from clusterdp.train import JobHandle, StopSignal
from clusterdp.train.settings import WorkerSettings

Make = Callable[..., JobHandle]


@pytest.fixture
def make(job: JobHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A handle with these settings of checkpoint."""
    monkeypatch.setattr(
        "clusterdp.train.ranks.shared_flags.MOST_STEPS", 1
    )  # these steps take microseconds; look after each

    def settings(**saving: Any) -> JobHandle:
        run_dir = tmp_path / "made"
        (run_dir / "attempts" / "1.0").mkdir(parents=True)
        saving = {"url": str(run_dir / "checkpoints"), **saving}
        return JobHandle(
            WorkerSettings(run_dir=run_dir, checkpoint=CheckpointConfig(**saving)), job.group, StopSignal(), "1.0"
        )

    return settings


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As long as something is in this list, no file can be written."""
    reasons: list[str] = []
    write = LocalStorage.write

    def fail(self: LocalStorage, name: str, chunks: Iterable[memoryview]) -> None:
        if reasons:
            raise OSError(28, reasons[0])
        write(self, name, chunks)

    monkeypatch.setattr(LocalStorage, "write", fail)
    return reasons


def events(job: JobHandle, kind: str) -> list[int]:
    assert job._run is not None
    return [event["step"] for event in read_events(job._run) if event["event"] == kind]


def steps(job: JobHandle) -> list[int]:
    return [info.step for info in list_checkpoints(str(job.saving.url))]


def until(loop: Any, true: Callable[[], Any]) -> Any:
    """Trains on until something is so; the generator that it goes on with."""
    batches = iter(loop)
    for _ in batches:
        if true():
            return batches
    raise AssertionError("the training is over, and it is not so")


ENDLESS: dict[str, Any] = {"epochs": 10**9, "every_steps": 1}


def test_asynchronous_saves_are_committed_during_the_training(make: Make) -> None:
    job = make()
    loop = job.loop(job.loader(range(8), 2), {}, **ENDLESS)
    until(loop, lambda: len(events(job, "saved")) >= 3)
    saved = events(job, "saved")
    assert steps(job)[-1] == saved[-1] < loop.step + 1
    assert saved == sorted(set(saved))


def test_failed_save_is_recorded_and_the_training_continues(
    make: Make, broken: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    job = make(max_failures=1000)
    loop = job.loop(job.loader(range(8), 2), {}, **ENDLESS)
    broken.append("No space left on device")
    batches = until(loop, lambda: len(events(job, "save-failed")) == 2)
    broken.clear()
    for _ in batches:
        if events(job, "saved"):
            break
    before = len(events(job, "save-failed"))  # the next save may have begun before the disk was well again
    broken.append("No space left on device")  # failures in a row: the good one between begins the count anew
    for _ in batches:
        if len(events(job, "save-failed")) > before:
            break
    said = [line for line in capsys.readouterr().err.splitlines() if "was not saved" in line]
    assert "a checkpoint was not saved (1 in a row)" in said[0]
    assert "No space left on device. Free some space there" in said[0]
    assert "(1 in a row)" in said[before]


@pytest.mark.parametrize("async_save", [True, False])
def test_consecutive_failed_saves_beyond_max_failures_end_the_attempt(
    make: Make, broken: list[str], async_save: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterdp.train.loop.save_schedule.LAST_CHANCE_S", 0.0)
    monkeypatch.setattr("clusterdp.train.loop.save_schedule.FIRST_PAUSE_S", 0.0)
    job = make(max_failures=2, async_save=async_save)
    loop = job.loop(job.loader(range(8), 2), {}, **ENDLESS)
    broken.append("Disk quota exceeded")
    with pytest.raises(CheckpointError, match="Disk quota exceeded"):
        for _ in loop:
            pass
    assert len(events(job, "save-failed")) == 4  # the last of them is of the save that was insisted on


def test_requested_save_is_tried_after_a_failed_periodic_save(make: Make, broken: list[str]) -> None:
    job = make(max_failures=0)
    loop = job.loop(job.loader(range(8), 2), {}, epochs=1, every_steps=3)
    for _ in loop:
        broken[:] = ["Input/output error"] if loop.step == 2 else []
        if loop.step == 3:
            break
    loop.save()
    assert steps(job)[-1] == loop.step


def test_lost_claim_ends_the_attempt_despite_max_failures(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make(max_failures=1000)
    loop = job.loop(job.loader(range(8), 2), {}, **ENDLESS)
    assert loop.saves.checkpointer is not None
    loop.saves.checkpointer._committer.may_commit = lambda: False
    with pytest.raises(ClaimLost):
        for _ in loop:
            pass


@pytest.mark.parametrize("async_save", [True, False])
def test_unsavable_state_ends_the_attempt_immediately(make: Make, async_save: bool) -> None:
    class Bad:
        def state_dict(self) -> dict[str, Any]:
            return {"lock": object()}

        def load_state_dict(self, state: Any) -> None: ...

    job = make(max_failures=1000, async_save=async_save)
    with pytest.raises(StateError, match="bad/lock"):
        for _ in job.loop(job.loader(range(8), 2), {"bad": Bad()}, **ENDLESS):
            pass


def test_failed_background_save_does_not_fail_the_following_save(make: Make, broken: list[str]) -> None:
    job = make(max_failures=0)
    saves = job.loop(job.loader(range(8), 2), {}, epochs=1).saves
    assert saves.checkpointer is not None
    broken.append("Input/output error")
    saves.in_background(1)
    assert saves.checkpointer._save is not None
    saves.checkpointer._save._writing._thread.join()
    broken.clear()
    saves.now(2)
    assert steps(job) == [2]
    assert len(events(job, "save-failed")) == 1


def test_saved_step_is_not_saved_again(make: Make) -> None:
    job = make()
    saves = job.loop(job.loader(range(8), 2), {}, epochs=1).saves
    for _ in range(2):
        saves.now(3)
        saves.in_background(3)
    assert steps(job) == [3]
    assert saves.checkpointer is not None
    assert saves.checkpointer.wait() is None, "none is on its way"


def test_timed_save_is_requested_once_until_it_is_done(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    job, asked = make(), []
    saves = job.loop(job.loader(range(8), 2), {}, epochs=1, every_s=1e-9).saves
    monkeypatch.setattr(job.flags, "set", asked.append)
    for _ in range(3):
        saves.close_window()
    assert asked == ["save"]
    saves.now(1)
    saves.close_window()
    assert asked == ["save", "save"]


def test_final_save_compares_replicas_of_all_ranks_but_periodic_saves_do_not(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, bool]] = []
    begin = Checkpointer._begin

    def noted(self: Checkpointer, *args: Any, beside: bool, compare_all: bool = False) -> None:
        asked.append((beside, compare_all))
        begin(self, *args, beside=beside, compare_all=compare_all)

    monkeypatch.setattr(Checkpointer, "_begin", noted)
    job = make()
    for _ in job.loop([1, 2, 3], {}, every_steps=2):
        pass
    assert asked == [(True, False), (False, True)]
    assert job.saving.check_replicas_every == 1
