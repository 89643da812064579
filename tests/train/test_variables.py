"""The variables of an epoch go on after a resume in it, as in a run without an interruption.

Programs have no assert here: pytest makes locals() of it, and the variables of a function with locals() are left alone
before Python 3.13.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import tempfile
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterdp.config.tree import CheckpointConfig
from clusterdp.train import JobHandle, Stopped, StopSignal
from clusterdp.train.settings import WorkerSettings

STEPS, EPOCHS = 3, 2
Moment = Callable[[str], None]


class Meter:
    def __init__(self) -> None:
        self.sum, self.history = 0.0, [0.0]

    def add(self, value: float) -> None:
        self.sum += value
        self.history.append(value)


def sums(job: JobHandle, loop: Any, at: Moment) -> Any:
    seen = []
    for epoch in loop.epochs():
        total, number, losses = 0.0, 0, []
        for (x,) in epoch:
            loss = x.sum()
            total, number = total + loss.item(), number + 1
            losses.append(loss.item())
            at("batch")
        for _ in loop.watch(range(2)):
            at("evaluation")
        seen.append((epoch.index, total / number, losses, loss.item()))
    return seen


def containers(job: JobHandle, loop: Any, at: Moment) -> Any:
    seen = []
    for epoch in loop.epochs():
        recent, count, stats = deque[float](maxlen=3), Counter[str](), {"a": [0.0]}
        by_kind = defaultdict[str, list[float]](list)
        alias, meter, names = stats["a"], Meter(), SimpleNamespace(seen=0)
        for (x,) in epoch:
            recent.append(x.sum().item())
            count["late" if x[0] > 2 else "early"] += 1
            by_kind["all"].append(x[0].item())
            alias.append(x[1].item())
            meter.add(x[0].item())
            names.seen += 1
            at("batch")
        for _ in loop.watch(range(2)):
            at("evaluation")
        by_kind["new"].append(1.0)
        seen.append(repr((recent, count, by_kind, stats, alias is stats["a"], meter.sum, meter.history, names)))
        alias.clear()
    return seen


def carried(job: JobHandle, loop: Any, at: Moment) -> Any:
    seen = []
    for epoch in loop.epochs():
        hidden, average = torch.zeros(2), None
        for (x,) in epoch:
            hidden = torch.tanh(hidden + x / 10)
            average = x[0] if average is None else 0.9 * average + 0.1 * x[0]
            at("batch")
        seen.append((hidden.tolist(), float(average)))  # type: ignore[arg-type]
    return seen


def in_a_function(job: JobHandle, loop: Any, at: Moment) -> Any:
    def train(epoch: Any) -> float:
        total = 0.0
        for i, (x,) in enumerate(epoch, epoch.done):
            total += i * x[0].item()
            at("batch")
        return total / STEPS

    return [train(epoch) for epoch in loop.epochs()]


def through_generators(job: JobHandle, loop: Any, at: Moment) -> Any:
    def doubled(batches: Any) -> Iterator[Any]:
        for (x,) in batches:
            yield 2 * x

    seen = []
    for epoch in loop.epochs():
        total = 0.0
        for x in doubled(epoch):
            total += x[0].item()
            at("batch")
        seen.append(total)
    return seen


class Program:
    def run(self, loop: Any, at: Moment) -> Any:
        seen = []
        for epoch in loop.epochs():
            self.start()
            seen.append(self.train(epoch, at))
        return seen

    def start(self) -> None: ...

    def train(self, epoch: Any, at: Moment) -> Any:
        meter, most = Meter(), None
        for (x,) in epoch:
            meter.add(x[0].item())
            most = x[0].item() if most is None else max(most, x[0].item())
            at("batch")
        return meter.sum, meter.history, most


def method(job: JobHandle, loop: Any, at: Moment) -> Any:
    return Program().run(loop, at)


def cells(job: JobHandle, loop: Any, at: Moment) -> Any:
    seen = []
    for epoch in loop.epochs():
        total, steps = 0.0, 0

        def mean() -> float:
            return total / steps  # noqa: B023

        for (x,) in epoch:
            total += x[0].item()
            steps += 1
            at("batch")
        seen.append(mean())
    return seen


def left_early(job: JobHandle, loop: Any, at: Moment) -> Any:
    seen = []
    for epoch in loop.epochs():
        number = 0
        for (x,) in epoch:
            number += 1
            last = x.sum().item()
            at("batch")
            if number == STEPS - 1:
                break
        for _ in loop.watch(range(2)):
            at("evaluation")
        seen.append((number, last))
    return seen


def starts_late(job: JobHandle, loop: Any, at: Moment) -> Any:
    seen = []
    for epoch in loop.epochs():
        total, first = 0.0, epoch.done  # `first` is this attempt's
        for _ in loop.watch(range(2)):
            at("before the batches")
        for i, (x,) in enumerate(epoch):
            total += x.sum().item()
            last = first + i
            at("batch")
        seen.append((total, last))
    return seen


def with_alias_in_the_state(job: JobHandle, loop: Any, at: Moment) -> Any:
    seen, log = [], loop.state["log"]
    for epoch in loop.epochs():
        losses = log["losses"]
        for (x,) in epoch:
            if len(losses) >= 2:
                losses = log["losses"] = []
            losses.append(x[0].item())
            at("batch")
        seen.append((losses is log["losses"], list(losses)))
    return seen


def with_own_tensors(job: JobHandle, loop: Any, at: Moment) -> Any:
    """Tensors that cannot be written to, or belong to a graph."""
    seen = []
    for epoch in loop.epochs():
        leaf = torch.ones(1, requires_grad=True)
        grown, wide = leaf.exp(), torch.tensor([1.0]).expand(2)
        with torch.inference_mode():
            still = torch.ones(2)
        for (x,) in epoch:
            ((grown * x).sum() + (wide * still).sum()).backward(retain_graph=True)
            at("batch")
        seen.append(wide.tolist())
    return seen


def chooses_an_object(job: JobHandle, loop: Any, at: Moment) -> Any:
    seen = []
    for epoch in loop.epochs():
        easy, hard = SimpleNamespace(level=1), SimpleNamespace(level=5)
        chosen = easy
        for (x,) in epoch:
            if x[0] > 3:
                chosen = hard
            at("batch")
        seen.append((easy.level, hard.level, hasattr(chosen, "level")))  # the choice itself is not kept
    return seen


PROGRAMS = [sums, containers, carried, in_a_function, through_generators, method, cells, left_early]
PROGRAMS += [starts_late, with_alias_in_the_state, with_own_tensors, chooses_an_object]


@pytest.fixture
def attempt(job: JobHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs an attempt of a program, with a stop at the n-th of its moments: returns its result, or None."""
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.MOST_STEPS", 1)

    def run(name: str, program: Callable[..., Any], stop_at: int = -1, **options: Any) -> Any:
        run_dir = tmp_path / name
        (run_dir / "attempts" / "1.0").mkdir(parents=True, exist_ok=True)
        settings = WorkerSettings(run_dir=run_dir, checkpoint=CheckpointConfig(url=str(run_dir / "checkpoints")))
        stop, moments = StopSignal(), [0]
        handle = JobHandle(settings, job.group, stop, "1.0")
        data = options.pop("data", torch.utils.data.TensorDataset(torch.arange(2.0 * STEPS)))
        state = options.pop("state", {"log": {"losses": []}})
        loop = handle.loop(handle.loader(data, 2), state, epochs=EPOCHS, **options)

        def at(kind: str) -> None:
            if moments[0] == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            moments[0] += 1

        with stop:
            try:
                return program(handle, loop, at)
            except Stopped:
                return None

    return run


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_variables_of_an_epoch_go_on_after_a_stop_at_each_moment(
    attempt: Callable[..., Any], program: Callable[..., Any]
) -> None:
    whole = attempt("whole", program)
    stops = 0
    for moment in range(40):
        first = attempt(f"run-{moment}", program, moment)
        if first is not None:
            assert first == whole
            break  # the program has fewer moments
        stops += 1
        rest = attempt(f"run-{moment}", program)
        assert rest == whole[-len(rest) :], moment
    assert stops >= (STEPS - 1) * EPOCHS - 1


