"""Entries for the tests' runs: `entry: tests.train.jobs:NAME`."""

from __future__ import annotations

import os
import random
import signal
import time
import weakref
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, Loop
from clusterdp.train.output.say import say
from tests.small_disk import fill


def parts(job: JobHandle, epochs: int = 2, **options: Any) -> tuple[Loop[Any], torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(48, 4))
    model = job.wrap(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loop = job.loop(job.loader(data, 2), {"model": model, "optimizer": optimizer}, epochs=epochs, **options)
    return loop, model, optimizer


def train(job: JobHandle, epochs: int = 2, delay_s: float = 0.0) -> str:
    loop, model, optimizer = parts(job, epochs)
    for (x,) in loop:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        loop.log(loss=loss)
        time.sleep(delay_s)
    return f"{loop.step} steps"


def raises_on(job: JobHandle, rank: int, others: str) -> None:
    """At step 3 one rank fails, while the others wait for it in an all-reduce, or sit elsewhere for long."""
    loop, model, _ = parts(job)
    for (x,) in loop:
        if loop.step == 3:
            if job.rank == rank:
                raise ValueError("a bad\nsample")
            if others == "busy":
                time.sleep(600)
        model(x).sum().backward()


def is_mistaken(job: JobHandle, on: list[int]) -> None:
    if job.rank in on:
        raise ConfigError("lr: is odd. Make it even.")
    dist.barrier()


def scores_differently(job: JobHandle, remedy: str | None = None) -> list[float]:
    """The state has the accuracy of the samples that this rank has seen."""
    best = {"accuracy": 0.0}
    loop = job.loop([1, 2, 3], {"best": job.per_rank(best) if remedy == "per_rank" else best}, every_steps=2)
    for _ in loop:
        accuracy = (job.rank + 1) / 8
        best["accuracy"] = job.mean(accuracy) if remedy == "mean" else accuracy
    assert job.mean(torch.tensor([job.rank, 2])).tolist() == [0.5, 2]
    return [best["accuracy"]]


class Algorithm:
    """Keeps its optimizer in its own state."""

    def __init__(self, model: torch.nn.Module):
        self.inner = [torch.optim.Adam(model.parameters())]

    def state_dict(self) -> dict[str, Any]:
        return self.inner[0].state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner[0].load_state_dict(state)


def forgets(job: JobHandle, left_out: list[str]) -> None:
    """One optimizer is in an object of the state, one in a closure of such an object, one has nothing to lose, and a
    scheduler is not used."""
    model, head, plain, tail = (torch.nn.Linear(1, 1) for _ in range(4))
    optimizer, algorithm = torch.optim.Adam(model.parameters()), Algorithm(head)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    unused = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    sgd, closed = torch.optim.SGD(plain.parameters(), lr=0.1), {"tail": torch.optim.Adam(tail.parameters())}

    class Closed:
        def state_dict(self) -> dict[str, Any]:
            return closed["tail"].state_dict()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            closed["tail"].load_state_dict(state)

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "algorithm": algorithm}
    state = {name: thing for name, thing in state.items() if name not in left_out}
    for _ in job.loop(
        [1, 2, 3, 4], {**state, "head": head, "plain": plain, "tail": tail, "closed": Closed()}, every_steps=2
    ):
        for each in (optimizer, algorithm.inner[0], sgd, closed["tail"]):
            for parameter in each.param_groups[0]["params"]:
                parameter.grad = torch.ones_like(parameter)
            each.step()
        scheduler.step()
    assert unused.last_epoch == 0


class Noise:
    def __init__(self) -> None:
        self.rng = random.Random(2)


class Noisy(torch.utils.data.Dataset[float]):
    def __init__(self) -> None:
        self.noise = Noise()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> float:
        return self.noise.rng.random()


def draws_numbers(job: JobHandle, kept: bool) -> None:
    """The loop keeps the generators of its loader, and nobody draws from the last one."""
    mixup, augment, unused = numpy.random.default_rng(0), Noise(), torch.Generator()
    loader = torch.utils.data.DataLoader(Noisy(), 1, shuffle=True, generator=torch.Generator())
    held = torch.utils.data.DataLoader(Noisy(), 1, generator=torch.Generator())
    state = {"mixup": mixup, "augment": augment.rng} if kept else {}
    before = unused.get_state()
    big = torch.ones(3)
    dead = weakref.ref(big)
    for _ in job.loop(loader, state, every_steps=2):
        mixup.random(), augment.rng.random(), next(iter(held))
        big = None  # type: ignore[assignment]
        assert dead() is None, "the look at the variables keeps none of them alive"
    assert torch.equal(unused.get_state(), before)


