"""An attempt that resumes compares its first steps with those that followed the save, and names what differs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import StateError
from clusterdp.rundir import RunDir, read_events
from clusterdp.train import Group, JobHandle, Rendezvous, Stopped, StopSignal
from clusterdp.train.settings import WorkerSettings
from clusterdp.train.witness.verdict import Account, compare
from clusterdp.train.witness.witness import STEPS
from tests.train.ranks import running

EPOCHS, BATCHES, SAVED, KILLED = 3, 8, 4, 8
Change = Callable[["Training"], None]


class Killed(Exception):
    pass


class Drawing(Dataset[Any]):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng = numpy.random.default_rng(3)

    def __len__(self) -> int:
        return 2 * BATCHES

    def __getitem__(self, index: int) -> Any:
        return (torch.full((2,), float(index)) + float(self.rng.random()),)


@dataclass
class Training:
    """What a program builds, anew in each attempt."""

    model: Any = None
    optimizer: Any = None
    scheduler: Any = None
    average: dict[str, Any] = field(default_factory=dict)
    data: Any = None
    loader: Any = None

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        self.average = {"weight": torch.zeros(4, 2), "steps": 0, "losses": []}
        self.data = Drawing()
        self.generator = torch.Generator().manual_seed(5)
        sampler: Any = RandomSampler(self.data, generator=self.generator)
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            self.model = nn.parallel.DistributedDataParallel(self.model)
            sampler = DistributedSampler(self.data)
        self.loader = DataLoader(self.data, 2, sampler=sampler)

    @property
    def net(self) -> Any:
        return getattr(self.model, "module", self.model)

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.net, "optimizer": self.optimizer, "scheduler": self.scheduler, "average": self.average}

    def step(self, loop: Any, x: Any) -> None:
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.average["weight"].lerp_(self.net[0].weight.detach(), 0.1)
        self.average["steps"] += 1
        loop.log(loss=loss, seconds=threading.get_ident())


def train(
    folder: Path,
    group: Group,
    name: str,
    change: Change | None = None,
    kill_at: int = 0,
    *,
    stop: bool = False,
    **saving: Any,
) -> None:
    """An attempt, which ends after the step `kill_at`: it is killed, or stopped. change: after the restore."""
    (folder / "attempts" / name).mkdir(parents=True, exist_ok=True)
    keys = {"url": str(folder / "checkpoints"), "every_steps": SAVED, "async_save": False, **saving}
    signals = StopSignal()
    handle = JobHandle(WorkerSettings(run_dir=folder, checkpoint=CheckpointConfig(**keys)), group, signals, name)
    training = Training()
    loop = handle.loop(training.loader, training.state, epochs=EPOCHS)
    try:
        with signals:
            for epoch in loop.epochs():
                for (x,) in epoch:
                    if change is not None:
                        change(training)
                        change = None
                    training.step(loop, x)
                    if loop.step + 1 == kill_at:
                        if not stop:
                            raise Killed
                        os.kill(os.getpid(), signal.SIGTERM)
    except (Killed, Stopped):
        pass
    for thread in threading.enumerate():
        if thread.name.startswith("clusterdp-witness"):
            thread.join()


def verdicts(folder: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(RunDir(folder)) if event["event"] == "witness"]


@pytest.fixture
def attempt(group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Runs the next attempt of a run on one rank, and returns what all have found."""
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.MOST_STEPS", 1)
    count = iter(range(1, 100))

    def run(*args: Any, **options: Any) -> list[dict[str, Any]]:
        train(tmp_path / "run", group, f"1.{next(count)}", *args, **options)
        return verdicts(tmp_path / "run")

    return run


