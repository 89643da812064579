"""A disk that is full, and has room again later: the training goes on, and only what tells of it may be lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import CheckpointError, list_checkpoints
from clusterdp.config.tree import CheckpointConfig, MetricsConfig
from clusterdp.errors import RunError
from clusterdp.rundir import append_line, read_events, read_lines
from clusterdp.train import JobHandle
from clusterdp.train.loop import save_schedule
from clusterdp.train.output import best_effort
from clusterdp.train.output.metric_log import MetricLog
from clusterdp.train.output.sinks import TensorBoard
from clusterdp.train.process import attempt
from clusterdp.train.process.attempt import Outcome
from clusterdp.train.ranks.claim import Claim
from tests.small_disk import fill, small_disk
from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run


class Disk:
    """A file system of 4 MB."""

    def __init__(self, path: Path):
        self.path = path
        self.filler = path / "filler"

    def fill(self) -> None:
        fill(self.filler)

    def clear(self) -> None:
        self.filler.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", mb=4) as path:
        yield Disk(path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long between two tries."""
    for module in (save_schedule, best_effort):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
        monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.01)


@pytest.fixture
def run(disk: Disk, job: JobHandle, monkeypatch: pytest.MonkeyPatch) -> JobHandle:
    """A job whose run folder is on that disk."""
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.MOST_STEPS", 1)
    folder = disk.path / "run"
    saving = CheckpointConfig(url=str(folder / "checkpoints"), every_steps=4, async_save=False, keep_last=2)
    settings = replace(job._settings, run_dir=folder, checkpoint=saving, metrics=MetricsConfig(every_s=0.0))
    return JobHandle(settings, job.group, job.stop_signal, "1.0")


def train(run: JobHandle, at: dict[int, Any]) -> list[int]:
    """48 steps, with something done in some of them; the steps that were made."""
    model = torch.nn.Linear(100, 100)
    done = []
    loop = run.loop(run.loader(range(48), 1), {"model": model})
    for _ in loop:
        at.get(loop.step, lambda: None)()
        loop.log(loss=0.5, note="x" * 3000)  # two lines do not fit into a page
        done.append(loop.step)
    return done