class Remembering(torch.optim.SGD):
    """Has a Python object in its state from its first step on."""

    def step(self, closure: Any = None) -> None:
        super().step()
        self.state[self.param_groups[0]["params"][0]]["note"] = object()


def saves_late(job: JobHandle, kind: str) -> None:
    """No save is due in this run, but what it could not save is found at once."""
    model = torch.nn.Linear(1, 1)
    optimizer = Remembering(model.parameters(), lr=0.1)
    hidden = {"h": torch.zeros(1), "f": print if kind == "function" else None}
    state = {"model": model, "optimizer": optimizer, "hidden": hidden}
    for _ in job.loop(range(100), {"hidden": hidden} if kind == "hidden" else state, every_s=600):
        hidden["h"] = torch.full((1,), float(job.rank))
        optimizer.step()


def has_a_bug(job: JobHandle) -> None:
    job.lopo([1, 2, 3])  # type: ignore[attr-defined]


def lacks_a_library(job: JobHandle) -> None:
    raise ImportError("libfast.so: cannot open shared object file")


def trains_twice(job: JobHandle) -> None:
    for _ in range(2):
        for _ in job.loop([1, 2, 3], {}):
            pass


def compiles(job: JobHandle) -> None:
    torch.compile(lambda x: x.sin() + 1)(torch.ones(8))


def raises_for_a_reason(job: JobHandle) -> None:
    try:
        raise KeyError("the reason")
    except KeyError as error:
        raise RuntimeError("the failure") from error


def is_killed_on(job: JobHandle, rank: int) -> None:
    loop, model, _ = parts(job)
    for (x,) in loop:
        if loop.step == 3 and job.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        model(x).sum().backward()


def loses_its_claim(job: JobHandle) -> None:
    loop, model, optimizer = parts(job, every_steps=5)
    for (x,) in loop:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if loop.step == 7 and job.rank == 0:
            assert job.run_dir
            Path(job.run_dir, "claims", "000002").write_text("another\n")


def ends_overtaken(job: JobHandle, ends: str) -> None:
    if job.rank == 0:
        assert job.run_dir
        Path(job.run_dir, "claims", "000002").write_text("another\n")
    if ends == "stopped":
        from clusterdp.train import Stopped

        raise Stopped("term", 0)


def ends_differently(job: JobHandle) -> None:
    if job.rank == 1:
        raise SystemExit(0)
    from clusterdp.train import Stopped

    raise Stopped("term", 0)


def is_stopped_while_it_evaluates(job: JobHandle) -> None:
    loop, model, _ = parts(job, epochs=1)
    for (x,) in loop:
        model(x).sum().backward()
    for item in loop.watch(range(job.rank, 10_000, job.world_size)):
        if item > 100 and job.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.001)
    raise AssertionError("the evaluation was not stopped")


def tells_its_group(job: JobHandle) -> str:
    return f"{dist.get_backend()} {job.device} {job.rank}/{job.world_size} {sorted(job.params)}"


def fills_its_disk(job: JobHandle, filler: str, at: int, until: int) -> None:
    """The one that its run folder and its logs are on, from one step to another. Its ranks talk meanwhile."""
    loop, model, optimizer = parts(job, epochs=2, every_steps=4)
    for (x,) in loop:
        if job.rank == 0 and loop.step == at:
            fill(Path(filler))
        if job.rank == 0 and loop.step == until:
            Path(filler).unlink()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loop.log(loss=loss, note="x" * 3000)
        say(f"rank {job.rank}, step {loop.step} " + "." * 3000)


def asks_for_its_end(job: JobHandle, where: str) -> None:
    """One rank calls job.stop(): in a window of accumulation, while evaluating, or before the first loop."""
    if where == "before" and job.rank == 1:
        job.stop("nothing to do")
    loop, model, _ = parts(job, accumulate=2)
    for i, (x,) in enumerate(loop):
        model(x).sum().backward()
        if where == "window" and job.rank == 1 and i == 2:
            job.stop("the loss has diverged")
        if where == "evaluation" and i == 3:
            for item in loop.watch(range(10_000)):
                if item == 100 and job.rank == 1:
                    job.stop("the loss has diverged")
    raise AssertionError("it was not stopped")