def test_steps_after_a_resume_repeat_those_after_the_save(
    attempt: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert attempt(kill_at=KILLED) == []
    (event,) = attempt()
    assert (event["restored_step"], event["first"], event["last"]) == (SAVED, SAVED + 1, SAVED + STEPS)
    assert (event["verdict"], event["differs"]) == ("same", "")
    assert event["compared"][:2] == ["batch", "random numbers"]
    line = "resumed at step 4: steps 5 to 7 repeat those of attempt 1.1 (batch, random numbers"
    assert line in capsys.readouterr().out


def lose_moments(training: Training) -> None:
    for state in training.optimizer.state.values():
        state["exp_avg"].zero_()


def lose_statistics(training: Training) -> None:
    training.net[1].reset_running_stats()


def lose_average(training: Training) -> None:
    training.average["weight"].zero_()


def lose_counter(training: Training) -> None:
    training.average["steps"] = 0


def lose_rate(training: Training) -> None:
    training.optimizer.param_groups[0]["lr"] = 0.05


def lose_schedule(training: Training) -> None:
    training.scheduler.last_epoch = 0


def lose_weights(training: Training) -> None:
    with torch.no_grad():
        training.net[3].weight.mul_(1.01)


def draw(training: Training) -> None:
    torch.rand(1)


def draw_numpy(training: Training) -> None:
    numpy.random.random()


def draw_of_data(training: Training) -> None:
    training.data.rng.random()


def draw_of_sampler(training: Training) -> None:
    torch.rand(1, generator=training.generator)


LOST = {
    lose_moments: "exp_avg",
    lose_statistics: "running_mean",
    lose_average: "average/weight",
    lose_counter: "average/steps",
    lose_rate: "lr",
    lose_schedule: "scheduler/last_epoch",
    lose_weights: "model/",
    draw: "step 6 got the same batch and other random numbers",
    draw_numpy: "step 6 got the same batch and other random numbers",
    draw_of_data: "step 6 got another batch",
    draw_of_sampler: "has drawn other numbers",
}


@pytest.mark.parametrize("change", LOST, ids=lambda change: change.__name__)
def test_lost_part_is_named(attempt: Callable[..., Any], change: Change, capsys: pytest.CaptureFixture[str]) -> None:
    attempt(kill_at=KILLED)
    (event,) = attempt(change)
    assert event["verdict"] == "other"
    assert LOST[change] in event["differs"]
    assert "resumed at step 4: NOT as in attempt 1.1" in capsys.readouterr().err


@pytest.mark.parametrize("stop_at", [3, BATCHES - 1, BATCHES + 2])
def test_resume_after_a_stop_has_its_state_and_next_batch(attempt: Callable[..., Any], stop_at: int) -> None:
    attempt(kill_at=stop_at, stop=True, every_steps=None)
    (event,) = attempt()
    assert event["verdict"] == "same"
    at = event["restored_step"]
    assert event["last"] == at + (at != BATCHES), "no batch is left at the epoch's end"


def test_next_batch_is_compared_after_a_stop(attempt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    attempt(kill_at=BATCHES + 2, stop=True)
    monkeypatch.setattr("clusterdp.train.loop.position.EpochRng.rewind", lambda self: None)
    (event,) = attempt()
    assert "step 12 got another batch" in event["differs"]


def test_unrestored_part_is_named_after_a_stop(attempt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    attempt(kill_at=3, stop=True)
    monkeypatch.setattr(torch.optim.lr_scheduler.StepLR, "load_state_dict", lambda self, state: None)
    (event,) = attempt()
    assert "the state of step 4 is not the one that was saved, in scheduler/last_epoch" in event["differs"]


def test_nondeterministic_program_is_named(attempt: Callable[..., Any]) -> None:
    attempt(kill_at=KILLED)
    assert "not deterministic" not in attempt(draw, KILLED)[-1]["differs"]
    assert "not deterministic" not in attempt(draw, KILLED)[-1]["differs"]
    event = attempt(lambda training: torch.manual_seed(7), KILLED)[-1]
    assert event["differs"].startswith("the program is not deterministic, for attempt 1.2 resumed there in a third way")


def test_witness_stop_ends_the_attempt(attempt: Callable[..., Any]) -> None:
    attempt(kill_at=KILLED)
    attempt(witness="stop", kill_at=KILLED)
    with pytest.raises(StateError, match=r"checkpoint\.witness"):
        attempt(lose_moments, witness="stop")


def test_witness_off_leaves_out_folder_and_comparison(attempt: Callable[..., Any], tmp_path: Path) -> None:
    attempt(kill_at=KILLED, witness="off")
    assert not (tmp_path / "run" / "witness").exists()
    assert attempt(lose_moments, witness="off") == []


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"token": 1}'])
def test_damaged_witness_is_not_compared(attempt: Callable[..., Any], tmp_path: Path, damage: str) -> None:
    attempt(kill_at=KILLED)
    for path in (tmp_path / "run" / "witness").iterdir():
        path.write_text(damage)
    assert attempt() == []


def test_witness_folder_keeps_the_newest_files(
    attempt: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterdp.train.witness.witness.KEPT", 3)
    attempt(every_steps=1)
    names = sorted(path.name for path in (tmp_path / "run" / "witness").iterdir())
    assert len(names) == 3
    assert names[-1].startswith(f"{EPOCHS * BATCHES:08d}")


def on_ranks(folder: str, name: str, kill_at: int, change: str = "", on: int = 0, stop: bool = False) -> list[Any]:
    group = Group.start(Rendezvous.find(), backend="gloo", timeout_s=60.0)
    is_changed = change and group.rendezvous.rank == on
    train(Path(folder), group, name, globals()[change] if is_changed else None, kill_at, stop=stop)
    return verdicts(Path(folder))


@pytest.mark.parametrize("stop", [False, True])
def test_all_ranks_repeat_the_steps_after_a_save(tmp_path: Path, stop: bool) -> None:
    with running(tmp_path / "a", on_ranks, str(tmp_path / "run"), "1.0", KILLED, "", 0, stop, size=2) as ranks:
        assert ranks.answers == [[], []]
    with running(tmp_path / "b", on_ranks, str(tmp_path / "run"), "1.1", 0, size=2) as ranks:
        (event,) = ranks.answers[0]
    assert event["verdict"] == "same"


def test_rank_with_another_random_number_is_named(tmp_path: Path) -> None:
    with running(tmp_path / "a", on_ranks, str(tmp_path / "run"), "1.0", KILLED, size=2) as ranks:
        assert ranks.answers == [[], []]
    with running(tmp_path / "b", on_ranks, str(tmp_path / "run"), "1.1", 0, "draw", 1, size=2) as ranks:
        (event,) = ranks.answers[0]
    assert "step 6 got the same batch and other random numbers on rank 1" in event["differs"]


def account(**changes: Any) -> Account:
    labels = ["batch 1", "streams 1", "generators 1", "state 3 model", "state 3 optimizer"]
    details = {
        "3": {"model/w": (7, torch.tensor([1.0, 2.0]).numpy().tobytes(), "float32"), "optimizer/lr": (8, b"", "")}
    }
    made = Account("token", 10, "1.0", labels, [[1, 2, 3, 4, 5]] * 2, [{"loss": 1.0}], details, {"1": {"rng": 3}})
    return replace(made, **changes)


def differing(
    weight: list[float], dtype: torch.dtype = torch.float32, loss: float = 1.0, lr: int = 8, crc: int = 6
) -> Any:
    head = torch.tensor(weight, dtype=dtype).view(torch.uint8).numpy().tobytes()
    details = {"3": {"model/w": (crc, head, str(dtype)[6:]), "optimizer/lr": (lr, b"", "")}}
    return account(ranks=[[1, 2, 3, crc, 5]] * 2, details=details, values=[{"loss": loss}])


def test_verdict_is_rounding_if_only_last_bits_differ() -> None:
    assert compare(account(), account()).kind == "same"
    assert compare(account(), differing([1.0, 2.0001])).kind == "rounding"
    assert compare(account(), differing([1.0, 2.1])).kind == "other"
    assert compare(account(), differing([1.0, 2.0001], loss=1.1)).kind == "other"
    assert compare(account(), differing([1.0, 2.0001], loss=1.000001)).kind == "rounding"
    assert compare(account(), differing([1.0, 2.0], lr=9)).kind == "other"
    halves = [differing([1.0, value], torch.bfloat16, crc=crc) for crc, value in ((6, 2.0), (7, 2.02))]
    assert compare(*halves).kind == "rounding"


def test_unknown_numbers_are_left_out_of_the_verdict() -> None:
    unknown = account(ranks=[[0, 2, 3, 4, 5]] * 2)
    verdict = compare(account(), unknown)
    assert verdict.kind == "same"
    assert "batch" not in verdict.compared
