"""An attempt that resumes compares its first steps with those that followed the save, and names what differs."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.state import plain_holders, stateful
from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import StateError
from clusterdp.rundir import RunDir, read_events
from clusterdp.train import Group, JobHandle, Rendezvous, Stopped, StopSignal
from clusterdp.train.loop import position
from clusterdp.train.settings import WorkerSettings
from clusterdp.train.witness import marks
from clusterdp.train.witness.verdict import NUMBER, Account, compare
from clusterdp.train.witness.witness import MEMORY, STEPS, Witness, _write
from tests.torch_version import needs_torch
from tests.train.ranks import running

EPOCHS, BATCHES, SAVED, KILLED = 3, 8, 4, 8
Change = Callable[["Training"], None]


class Killed(Exception):
    pass


class Drawing(Dataset[Any]):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng, self.shift = numpy.random.default_rng(3), 0

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


def lose_betas(training: Training) -> None:
    training.optimizer.param_groups[0]["betas"] = (0.8, 0.99)


def lose_count_of_steps(training: Training) -> None:
    for state in training.optimizer.state.values():
        state["step"].zero_()


def lose_schedule(training: Training) -> None:
    training.scheduler.last_epoch = 0


def lose_weights(training: Training) -> None:
    with torch.no_grad():
        training.net[3].weight.mul_(1.01)


def draw(training: Training) -> None:
    torch.rand(1)


def draw_python(training: Training) -> None:
    random.random()


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
    lose_betas: "betas",
    lose_count_of_steps: "step",
    lose_schedule: "scheduler/last_epoch",
    lose_weights: "model/",
    draw: "step 6 got the same batch and other random numbers",
    draw_python: "step 6 got the same batch and other random numbers",
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


LEFT_OUT = {
    "optimizer": "the state of step 12 is not the one that was saved, in optimizer/",
    "scheduler": "the state of step 12 is not the one that was saved, in scheduler/",
    "average": "the state of step 12 is not the one that was saved, in average/",
    "loop": "step 13 got another batch",
    "generators": "step 13 got another batch",
    "random numbers": "step 13 got the same batch and other random numbers",
}


@pytest.mark.parametrize("part", LEFT_OUT)
def test_part_left_out_of_a_restore_is_named(
    attempt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    load = stateful.load

    def load_others(name: str, thing: Any, state: Any) -> None:
        if name != part:
            load(name, thing, state)

    attempt(kill_at=2 * KILLED)  # in the second epoch
    monkeypatch.setattr(stateful, "load", load_others)
    if part == "average":
        monkeypatch.setattr(plain_holders, "fill", lambda *_: None)
    elif part == "generators":
        monkeypatch.setattr(position, "set_states", lambda *_: [])
    elif part == "random numbers":
        monkeypatch.setattr(Checkpointer, "restore_rng", lambda _: None)
    (event,) = attempt()
    assert event["verdict"] == "other"
    assert LEFT_OUT[part] in event["differs"]


def test_numbers_of_the_data_set_are_compared_quietly(
    attempt: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def shift(training: Training) -> None:
        training.data.shift = 2

    attempt(kill_at=KILLED)
    (event,) = attempt(shift)
    assert event["verdict"] == "same"
    assert "beside what counts, dataset.shift is 2, where it was 0." in capsys.readouterr().out


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
    assert event["differs"].startswith(
        "the program is not deterministic, or has changed, for attempt 1.2 resumed there in a third way"
    )


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
        path.write_text(damage or path.read_text().replace('"details": {', '"details": {"9": 1, '))
    assert attempt() == []


def test_unreadable_values_are_left_out_and_end_no_training(
    attempt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Training.step

    def step_and_log(training: Training, loop: Any, x: Any) -> None:
        step(training, loop, x)
        loop.log(count=10**400)

    monkeypatch.setattr(Training, "step", step_and_log)
    monkeypatch.setattr("clusterdp.train.witness.witness.mark_of", lambda batch: 1 // 0)
    monkeypatch.setattr(Training, "state", property(lambda self: {"a/b": self.net, "optimizer": self.optimizer}))
    attempt(kill_at=KILLED)
    (event,) = attempt()
    assert event["verdict"] == "same"
    assert event["compared"][0] == "random numbers"


def test_random_numbers_of_another_bit_generator_have_a_mark() -> None:
    before = numpy.random.get_bit_generator()  # type: ignore[attr-defined]
    numpy.random.set_bit_generator(numpy.random.PCG64(1))  # type: ignore[attr-defined]
    try:
        first = marks.of_streams()
        numpy.random.random()
        assert marks.of_streams() != first
    finally:
        numpy.random.set_bit_generator(before)  # type: ignore[attr-defined]


@pytest.mark.parametrize("item", [0.5, (1, 0.5), {"loss": 0.5}], ids=["number", "pair", "dict"])
def test_long_list_has_marks_of_its_ends(item: Any) -> None:
    def found(rows: list[Any]) -> dict[str, Any]:
        return dict(marks.StateMarks(stateful.check({"history": {"rows": rows}})).ready())

    rows = [item] * 100_000
    assert len(first := found(rows)) < 300
    assert found(rows[:-1]) != first
    assert found([*rows[:-1], None]) != first
    assert found([None, *rows[1:]]) != first


def read_clock(training: Training) -> None:
    training.average["began"] = time.time()


def test_clock_in_a_plain_dict_passes_witness_stop(attempt: Callable[..., Any]) -> None:
    attempt(read_clock, KILLED)
    (event,) = attempt(read_clock, KILLED, witness="stop")
    assert event["verdict"] == "rounding"
    assert "the state is the same but for numbers such as of a clock, average/began" in event["differs"]


def test_stop_before_an_epoch_leaves_out_the_epoch_before(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.MOST_STEPS", 1)
    for name in ("1.0", "1.1"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
        signals, training = StopSignal(), Training()
        saving = CheckpointConfig(url=str(tmp_path / "checkpoints"))
        handle = JobHandle(WorkerSettings(run_dir=tmp_path, checkpoint=saving), group, signals, name)
        loop = handle.loop(training.loader, training.state, epochs=2)
        with signals, suppress(Stopped):
            for epoch in loop.epochs():
                for _ in loop.watch(range(200)):
                    if loop.step == 3 and name == "1.0":
                        os.kill(os.getpid(), signal.SIGTERM)
                for (x,) in epoch:
                    training.step(loop, x)
                    if loop.step % 3 == 2:
                        break
    (event,) = verdicts(tmp_path)
    assert (event["restored_step"], event["verdict"], event["differs"]) == (3, "same", "")


def test_witness_folder_keeps_the_newest_files(
    attempt: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterdp.train.witness.witness.KEPT", 3)
    attempt(every_steps=1)
    names = sorted(path.name for path in (tmp_path / "run" / "witness").iterdir())
    assert len(names) in (3, 4)
    assert names[-1].startswith(f"{EPOCHS * BATCHES:08d}")


def test_copies_to_memory_do_not_displace_the_accounts_of_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterdp.train.witness.witness.KEPT", 2)
    for token in ("a-1", "a-2" + MEMORY, "a-3" + MEMORY, "a-4" + MEMORY, "a-5" + MEMORY):
        _write(tmp_path, account(token=token), durably=False)
    assert sorted(path.name.partition("-")[2] for path in tmp_path.iterdir()) == [
        "a-1.json",
        "a-4.memory.json",
        "a-5.memory.json",
    ]


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


@needs_torch(2, 13, "its plain kernels differ by more than rounding")
def test_resume_on_another_instruction_set_is_the_same_to_rounding(tmp_path: Path) -> None:
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":  # not in a mark: ranks import this module, and keep theirs
        pytest.skip("this CPU has one set of kernels")
    with running(tmp_path / "a", on_ranks, str(tmp_path / "run"), "1.0", KILLED, size=2) as ranks:
        assert ranks.answers == [[], []]
    other = {"ATEN_CPU_CAPABILITY": "default"}  # an environment variable of torch
    with running(tmp_path / "b", on_ranks, str(tmp_path / "run"), "1.1", 0, size=2, env=other) as ranks:
        (event,) = ranks.answers[0]
    assert event["verdict"] == "rounding"
    assert event["differs"].endswith("on another type of machine.")


def test_rank_with_another_random_number_is_named(tmp_path: Path) -> None:
    with running(tmp_path / "a", on_ranks, str(tmp_path / "run"), "1.0", KILLED, size=2) as ranks:
        assert ranks.answers == [[], []]
    with running(tmp_path / "b", on_ranks, str(tmp_path / "run"), "1.1", 0, "draw", 1, size=2) as ranks:
        (event,) = ranks.answers[0]
    assert "step 6 got the same batch and other random numbers on rank 1" in event["differs"]


class Failing(IterableDataset[Any]):
    """Fails once there is a checkpoint."""

    def __init__(self, checkpoints: Path | None):
        self.checkpoints = checkpoints

    def __iter__(self) -> Any:
        for _ in range(500):
            if self.checkpoints is not None and any(self.checkpoints.glob("step*")):
                raise ValueError("the disk")
            yield torch.ones(2)


def stop_before_failing(folder: str) -> str:
    group = Group.start(Rendezvous.find(), backend="gloo", timeout_s=20.0)
    (Path(folder) / "attempts" / "1.0").mkdir(parents=True, exist_ok=True)
    saving, signals = CheckpointConfig(url=folder + "/checkpoints"), StopSignal()
    handle = JobHandle(WorkerSettings(run_dir=Path(folder), checkpoint=saving), group, signals, "1.0")
    data = Failing(Path(folder) / "checkpoints" if group.rendezvous.rank else None)
    loop = handle.loop(DataLoader(data, 1), {"x": torch.zeros(1)}, epochs=1, every_steps=None)
    try:
        with signals:
            for _ in loop:
                if loop.step == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
    except Stopped:
        return "stopped"
    return "ended"


def test_data_failure_on_one_rank_at_a_stop_ends_all_ranks(tmp_path: Path) -> None:
    with running(tmp_path / "a", stop_before_failing, str(tmp_path / "run"), size=2) as ranks:
        assert ranks.answers == ["stopped", "stopped"]


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


@pytest.mark.parametrize(
    ("kind", "loss", "rate", "batch"),
    [("rounding", 1.001, 8, 1), ("other", 1.1, 8, 1), ("other", 1.001, 9, 1), ("other", 1.001, 8, 2)],
)
def test_another_machine_may_change_losses_by_a_hundredth(kind: str, loss: float, rate: int, batch: int) -> None:
    then, now = account(), differing([1.0, 2.1], loss=loss, lr=rate)
    assert compare(then, now).kind == "other"
    for each, machine in ((then, 7), (now, 8)):
        each.labels = ["machine 0", *each.labels]
        each.ranks = [[machine, *row] for row in each.ranks]
    now.ranks[0][1] = batch
    assert compare(then, now).kind == kind


@pytest.mark.parametrize(
    ("weight", "loss", "machine", "kind", "said"),
    [
        ([1.0, 2.0], 1.0, 1, "same", ""),
        ([1.0, 2.0001], 1.0, 1, "other", "after step 13, model/w differs: something in the step follows the number"),
        ([1.0, 2.0001], 1.0001, 1, "other", "loss 1.0001 in step 11, where it was 1 with the same samples and random"),
        ([1.0, 2.0001], 1.0001, 2, "rounding", "the losses are the same but for rounding, on 1 ranks instead of 2."),
    ],
)
def test_other_number_of_ranks_has_the_same_bits_by_a_tree(
    weight: list[float], loss: float, machine: int, kind: str, said: str
) -> None:
    """On the same type of machine."""
    labels = ["machine 0", "micro-batch 1 0"]
    then = account(labels=labels, ranks=[[1, 5], [1, 5]], by_tree=True)
    crc = 7 if weight[1] == 2 else 6
    now = replace(differing(weight, loss=loss, crc=crc), labels=labels, ranks=[[machine, 5]], by_tree=True)
    verdict = compare(then, now)
    assert (verdict.kind, verdict.differs[: len(said)]) == (kind, said)
    assert ("1 tensors of the state" in verdict.compared) == (machine == 1)
    assert compare(replace(then, by_tree=False), now).kind == ("same" if loss == 1 else "rounding")


def test_unknown_numbers_are_left_out_of_the_verdict() -> None:
    unknown = account(ranks=[[0, 2, 3, 4, 5]] * 2)
    verdict = compare(account(), unknown)
    assert verdict.kind == "same"
    assert "batch" not in verdict.compared


MOMENT, RATE = "optimizer/state/0/exp_avg", "optimizer/param_groups/0/lr"


def after_3(loss: float = 1.0, **values: tuple[int, float, str]) -> Any:
    """An account of the marks (checksum, value, dtype) of a weight, a moment, a rate and others."""
    given = {"weight": (1, 1.0, "float32"), "moment": (1, 1.0, "float32"), "rate": (1, 1.0, "float64")} | values
    names = {"weight": "model/w", "moment": MOMENT, "rate": RATE}
    kinds = {"float32": torch.float32, "float64": torch.float64, NUMBER: torch.float64}
    found = {
        names.get(word, word): (crc, torch.tensor(value, dtype=kinds[dtype]).numpy().tobytes(), dtype)
        for word, (crc, value, dtype) in given.items()
    }
    sums = [sum(crc for crc, _, _ in given.values())] * 2
    return account(labels=["state 3 all"], ranks=[sums[:1], sums[1:]], details={"3": found}, values=[{"loss": loss}])


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("rounding", {"weight": (2, 1.00001, "float32"), "moment": (2, 1.0, "float32")}),
        ("rounding", {"weight": (2, 1.00001, "float32"), "loss": 1.000001}),
        ("other", {"weight": (2, 1.00001, "float32")}),  # an average that was lost, and is near to the model's values
        ("other", {"weight": (2, 1.0, "float32"), "moment": (2, 1.0, "float32")}),  # values that are not kept differ
        ("other", {"rate": (2, 1.00001, "float64"), "moment": (2, 1.00001, "float32")}),
        ("rounding", {"time": (2, 9.0, NUMBER)}),
        ("rounding", {"time": (2, 9.0, NUMBER), "moment": (2, 1.00001, "float32")}),
        ("other", {"time": (2, 9.0, NUMBER), "moment": (2, 3.0, "float32")}),
    ],
)
def test_verdict_of_small_differences(kind: str, changed: dict[str, Any]) -> None:
    assert compare(after_3(time=(1, 1.0, NUMBER)), after_3(**{"time": (1, 1.0, NUMBER), **changed})).kind == kind


def test_difference_on_another_rank_outweighs_rounding_on_rank_0() -> None:
    then = account(labels=["state 3 a", "state 3 b"], ranks=[[1, 1], [1, 1]], details=after_3().details)
    now = replace(then, ranks=[[2, 1], [2, 2]], details=after_3(moment=(2, 1.00001, "float32")).details)
    verdict = compare(then, now)
    assert (verdict.kind, "b differs on rank 1" in verdict.differs) == ("other", True)


def test_sentence_about_random_numbers_leaves_out_an_unknown_batch() -> None:
    then = account(labels=["batch 1", "streams 1"], ranks=[[0, 1]])
    assert compare(then, replace(then, ranks=[[0, 2]])).differs.startswith("step 11 began with other random numbers")


def test_stop_does_not_wait_for_a_hanging_data_set(
    attempt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, ends = threading.Event(), threading.Event()
    read = Drawing.__getitem__

    def slow(self: Drawing, index: int) -> Any:
        if hangs.is_set():
            ends.wait()
        return read(self, index)

    monkeypatch.setattr(Drawing, "__getitem__", slow)
    saved = Witness.saved

    def save(self: Witness, *args: Any, **options: Any) -> None:
        saved(self, *args, **options)
        hangs.set()

    monkeypatch.setattr(Witness, "saved", save)
    attempt(kill_at=3, stop=True, every_steps=None)  # returns although the data set hangs
    hangs.clear()
    ends.set()
    (event,) = attempt()
    assert (event["verdict"], event["last"]) == ("same", event["restored_step"])