@pytest.mark.parametrize("cut", ["lazy", "too long", "too large", "process"])
def test_variables_of_an_epoch_begin_anew_beside_one_of_another_kind(
    attempt: Callable[..., Any], cut: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def program(job: JobHandle, loop: Any, at: Moment) -> Any:
        seen = []
        for epoch in loop.epochs():
            number, values, frames = 0, [], []
            with tempfile.TemporaryDirectory() as folder:
                for (x,) in epoch:
                    if cut == "lazy" and number == 0:
                        writer = io.StringIO()
                    number += 1
                    if cut == "lazy":
                        writer.write(str(x))
                    elif cut == "process":
                        Path(folder, "x").write_text("of this process")
                    elif cut == "too long":
                        values += [0.0] * 60_000
                    else:
                        frames.append(torch.zeros(3_000_000))
                    at("batch")
            seen.append((number, len(values) // 60_000, len(frames)))
        return seen

    whole = attempt("whole", program)
    assert attempt("run", program, STEPS) is None
    resumed = attempt("run", program)
    reports = [line for line in capsys.readouterr().out.splitlines() if "begin anew" in line]
    if cut == "process":
        assert resumed == whole[1:]
    else:
        assert resumed[0] != whole[1], "of the rest of the epoch alone"
        assert resumed[1:] == whole[2:]
    assert bool(reports) == (cut != "process")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("at_begin", [False, True])
def test_save_succeeds_with_any_value_of_the_program(attempt: Callable[..., Any], at_begin: bool) -> None:
    class Broken:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise ValueError("no")

    def made() -> list[Any]:
        itself: list[Any] = [0]
        itself.append(itself)
        chain: Any = ()
        for _ in range(3000):
            chain = (1, chain)
        strange = Counter([lambda: 0])
        return [itself, chain, strange, Broken(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), {1.5, 2}]

    def program(job: JobHandle, loop: Any, at: Moment) -> Any:
        a, b, c, d, e, f = made()
        for epoch in loop.epochs():
            if not at_begin:
                a, b, c, d, e, f = made()
            for (x,) in epoch:
                a.append(x)
                c[lambda: 1] += 1
                b, f = (x, b), f | {3}
                str(d)
                loop.save()
                at("batch")
        return e.is_nested

    assert attempt("run", program, STEPS) is None
    assert attempt("run", program)


def test_variables_of_an_epoch_go_on_after_two_stops(attempt: Callable[..., Any]) -> None:
    whole = attempt("whole", containers)
    assert attempt("run", containers, STEPS + 3) is None
    assert attempt("run", containers, 0) is None
    assert attempt("run", containers) == whole[1:]


def test_completed_loop_gives_the_code_after_it_its_last_variables(attempt: Callable[..., Any]) -> None:
    def program(job: JobHandle, loop: Any, at: Moment) -> Any:
        steps = 0
        for (x,) in loop:
            loss = x.sum().item()
            steps += 1
        return loss, steps

    assert attempt("run", program)[0] == attempt("run", program)[0]
    assert attempt("run", program)[1] == 0, "older than the epoch: of the state"


def test_forget_makes_a_variable_begin_anew(attempt: Callable[..., Any]) -> None:
    whole = attempt("whole", cells)
    assert attempt("run", cells, STEPS) is None
    assert attempt("run", cells, forget=["total"]) != whole[1:]


def test_values_of_clocks_begin_anew(attempt: Callable[..., Any]) -> None:
    seen = list[float]()

    def program(job: JobHandle, loop: Any, at: Moment) -> None:
        for epoch in loop.epochs():
            end = -1.0
            for _ in epoch:
                seen.append(end)
                end = time.monotonic()
                at("batch")

    attempt("run", program, 2)
    del seen[:]
    attempt("run", program)
    assert seen[0] == -1.0


def test_tensors_of_the_state_are_not_copied(attempt: Callable[..., Any]) -> None:
    same = list[bool]()

    def program(job: JobHandle, loop: Any, at: Moment) -> Any:
        model = loop.state["model"]
        for epoch in loop.epochs():
            latest = None
            for _ in epoch:
                same.append(latest is None or latest["weight"].data_ptr() == model.weight.data_ptr())
                latest = model.state_dict()  # the model's own tensors
                at("batch")
        return latest

    attempt("run", program, STEPS, state={"model": torch.nn.Linear(1, 1)})
    assert attempt("run", program, state={"model": torch.nn.Linear(1, 1)})
    assert all(same)


def test_changes_older_than_the_epoch_are_named_once(
    attempt: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config, kept = {"rate": 0.1}, {"best": 0.0}

    def program(job: JobHandle, loop: Any, at: Moment) -> None:
        steps, replay, fresh, meter, begun = 0, [object()], torch.zeros(2), Meter(), 0.0
        for (x,) in loop:
            fresh = x * config["rate"]
            steps, begun = steps + 1, time.time() - 0 * begun
            replay.append(fresh)
            with torch.no_grad():  # as if it could end without `loss`: Python 3.10 has a jump to its handler
                loss = fresh.sum()
            meter.add(loss.item())
            kept["best"] += 1
            at("batch")
            loop.save()

    attempt("run", program, state={"kept": kept})
    lines = [line for line in capsys.readouterr().out.splitlines() if "older than an epoch" in line]
    assert len(lines) == 1
    assert "older than an epoch: meter.sum, meter.history, replay, steps. A resume begins them anew" in lines[0]
    attempt("silent", program, state={"kept": kept}, forget=["steps", "replay", "meter"])
    assert "older than an epoch" not in capsys.readouterr().out


class Counting(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.read, self.size, self.epoch = 0, 2 * STEPS, 0

    def __len__(self) -> int:
        return self.size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return (torch.tensor(float(index)),)


class Caching(torch.utils.data.Dataset[Any]):
    """Keeps its samples augmented: a resume would augment them anew."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, index: int) -> Any:
        try:
            if self.cache[index] is not None:
                return (self.cache[index],)
        except KeyError:
            pass
        self.cache[index] = index + torch.randn(1)
        return (self.cache[index],)


@pytest.mark.parametrize(
    ("data", "name"), [(Counting(), "read"), (Caching({}), "cache"), (Caching([None] * 2 * STEPS), "cache")]
)
def test_changes_of_the_data_set_are_named(
    attempt: Callable[..., Any], capsys: pytest.CaptureFixture[str], data: Any, name: str
) -> None:
    def program(job: JobHandle, loop: Any, at: Moment) -> None:
        for _ in loop:
            at("batch")

    attempt("run", program, STEPS, data=data)
    lines = [line for line in capsys.readouterr().out.splitlines() if "older than an epoch" in line]
    assert len(lines) == 1
    assert f".{name}. A resume" in lines[0]


def test_variables_keep_no_graph_alive(attempt: Callable[..., Any]) -> None:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark = Meter()
            seen.append(weakref.ref(ctx.mark))
            return 2 * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return 2 * grad

    seen, alive = list[weakref.ref[Any]](), list[Any]()

    def program(job: JobHandle, loop: Any, at: Moment) -> None:
        weight = torch.ones(2, requires_grad=True)
        for epoch in loop.epochs():
            loss = None
            for (x,) in epoch:
                loss = Scale.apply(weight * x)
                loop.save()
                del loss
                gc.collect()
                alive.extend(ref() for ref in seen)
                loss = x
            alive.append(loss if loss is None else None)

    attempt("run", program)
    assert len(seen) == STEPS * EPOCHS
    assert set(alive) == {None}
