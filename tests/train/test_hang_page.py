"""The page: what a rank is at, as its watcher reads it, at each point of a training."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from clusterdp.train import JobHandle, Trainer
from clusterdp.train.hang import page
from clusterdp.train.hang.page import BYTES, FIRST, PHASE, PHASES, SIGNS, STEP, phase_name


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The page of a job that is made after this."""
    numbers = [0, 0, 0, -1]
    monkeypatch.setattr(page, "_current", numbers)
    return numbers


def at(seen: list[int]) -> tuple[int, str]:
    return seen[STEP], phase_name(seen[PHASE], first=seen[STEP] == seen[FIRST])


def test_loop_records_step_and_phase_for_the_hang_watcher(seen: list[int], job: JobHandle) -> None:
    found: list[Any] = []

    class State:
        def state_dict(self) -> dict[str, Any]:
            found.append(("saving", at(seen)))
            return {"one": 1}

        def load_state_dict(self, state: Any) -> None: ...

    def batches() -> Iterator[int]:
        for batch in range(3):
            found.append(("loader", at(seen)))
            yield batch

    class Loader:
        def __iter__(self) -> Iterator[int]:
            return batches()

        def __len__(self) -> int:
            return 3

    loop = job.loop(Loader(), {"state": State()}, epochs=1, every_steps=3)
    for epoch in loop.epochs():
        for _ in epoch:
            found.append(("body", at(seen)))
            job.stopwatch.lap("forward")
            found.append(("backward", at(seen)))
            job.stopwatch.lap("mine")
            found.append(("mine", at(seen)))
        found.append(("outside", at(seen)))
        before = seen[SIGNS]
        for _ in loop.watch([1, 2]):
            found.append(("evaluation", at(seen)))
        assert seen[SIGNS] == before + 2
        found.append(("outside", at(seen)))
    found.append(("after", at(seen)))
    step = [("loader", "data"), ("body", "step"), ("backward", "backward"), ("mine", "backward")]
    assert found[:4] == [(name, (0, "first step")) for name, _ in step]
    assert found.pop(4) == ("saving", (1, "save")), "whether the state can be saved is known after the first step"
    assert found[4:12] == [(name, (number, phase)) for number in (1, 2) for name, phase in step]
    assert found[12:] == [
        ("saving", (3, "save")),
        ("outside", (3, "program")),
        ("evaluation", (3, "evaluation")),
        ("evaluation", (3, "evaluation")),
        ("outside", (3, "program")),
        ("saving", (3, "save")),
        ("saving", (3, "save")),  # for the witness
        ("after", (3, "program")),
    ]


def test_loop_left_by_break_returns_to_phase_program_after_evaluation_and_save(seen: list[int], job: JobHandle) -> None:
    loop = job.loop([[i] for i in range(5)], {})
    for _ in loop:
        if loop.step == 2:
            break
    assert at(seen) == (2, "program")
    for _ in loop.watch([1]):
        assert at(seen) == (3, "evaluation")
    loop.save()
    assert at(seen) == (3, "program")


def test_trainer_records_phases_step_backward_and_evaluation(seen: list[int], job: JobHandle) -> None:
    found: list[tuple[str, tuple[int, str]]] = []
    data = TensorDataset(torch.randn(8, 4), torch.zeros(8, 1))
    net = torch.nn.Linear(4, 1)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found.append(("training" if torch.is_grad_enabled() else "evaluation", at(seen)))
        return (outputs - targets).square().mean()

    net.weight.register_hook(lambda gradient: found.append(("backward", at(seen))))
    trainer = Trainer(net, loss, torch.optim.SGD(net.parameters(), lr=0.1), job=job)
    trainer.fit(data, data, epochs=1, batch_size=4)
    assert found == [
        ("training", (0, "first step")),
        ("backward", (0, "first step")),
        ("training", (1, "step")),
        ("backward", (1, "backward")),
        ("evaluation", (2, "evaluation")),
        ("evaluation", (2, "evaluation")),
    ]
    assert at(seen) == (2, "program")


def test_shared_page_is_readable_through_its_file_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_current", [0, 0, 0, -1])
    fd = page.shared()
    page.current()[STEP] = 7
    page.enter(PHASES.index("save"))
    theirs = memoryview(mmap.mmap(fd, BYTES)).cast("q")
    assert (theirs[STEP], PHASES[theirs[PHASE]], theirs[FIRST]) == (7, "save", -1)
    os.close(fd)


def test_step_times_are_written_during_training_at_timed_saves(job: JobHandle) -> None:
    assert job._run is not None
    times = job._run.attempt("1.0").times
    loop = job.loop([[i] for i in range(40)], {}, every_s=1e-9)
    written = 0
    for _ in loop:
        job.flags.every = 1
        if times.exists() and loop.step < 30:
            written += 1
    assert written
    assert json.loads(times.read_text())["stragglers"] == []
