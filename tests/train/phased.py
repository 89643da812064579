"""Programs of several phases, and what each has done and ends with.

`strike(where)` is called after each step and between two phases; it may end the attempt there.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from clusterdp.train import JobHandle, Loop, Trainer, keep_best
from clusterdp.train.ranks import shared_flags
from tests.checkpoint.training import digest

Strike = Callable[[str], None]
WIDTH = 6


def data(size: int = 24) -> TensorDataset:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(size, WIDTH, generator=draw)
    return TensorDataset(x, x[:, :1])


class Net(nn.Module):
    """With random numbers in it, and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Dropout(0.2))
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out


def batch_size(job: JobHandle) -> int:
    return 4 // job.world_size


def steps(loop: Loop[Any], model: nn.Module, optimizer: torch.optim.Optimizer, strike: Strike, scheduler: Any) -> None:
    for epoch in loop.epochs():
        for x, y in epoch:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=random.random())
            strike(f"{loop.name or 'unnamed'} {loop.step}")
        scheduler.step()


def finetune(job: JobHandle, strike: Strike) -> Any:
    """Then with a new head and a frozen body, and last of all of it; the first loop has no name."""
    net = Net()
    model = job.wrap(net)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    loop = job.loop(job.loader(data(), batch_size(job)), state, epochs=2)
    steps(loop, model, optimizer, strike, scheduler)
    strike("between 1")
    first = digest([p.detach() for p in net.parameters()])
    for name, frozen in (("head", True), ("all", False)):
        if frozen:
            net.head = nn.Linear(8, 1)
        net.body.requires_grad_(not frozen)
        model = job.wrap(net)
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        loop = job.loop(job.loader(data(16), batch_size(job)), state, epochs=2, name=name)
        steps(loop, model, optimizer, strike, scheduler)
        strike(f"between {name}")
    return [first, [p.detach() for p in net.parameters()], optimizer.state_dict(), scheduler.state_dict()]


def folds(job: JobHandle, strike: Strike) -> Any:
    """Each with a net of its own, which draws its weights where the fold before has left the random numbers."""
    ends, samples = [], range(24)
    for fold in range(3):
        net = Net()
        trainer = Trainer(
            net,
            nn.MSELoss(),
            torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
            job=job,
            name=f"fold{fold}",
            on_step=[lambda trainer, values: strike(f"{trainer.name} {trainer.loop.step}")],  # type: ignore[union-attr]
            on_epoch=[keep_best("val_loss")],
        )
        train = Subset(data(), [i for i in samples if i % 3 != fold])
        val = Subset(data(), [i for i in samples if i % 3 == fold])
        history = trainer.fit(train, val, epochs=2, batch_size=batch_size(job))
        strike(f"between {fold}")
        at = trainer.load_best()
        best = history.best("val_loss")
        assert best is not None
        assert at == best["step"]
        scores = trainer.evaluate(val)
        ends.append([history.rows, at, scores, [p.detach().clone() for p in net.parameters()]])
    return ends


def gan(job: JobHandle, strike: Strike) -> Any:
    """A generator that warms up by itself, and then with its opponent; both loops read the same loader's data."""
    g, d = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
    of_g, of_d = job.wrap(g), job.wrap(d)
    g_opt, d_opt = torch.optim.Adam(g.parameters(), lr=1e-2), torch.optim.Adam(d.parameters(), lr=1e-2)
    warm = job.loop(job.loader(data(), batch_size(job)), {"g": of_g, "g_opt": g_opt}, epochs=1, name="warm-up")
    for x, _ in warm:
        (of_g(torch.randn_like(x)) - x).square().mean().backward()
        g_opt.step()
        g_opt.zero_grad()
        strike(f"warm-up {warm.step}")
    strike("between")
    state = {"g": of_g, "d": of_d, "g_opt": g_opt, "d_opt": d_opt}
    loop = job.loop(job.loader(data(), batch_size(job)), state, epochs=2, name="gan")
    for x, _ in loop:
        fake = of_g(torch.randn_like(x))
        (of_d(fake.detach()).mean() - of_d(x).mean()).backward()
        d_opt.step()
        g_opt.zero_grad()
        d_opt.zero_grad()
        (-of_d(fake).mean()).backward()
        g_opt.step()
        g_opt.zero_grad()
        d_opt.zero_grad()
        strike(f"gan {loop.step}")
    return [[p.detach() for net in (g, d) for p in net.parameters()], g_opt.state_dict(), d_opt.state_dict()]


PROGRAMS = {"finetune": finetune, "folds": folds, "gan": gan}


def ended(job: JobHandle, end: Any) -> list[str]:
    """What must be equal on this rank, bit by bit."""
    return [digest(end), digest([torch.get_rng_state(), random.getstate()]), str(job.step)]


def main(job: JobHandle, program: str, record: str, fault: list[Any] | None = None) -> None:
    """fault: (signal, where, the rank that gets it)."""
    shared_flags.MOST_STEPS = 1
    done = open(Path(record, f"done-{job.rank}"), "a", buffering=1)  # noqa: SIM115

    def strike(where: str) -> None:
        print(where, file=done)
        if fault and fault[1:] == [where, job.rank]:
            os.kill(os.getpid(), getattr(signal, fault[0]))

    end = ended(job, PROGRAMS[program](job, strike))
    Path(record, f"end-{job.rank}").write_text(json.dumps(end))
