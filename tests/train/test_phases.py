"""Programs that train more than once: each phase has its own position and state, and none is trained twice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from clusterdp.checkpoint import CheckpointError, list_checkpoints
from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import ConfigError, EntryError, StateError
from clusterdp.rundir import read_events
from clusterdp.train import JobHandle, Stopped, StopSignal, Trainer
from clusterdp.train.ranks.group import seed_everything
from tests.train import phased, programs
from tests.train.ranks import Ranks, running, wait_until
from tests.train.runs import Run
from tests.train.test_batches import Mosaic

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11, torch 2.13
    # An attempt that goes on where an epoch has ended steps its scheduler first.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
]


class Killed(BaseException):
    """What a test of one process has for SIGKILL: from here on nothing is done in this attempt."""


class Program:
    """Attempts of one run, in this process. `done` is what each has done, by attempt."""

    def __init__(self, job: JobHandle, name: str, folder: Path, **saving: Any):
        saving = {"every_steps": 4, "every_s": None, "async_save": False, "keep_last": 99, **saving}
        checkpoint = CheckpointConfig(url=str(folder / "checkpoints"), **saving)
        self.settings = replace(job._settings, run_dir=folder, checkpoint=checkpoint)
        self.group, self.name = job.group, name
        self.done: list[list[str]] = []
        self.job = job

    def attempt(self, fault: tuple[str, str] | None = None, **settings: Any) -> Any:
        """What it ended with; None if it was stopped or killed."""
        done: list[str] = []
        self.done.append(done)
        seed_everything(0, rank=0)
        with StopSignal() as stop:
            settings = replace(self.settings, **settings) if settings else self.settings
            self.job = JobHandle(settings, self.group, stop, f"1.{len(self.done)}")

            def strike(where: str) -> None:
                done.append(where)
                if fault == ("KILL", where):
                    raise Killed
                if fault == ("TERM", where):
                    os.kill(os.getpid(), signal.SIGTERM)

            try:
                return phased.ended(self.job, phased.PROGRAMS[self.name](self.job, strike))
            except (Stopped, Killed):
                return None

    def commits(self) -> list[tuple[str, int]]:
        return [(info.phase, info.step) for info in list_checkpoints(str(self.settings.checkpoint.url))]

    def events(self, kind: str) -> list[Any]:
        assert self.job._run is not None
        return [event for event in read_events(self.job._run) if event["event"] == kind]


Make = Callable[..., Program]


@pytest.fixture
def program(job: JobHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(
        "clusterdp.train.ranks.shared_flags.MOST_STEPS", 1
    )  # these steps take microseconds; look after each
    return lambda name, folder="run", **saving: Program(job, name, tmp_path / folder, **saving)


FAULTS = {
    "finetune": ("unnamed 11", "between 1", "head 5", "all 4"),
    "folds": ("fold0 4", "between 0", "fold1 5", "fold2 3"),
    "gan": ("warm-up 2", "between", "gan 5"),
}


def phase(where: str) -> str:
    return where.split()[0]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("finetune", "KILL"),
        ("folds", "TERM"),
        ("gan", "TERM"),
        pytest.param("gan", "KILL", marks=pytest.mark.slow),
        pytest.param("finetune", "TERM", marks=pytest.mark.slow),
        pytest.param("folds", "KILL", marks=pytest.mark.slow),
    ],
)
def test_phased_run_preempted_or_killed_anywhere_equals_the_uninterrupted_run(
    program: Make, name: str, how: str
) -> None:
    whole = program(name, "whole").attempt()
    for where in FAULTS[name]:
        run = program(name, where.replace(" ", "-"))
        end = run.attempt((how, where))
        assert end is None if how == "KILL" else end in (None, whole), where  # no loop follows to heed it
        assert run.attempt() == whole, where
        first, second = run.done
        assert where in first
        if how == "TERM" and phase(where) == "between":
            assert first[-1] == where, "it began the next phase"
        over = {phase(step) for step in first} - {phase(first[-1]), "between"}
        assert not {phase(step) for step in second} & over, f"{where}: it has trained {over} again"


def test_step_numbers_continue_across_phases_and_records_name_their_phase(program: Make) -> None:
    run = program("finetune")
    run.attempt()
    assert run.commits() == [
        *[("", step) for step in (4, 8, 12, 12)],  # the last one is of the closed epoch
        *[("head", step) for step in (16, 20, 20)],
        *[("all", step) for step in (24, 28, 28)],
    ]
    assert [event.get("phase") for event in run.events("saved")][3:5] == [None, "head"]
    run.job.metrics.flush()
    assert run.job.metrics.path is not None
    rows = [json.loads(line) for line in run.job.metrics.path.read_text().splitlines()]
    assert [(row["step"], row["total"]) for row in (rows[0], rows[-1])] == [(1, 12), (28, 28)]
    assert {row.get("phase") for row in rows} == {None, "head", "all"}


def test_retention_keeps_the_last_checkpoint_of_each_phase(program: Make) -> None:
    run = program("finetune", keep_last=1)
    whole = run.attempt()
    assert run.commits() == [("", 12), ("head", 20), ("all", 28)]
    assert run.attempt() == whole
    assert run.done[1] == ["between 1", "between head", "between all"]
    assert len(run.commits()) == 3


def test_resumed_run_prints_its_complete_phases(program: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = program("folds")
    run.attempt()
    capsys.readouterr()
    run.attempt(("KILL", "between 1"))
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "clusterdp: phase 'fold0' is complete (2 epochs, step 8): nothing left to do.",
        "clusterdp: phase 'fold1' is complete (2 epochs, step 8): nothing left to do.",
    ]


@pytest.mark.parametrize(
    ("step", "again"),
    [
        pytest.param(8, ["unnamed 8", "head 0", "all 0"], marks=pytest.mark.slow),  # those after it are begun anew
        (16, ["head 4", "all 0"]),
        pytest.param(24, ["all 4"], marks=pytest.mark.slow),
    ],
)
def test_resume_step_repeats_all_later_steps_and_phases_only_once(program: Make, step: int, again: list[str]) -> None:
    run = program("finetune")
    whole = run.attempt()
    assert run.attempt(("KILL", "all 6"), resume_step=step) is None
    done = [where for where in run.done[1] if phase(where) != "between"]
    assert [next(where for where in done if phase(where) == name) for name in map(phase, again)] == again
    assert {phase(where) for where in done} == set(map(phase, again))
    assert run.attempt() == whole, "the attempt after that knows nothing of the step"
    assert {phase(where) for where in run.done[2]} == {"between", "all"}


def test_resume_step_without_a_checkpoint_lists_the_steps_of_all_phases(program: Make) -> None:
    run = program("gan")
    run.attempt()
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 5\. Those that exist: 4, 6, 10, 14, 18"):
        run.attempt(resume_step=5)


def test_renamed_phases_are_refused_at_resume(program: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = program("gan")
    run.attempt(("KILL", "gan 5"))
    before = run.commits()
    monkeypatch.setitem(phased.PROGRAMS, "gan", phased.finetune)
    with pytest.raises(CheckpointError, match="of the phase without a name, and there are some of phase 'warm-up'"):
        run.attempt()
    assert run.commits() == before


def test_start_from_applies_only_to_the_first_phase(program: Make, tmp_path: Path) -> None:
    torch.manual_seed(9)
    other = nn.Linear(phased.WIDTH, phased.WIDTH)
    torch.save(other.state_dict(), tmp_path / "other.pt")
    run = program("gan", start_from=str(tmp_path / "other.pt"), start_only=["g"])
    run.attempt()
    assert len(run.events("started-from")) == 1


def train(job: JobHandle, **options: Any) -> Any:
    """A loop to its end."""
    loop = job.loop([1, 2, 3], {}, **options)
    for _ in loop:
        pass
    return loop


def test_second_loop_needs_a_new_and_valid_phase_name(job: JobHandle) -> None:
    train(job)
    with pytest.raises(EntryError, match=r'has no name, .* Give it one: job\.loop\(\.\.\., name="finetune"\)'):
        train(job)
    train(job, name="finetune")
    with pytest.raises(EntryError, match="phase 'finetune': a loop or Trainer has this name"):
        train(job, name="finetune")
    with pytest.raises(ConfigError, match=r"'a/b' cannot name a phase\. Use at most 64 letters"):
        train(job, name="a/b")


def test_several_unnamed_loops_are_allowed_without_checkpoints(job: JobHandle) -> None:
    bare = replace(job._settings, run_dir=None, checkpoint=CheckpointConfig())
    job = JobHandle(bare, job.group, job.stop_signal, "local.1")
    assert [train(job).step, train(job).step, job.step] == [3, 3, 6]


def test_loop_after_an_unfinished_phase_is_refused(job: JobHandle) -> None:
    loop = job.loop([1, 2, 3], {}, epochs=3)
    for _ in loop:
        if loop.step == 4:
            break
    with pytest.raises(EntryError, match="the training: it was left at step 4, before its end"):
        train(job, name="next")


def test_loop_save_of_an_inactive_phase_is_refused(job: JobHandle) -> None:
    first, second = (job.loop([1, 2, 3], {}, name=name) for name in ("first", "second"))
    with pytest.raises(StateError, match=r"loop\.save\(\): phase 'second' is not at work"):
        second.save()
    assert len(list(first)) == 3
    first.save()
    assert len(list(second)) == 3
    with pytest.raises(StateError, match="phase 'first' is not at work"):
        first.save()


def test_stop_during_evaluation_of_an_earlier_model_saves_the_active_phase(job: JobHandle) -> None:
    teacher, student = trainer(job, "teacher"), trainer(job, "student")
    teacher.fit(phased.data(), epochs=1)

    def ask(_: Any, values: Any) -> None:
        if student.loop is not None and student.loop.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            teacher.evaluate(phased.data(400), batch_size=4)

    student.callbacks.on_step.append(ask)
    with job.stop_signal.install(), pytest.raises(Stopped):
        student.fit(phased.data(), epochs=1, batch_size=4)
    newest = list_checkpoints(str(job.saving.url))[-1]
    assert (newest.phase, newest.step) == ("student", 1 + 2)


def trainer(job: JobHandle, name: str = "", **options: Any) -> Trainer:
    torch.manual_seed(0)
    net = nn.Linear(phased.WIDTH, 1)
    return Trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1), job=job, name=name, **options)


def test_fit_on_other_data_requires_another_named_trainer(job: JobHandle) -> None:
    first = trainer(job)
    x, y = phased.data().tensors
    first.fit((x, y), epochs=1)
    first.fit((x.clone(), y), epochs=2)
    with pytest.raises(EntryError, match=r'not the data of the first fit.* Trainer\(model, \.\.\., name="finetune"\)'):
        first.fit(phased.data(), epochs=3)
    with pytest.raises(EntryError, match=r'Give it one: .* Trainer\(\.\.\., name="finetune"\)'):
        trainer(job).fit((x, y))
    second = trainer(job, "second")
    assert second.fit(phased.data(), epochs=2)["epoch"] == [1, 2]
    with pytest.raises(EntryError, match="the training: it is over, for phase 'second' has begun since"):
        first.fit((x, y), epochs=3)


def test_repeated_fit_without_checkpoints_trains_up_to_the_total_epochs(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = replace(job._settings, run_dir=None, checkpoint=CheckpointConfig())
    alone = trainer(JobHandle(bare, job.group, job.stop_signal, "local.1"))
    data = phased.data()
    for epochs in (2, 2, 3):
        alone.fit(data, epochs=epochs, batch_size=4)
    assert alone.history["epoch"] == [1, 2, 3]
    assert alone.history["step"] == [6, 12, 18]
    assert "the training is complete (2 epochs, step 12): nothing left to do." in capsys.readouterr().out


class Kept(IterableDataset[Any]):
    """As a Hugging Face stream: a state that was loaded stays for every pass with its number."""

    def __init__(self) -> None:
        self.epoch, self.at, self.begin = 0, 0, {"epoch": 0, "at": 0}

    def __iter__(self) -> Iterator[Any]:
        for at in range(self.begin["at"] if self.begin["epoch"] == self.epoch else 0, 12):
            self.at = at + 1
            yield torch.tensor([100.0 * self.epoch + self.at]), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state


SHARED: dict[str, Any] = {
    "a generator": lambda: DataLoader(phased.data(), 6, shuffle=True, generator=torch.Generator().manual_seed(7)),
    "torchdata": lambda: StatefulDataLoader(phased.data(), 6, shuffle=True),
    "torchdata, a generator": lambda: StatefulDataLoader(
        phased.data(), 6, shuffle=True, generator=torch.Generator().manual_seed(7)
    ),
    "Hugging Face": lambda: StatefulDataLoader(Kept(), 6),
    "Hugging Face alone": Kept,
    "Mosaic": lambda: DataLoader(Mosaic(), 2),
}


QUICK = ("torchdata, a generator", "Hugging Face alone", "Mosaic")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in SHARED]
)
def test_loader_shared_by_two_phases_resumes_exactly(job: JobHandle, tmp_path: Path, kind: str) -> None:
    """It is stopped within the first phase, at the end of an epoch, at its end, in the second, and between the two."""

    def attempt(folder: str, number: int, *, until: int | None = None, between: bool = False) -> list[Any]:
        settings = replace(
            job._settings, run_dir=tmp_path / folder, checkpoint=CheckpointConfig(url=str(tmp_path / folder))
        )
        handle = JobHandle(settings, job.group, StopSignal(), f"1.{number}")
        seed_everything(number, rank=0)  # a new process draws other numbers, until it has restored those of before
        loader = SHARED[kind]()
        seen: list[Any] = []
        for name in ("first", "second"):
            loop = handle.loop(loader, {}, epochs=2, name=name)
            for x, *_ in loop:
                seen.append((name, x.tolist()))
                if len(seen) == until:
                    loop.save()
                    return seen
            if between:
                break
        return seen

    whole = attempt("whole", 0)
    epoch = len(whole) // 4
    for stop_at in (1, epoch, 2 * epoch, 3 * epoch, 3 * epoch + 1, None):
        first = attempt(f"{stop_at}", 0, until=stop_at, between=stop_at is None)
        assert (stop_at, first + attempt(f"{stop_at}", 1)) == (stop_at, whole)


@pytest.mark.parametrize("sampler", [None, RandomSampler(range(8))])  # type: ignore[arg-type]
def test_job_loader_is_read_by_two_phases_of_one_epoch(job: JobHandle, sampler: Any) -> None:
    loader = job.loader(range(8), 2, sampler=sampler)
    first, second = ([x.tolist() for x in job.loop(loader, {}, name=name)] for name in ("first", "second"))
    assert len(first) == 4
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("name", FAULTS)
def test_phased_run_interrupted_on_two_ranks_equals_the_uninterrupted_run(tmp_path: Path, name: str, how: str) -> None:
    """A fault in each phase and between two, one after the other, in one run."""
    size, ends = 2, []
    for faults in ([], FAULTS[name]):
        record = tmp_path / ("faults" if faults else "whole")
        record.mkdir()
        params = {"program": name, "record": str(record)}
        run = Run(record / "run", "tests.train.phased:main", params, checkpoint={"every_steps": 4, "keep_last": 1})
        for number, fault in enumerate([*([how, where, size - 1] for where in faults), None]):
            config = json.loads(run.dir.config.read_text())
            config["params"]["fault"] = fault
            run.dir.config.write_text(json.dumps(config))
            ranks = attempt_of(run, f"1.{number}", size)
            if how == "SIGTERM" or fault is None:
                assert ranks.join() == [0] * size, ranks.log
        ends.append([json.loads((record / f"end-{rank}").read_text()) for rank in range(size)])
    assert ends[0] == ends[1]


def attempt_of(run: Run, name: str, size: int) -> Ranks:
    """To its end; where one rank is killed, the others are too, as by srun."""
    with running(run.path / name, programs.run_worker, str(run.path), size=size, env=run.attempt(name)) as ranks:
        codes = lambda: [process.exitcode for process in ranks.processes]  # noqa: E731
        wait_until(lambda: None not in codes() or any(codes()), "the end of the attempt")
        return ranks
