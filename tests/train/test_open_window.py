"""Gradients that wait for the optimizer, in loops that were told of no windows: a stop must not drop them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from clusterdp.checkpoint import list_checkpoints
from clusterdp.config.tree import CheckpointConfig
from clusterdp.train import JobHandle, Stopped, StopSignal
from clusterdp.train.optim.open_window import LONGEST, SHORTEST, OpenWindow
from clusterdp.train.ranks.group import seed_everything
from tests.train import foreign
from tests.train.ranks import running

Attempt = Callable[..., dict[str, Any]]


@pytest.fixture
def attempt(job: JobHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.MOST_STEPS", 1)

    def run(name: str, number: int = 0, **options: Any) -> dict[str, Any]:
        saving = CheckpointConfig(url=str(tmp_path / name / "checkpoints"), async_save=False)
        settings = replace(job._settings, run_dir=tmp_path / name, checkpoint=saving)
        seed_everything(50 * number, 0)  # a new process begins somewhere else
        with StopSignal() as stop:
            return foreign.train(JobHandle(settings, job.group, stop, f"1.{number}"), **options)

    return run


def check(whole: Any, first: Any, second: Any) -> None:
    assert first["step"] % foreign.WINDOW == 0
    assert first["step"] < whole["step"]
    assert first["seen"] + second["seen"] == whole["seen"]
    assert second["digest"] == whole["digest"]


def test_stop_waits_for_the_end_of_an_undeclared_accumulation_window(
    attempt: Attempt, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = attempt("whole")
    for stop_at in (1, 4, 5, 6, 9, 22):
        check(whole, attempt(f"run{stop_at}", stop_at=stop_at), attempt(f"run{stop_at}", 1))
    assert "not exact" not in "".join(capsys.readouterr())


def test_stop_waits_for_the_accumulating_one_of_two_optimizers(
    attempt: Attempt, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = attempt("whole", beside=True)
    for stop_at in (1, 5, 6):
        check(whole, attempt(f"run{stop_at}", stop_at=stop_at, beside=True), attempt(f"run{stop_at}", 1, beside=True))
    assert "not exact" not in "".join(capsys.readouterr())


def test_periodic_saves_wait_for_the_end_of_an_accumulation_window(attempt: Attempt, tmp_path: Path) -> None:
    whole = attempt("whole")
    attempt("run", every_steps=5, break_at=19)
    assert [info.step for info in list_checkpoints(str(tmp_path / "run" / "checkpoints"))] == [8, 12, 16]
    second = attempt("run", 1, every_steps=5)
    assert second["seen"] == whole["seen"][16:]
    assert second["digest"] == whole["digest"]


def test_two_ranks_stop_together_at_the_end_of_an_accumulation_window(tmp_path: Path) -> None:
    with running(tmp_path / "ranks", foreign.whole_and_in_parts, str(tmp_path), [5], size=2) as ranks:
        for whole, first, second in ranks.answers:
            check(whole, first, second)


@pytest.mark.slow
def test_four_ranks_signaled_at_any_step_stop_at_an_accumulation_window_end(tmp_path: Path) -> None:
    stops = [1, 2, 7, 8, 13]
    with running(tmp_path / "ranks", foreign.whole_and_in_parts, str(tmp_path), stops, size=4) as ranks:
        for whole, *parts in ranks.answers:
            for first, second in zip(parts[::2], parts[1::2], strict=True):
                check(whole, first, second)


def test_save_requested_within_an_accumulation_window_is_reported_as_inexact(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = job.loop(job.loader(range(8), 1), {"model": model, "optimizer": optimizer})
    for x in loop:
        model(x.float()[:, None]).sum().backward()
        if loop.step == 1:
            optimizer.step()
            optimizer.zero_grad()
        if loop.step in (1, 2, 4):
            loop.save()
    said = capsys.readouterr().err
    assert said.count("with gradients that no optimizer has used yet") == 1
    assert "clusterdp: step 3 is saved" in said


def test_stop_in_an_evaluation_within_an_accumulation_window_is_reported_as_inexact(
    job: JobHandle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.MOST_STEPS", 1)
    model = nn.Linear(1, 1)
    loop = job.loop(job.loader(range(3), 1), {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})
    for epoch in loop.epochs():
        for x in epoch:
            model(x.float()[:, None]).sum().backward()
        job.stop_signal._seen[15] = 1  # as by SIGTERM
        with pytest.raises(Stopped):
            list(loop.watch(range(9)))
        break
    assert "clusterdp: step 3 is saved with gradients" in capsys.readouterr().err


class Batches:
    """What a loop does with these: bodies of batches, and the answers at their ends."""

    def __init__(self, job: JobHandle, **state: Any):
        self.gradients, self.group = OpenWindow(state), job.group

    def put_off(self, *bodies: Callable[[], Any]) -> list[bool]:
        answers = []
        for body in bodies:
            body()
            self.gradients.close_step()
            answers.append(self.gradients.put_off(self.group))
        return answers


def model_and(kind: Any, **options: Any) -> tuple[nn.Module, Any, Callable[[], Any]]:
    model = nn.Linear(2, 1)
    return model, kind(model.parameters(), **options), lambda: model(torch.ones(1, 2)).sum().backward()


def test_alternating_optimizers_delay_saves_only_at_first(job: JobHandle) -> None:
    """As those of a GAN, where each one's losses leave gradients in the other's parameters."""
    a, one, back_a = model_and(torch.optim.SGD, lr=0.1)
    b, other, back_b = model_and(torch.optim.Adam)

    def turn(optimizer: Any) -> Callable[[], None]:
        def body() -> None:
            optimizer.zero_grad()
            back_a()
            back_b()
            optimizer.step()

        return body

    assert (
        Batches(job, a=a, b=b, one=one, other=other).put_off(*[turn(one), turn(other)] * 3) == [True] * 2 + [False] * 4
    )


def test_idle_optimizer_delays_saves_only_at_first(job: JobHandle) -> None:
    """As that of a discriminator while the generator is trained alone."""
    a, one, back_a = model_and(torch.optim.SGD, lr=0.1)
    b, other, back_b = model_and(torch.optim.SGD, lr=0.1)

    def body() -> None:
        one.zero_grad()
        back_a()
        back_b()
        one.step()

    assert Batches(job, a=a, b=b, one=one, other=other).put_off(*[body] * (LONGEST + 4))[-4:] == [False] * 4


def test_accumulation_window_ends_when_both_optimizers_have_used_their_gradients(job: JobHandle) -> None:
    a, one, back_a = model_and(torch.optim.SGD, lr=0.1)
    b, other, back_b = model_and(torch.optim.SGD, lr=0.1)

    def body(*steps: Any) -> Callable[[], None]:
        def run() -> None:
            back_a()
            back_b()
            for optimizer in steps:
                optimizer.step()
                optimizer.zero_grad()

        return run

    period = [body(), body(one), body(other), body(one), body(), body(one, other)]
    assert Batches(job, a=a, b=b, one=one, other=other).put_off(*period * 3) == [*[True] * 5, False] * 3


def test_lbfgs_with_a_closure_delays_no_save(job: JobHandle) -> None:
    model, optimizer, back = model_and(torch.optim.LBFGS, max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        back()
        return torch.zeros(())

    assert Batches(job, model=model, optimizer=optimizer).put_off(lambda: optimizer.step(closure)) == [False]


def test_skipped_optimizer_step_delays_a_stop_by_a_limited_number_of_batches(job: JobHandle) -> None:
    """By a GradScaler, or on_nan: the gradients are thrown away at the beginning of the next batch."""
    model, optimizer, back = model_and(torch.optim.SGD, lr=0.1)

    def steps() -> None:
        optimizer.zero_grad()
        back()
        optimizer.step()

    def skips() -> None:
        optimizer.zero_grad()
        back()

    batches = Batches(job, model=model, optimizer=optimizer)
    assert batches.put_off(steps, skips, skips, steps) == [False, True, True, False]
    assert batches.put_off(*[skips] * (SHORTEST + 1)) == [True] * SHORTEST + [False]


def test_stop_before_the_first_optimizer_step_waits_a_limited_number_of_batches(job: JobHandle) -> None:
    model, optimizer, back = model_and(torch.optim.SGD, lr=0.1)
    batches = Batches(job, model=model, optimizer=optimizer)
    assert batches.put_off(*[back] * (LONGEST + 1)) == [True] * LONGEST + [False]


def test_training_without_an_optimizer_in_its_state_delays_no_save(job: JobHandle) -> None:
    model, _, back = model_and(torch.optim.SGD, lr=0.1)
    assert Batches(job, model=model).put_off(back, back) == [False, False]


def test_optimizer_step_calls_all_hooks_if_an_open_window_is_garbage_collected() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    windows = [OpenWindow({"optimizer": optimizer})]
    stepped: list[object] = []
    handles = [
        register_optimizer_step_post_hook(lambda *_: windows.clear()),  # as garbage may be collected at this moment
        register_optimizer_step_post_hook(lambda *_: stepped.append(None)),
    ]
    try:
        optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    assert stepped and not windows


def test_step_of_a_wrapped_optimizer_ends_the_accumulation_window(job: JobHandle) -> None:
    class Wrapper(torch.optim.Optimizer):
        """As accelerate's: it has none of its base's own attributes."""

        def __init__(self, inner: Any):
            self.inner = inner

        @property
        def param_groups(self) -> Any:
            return self.inner.param_groups

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    model, inner, back = model_and(torch.optim.SGD, lr=0.1)
    wrapped: Any = Wrapper(inner)

    def steps() -> None:
        back()
        wrapped.step()

    assert Batches(job, model=model, optimizer=wrapped).put_off(back, steps) == [True, False]