def test_temporarily_full_disk_loses_metrics_and_checkpoints_but_no_steps(
    disk: Disk, run: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(run, {9: disk.fill, 17: disk.clear}) == list(range(48))
    assert run._run is not None
    assert [info.step for info in list_checkpoints(str(run.saving.url))] == [48, 48]  # the last one after the epoch
    recorded = [record["step"] for record in read_lines(run.metrics.path or Path())]
    assert recorded == sorted(recorded)
    assert recorded[-1] == 48
    assert 12 not in recorded
    said = capsys.readouterr().err.splitlines()
    metrics = [line for line in said if str(run.metrics.path) in line]
    assert len(metrics) == 2, said
    assert "No space left on device. What goes there is lost until it can be written again" in metrics[0]
    assert f"can be written again; {48 - len(recorded)} records were lost" in metrics[1]
    assert len([line for line in said if "a checkpoint was not saved" in line]) == 2  # of the steps 12 and 16


def test_run_with_logs_on_a_temporarily_full_disk_ends_with_outcome_done(disk: Disk) -> None:
    params = {"filler": str(disk.filler), "at": 5, "until": 17}
    run = Run(
        disk.path / "run",
        "tests.train.jobs:fills_its_disk",
        params,
        checkpoint={"async_save": False},
        metrics={"every_s": 0.0},
        train={"backend": "gloo"},
    )
    env = run.attempt("1.0")
    args = (programs.run_worker, str(run.path))
    with running(disk.path / "logs", *args, size=2, env=env) as ranks:
        assert ranks.join() == [0, 0], ranks.log
        log = ranks.rank_log(0)
    assert run.outcome("1.0") == "done finished 24"
    assert run.saved("1.0") == 24
    assert run.last("step") == 24
    assert "lines were lost here because this log could not be written." in log
    assert "records were lost" in log


@pytest.mark.usefixtures("quick")
def test_training_waits_for_disk_space_after_too_many_failed_saves(
    disk: Disk, run: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps would be lost, if it went on and ended."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            disk.clear()

    monkeypatch.setattr(save_schedule, "time", SimpleNamespace(**{**vars(time), "sleep": sleep}))  # only there
    assert train(run, {5: disk.fill}) == list(range(48))
    assert len(waited) == 3
    assert run._run is not None
    saved = [event["step"] for event in read_events(run._run) if event["event"] == "saved"]
    assert saved[:3] == [4, 21, 24]  # those of 8, 12, 16 and 20 failed


@pytest.mark.usefixtures("quick")
def test_permanently_full_disk_ends_the_attempt_and_keeps_older_checkpoints(
    disk: Disk, run: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_schedule, "LAST_CHANCE_S", 0.05)
    with pytest.raises(CheckpointError, match=r"No space left on device\. Free some space there"):
        train(run, {5: disk.fill})
    assert run.step == 21
    assert [info.step for info in list_checkpoints(str(run.saving.url))] == [4]


@pytest.mark.usefixtures("quick")
def test_last_save_of_a_run_waits_for_disk_space(
    disk: Disk, run: JobHandle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clusterdp.train.loop.save_schedule.time.sleep", lambda seconds: disk.clear())
    train(run, {47: disk.fill})
    assert [info.step for info in list_checkpoints(str(run.saving.url))] == [44, 48]
    assert "the training waits for this save, for up to 600 s." in capsys.readouterr().err


def test_append_line_on_a_full_disk_leaves_no_partial_line(disk: Disk) -> None:
    file = disk.path / "lines.jsonl"
    append_line(file, {"n": 0})
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        append_line(file, {"n": "x" * 20_000})  # of which a part fits into the page that the file has
    disk.clear()
    append_line(file, {"n": 1})
    assert file.read_text() == '{"n":0}\n{"n":1}\n'


@pytest.mark.usefixtures("quick")
def test_claim_and_outcome_files_wait_for_disk_space(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterdp.train.output.best_effort.time.sleep", lambda seconds: disk.clear())
    disk.fill()
    claim = Claim.take(disk.path / "claims", "1.0", "aaaa")
    assert claim.is_newest()
    disk.fill()
    attempt.write_outcome(disk.path / "attempt" / "outcome", Outcome("done", "finished", 7))
    assert (disk.path / "attempt" / "outcome").read_text() == "done finished 7\n"


@pytest.mark.usefixtures("quick")
def test_unwritable_outcome_on_a_full_disk_is_an_error_after_waiting(
    disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.fill()
    with pytest.raises(RunError, match=r"outcome: cannot be written: No space left on device.*'done' at step 7"):
        attempt.write_outcome(disk.path / "attempt" / "outcome", Outcome("done", "finished", 7), 0.05)
    assert capsys.readouterr().err.count("waits up to 0 s for room") == 1


def test_claim_is_newest_raises_os_error_on_a_full_disk(tmp_path: Path, monkeypatch: Any) -> None:
    """Neither that the claim is lost, which would end the run, nor that it stands."""
    claim = Claim.take(tmp_path / "claims", "1.0", "aaaa")

    def full(*words: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(OSError, match="No space left"):
        claim.is_newest()


def test_failed_claim_check_before_pruning_keeps_old_and_new_checkpoints(
    job: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = replace(job.saving, every_steps=1, keep_last=1, async_save=False)
    handle = JobHandle(replace(job._settings, checkpoint=saving), job.group, job.stop_signal, "1.0")
    loop = handle.loop(handle.loader(range(4), 1), {})
    assert loop.saves.checkpointer is not None
    committer, asked = loop.saves.checkpointer._committer, [0]

    def may_commit() -> bool:
        asked[0] += 1
        if asked[0] % 2 == 0:  # the first question is before the commit
            raise OSError(28, "No space left on device")
        return True

    committer.may_commit = may_commit
    list(loop)
    assert loop.saves._tolerate.failures == 0
    assert [info.step for info in list_checkpoints(str(saving.url))] == [1, 2, 3, 4, 4]  # the last one after the epoch


class Full:
    """A sink on a full disk, at first."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.calls = 0

    def __call__(self, record: Any) -> None:
        self.calls += 1
        if self.calls <= 2:
            raise OSError(28, "No space left on device")
        self.seen.append(record["step"])


def test_metric_sink_gets_records_again_after_a_full_disk(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Full()
    log = MetricLog(None, sinks=[sink])
    for step in range(4):
        log.write(step=step)
    assert sink.seen == [2, 3]
    said = capsys.readouterr().err.splitlines()
    assert ["Full: No space left on device" in said[0], "2 records were lost" in said[1]] == [True, True]


def test_tensorboard_sink_opens_a_new_file_after_a_full_disk() -> None:
    class Writer:
        def __init__(self, folder: str, **options: Any):
            made.append(self)

        def add_scalar(self, *words: Any, **options: Any) -> None:
            if self is made[0]:
                raise OSError(28, "No space left on device")

    made: list[Any] = []
    board = TensorBoard.__new__(TensorBoard)
    board._make, board._folder, board._options, board._writer = Writer, Path("x"), {}, None
    with pytest.raises(OSError, match="No space"):
        board({"time": 1.0, "step": 1, "loss": 0.5})
    board({"time": 2.0, "step": 2, "loss": 0.5})
    assert len(made) == 2


def test_event_ledger_continues_after_an_event_lost_to_a_full_disk(job: JobHandle, monkeypatch: Any) -> None:
    """As append_line() does it: without a disk of its own."""
    full = [True]

    def write(fd: int, data: Any) -> int:
        if full[0]:
            raise OSError(122, "Disk quota exceeded")
        return really(fd, data)

    really = os.write
    monkeypatch.setattr("clusterdp.rundir.ledger.os.write", write)
    job.event("lost")
    job.log(accuracy=0.5)
    full[0] = False
    job.event("kept")
    assert job._run is not None
    assert [event["event"] for event in read_events(job._run)] == ["kept"]
