"""A training with a global batch, which records each pass, so that runs on different numbers of ranks can be
compared."""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import Dataset

from clusterdp.train import JobHandle, Trainer, gradient_sync
from clusterdp.train.ranks import shared_flags
from tests.checkpoint.training import digest

GLOBAL_BATCH, MICRO = 32, 4
SAMPLES = 3 * GLOBAL_BATCH + 18  # the last step of an epoch has micro-batches of 4, 4, 4, 4 and 2 samples
STEPS = 4  # in an epoch


class Images(Dataset[tuple[int, torch.Tensor]]):
    """Augmented at random, by the three streams."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        noise = torch.rand(16) + random.random() + float(numpy.random.rand())
        return index, (torch.full((16,), index / SAMPLES) + noise).to(self.dtype)


def net(norm: str = "") -> nn.Module:
    norms = [nn.BatchNorm1d(64)] if norm else []
    return nn.Sequential(
        nn.Linear(16, 64), *norms, nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )


def train(
    job: JobHandle,
    record: str,
    epochs: int,
    dtype: str = "float64",
    workers: int = 0,
    norm: str = "",
    fault: list[Any] | None = None,
    every_steps: int | None = None,
    syncs: bool = True,
) -> None:
    """syncs: whether the program uses gradient_sync(), which it need not. fault: (signal, the step and the pass in
    which it comes, the rank that gets it). record: a folder."""
    shared_flags.MOST_STEPS = 1  # a signal is agreed on two steps later, however quick they are
    torch.manual_seed(1)
    model = job.wrap(net(norm).to(getattr(torch, dtype)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = job.loader(Images(getattr(torch, dtype)), MICRO, num_workers=workers)
    steps = job.steps(loader, epochs)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    loop = job.loop(loader, state, epochs=epochs, every_steps=every_steps)
    done, between = (open(Path(record, f"{name}-{job.rank}"), "a", buffering=1) for name in ("passes", "between"))  # noqa: SIM115
    passes, last = 0, -1
    for epoch in loop.epochs():
        for indices, x in epoch:
            assert loop.total_steps == steps
            passes, last = passes + 1 if loop.step == last else 0, loop.step
            if fault and fault[1:] == [loop.step, passes, job.rank]:
                os.kill(os.getpid(), getattr(signal, f"SIG{fault[0]}"))
            with gradient_sync(model, loop.window_ends) if syncs else nullcontext():
                drawn = [*torch.rand(2).tolist(), random.random(), float(numpy.random.rand())]
                target = (indices[:, None] / SAMPLES).to(x.dtype)
                loss = (model(x) - target).square().mean()
                (loss / loop.window).backward()
            loop.log(loss=loss, lr=optimizer.param_groups[0]["lr"])
            if loop.window != float("inf"):
                row = {"step": loop.step, "ids": indices.tolist(), "x": digest(x), "drawn": drawn, "loss": loss.item()}
                print(json.dumps({**row, "lr": optimizer.param_groups[0]["lr"]}), file=done)
            if loop.window_ends:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
        drawn = [torch.rand(2).tolist(), random.random(), float(numpy.random.rand())]
        print(json.dumps({"step": loop.step, "between": drawn}), file=between)
    weights = [parameter.detach().double() for parameter in model.parameters()]
    whole = [weight.full_tensor() if hasattr(weight, "full_tensor") else weight for weight in weights]
    Path(record, f"end-{job.rank}").write_text(json.dumps([weight.flatten().tolist() for weight in whole]))


def fits(job: JobHandle, record: str, epochs: int = 2, norm: str = "", **options: Any) -> None:
    """A Trainer, whose callbacks note each step."""
    torch.manual_seed(1)
    model = net(norm).double()
    optimizer, rows = torch.optim.SGD(model.parameters(), lr=0.05), list[Any]()
    x = torch.linspace(0, 1, SAMPLES * 16, dtype=torch.float64).view(SAMPLES, 16)
    trainer = Trainer(
        model,
        nn.MSELoss(),
        optimizer,
        metrics="mae",
        job=job,
        on_step=[lambda trainer, values: rows.append(trainer.loop.step)],
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS * epochs),
        **options,
    )
    history = trainer.fit((x, x[:, :1]), (x, x[:, :1]), epochs=epochs, batch_size=MICRO, val_every_steps=2)
    Path(record, f"end-{job.rank}").write_text(json.dumps([history.rows, history.within, rows]))


def mistaken(job: JobHandle, record: str, how: str) -> None:
    """Trains in a way that a global batch refuses, or, with `whole steps`, in a simple one that it does not need to."""
    model = job.wrap(net().double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    size = GLOBAL_BATCH // job.world_size if how == "whole steps" else MICRO
    loader = job.loader(Images(torch.float64), size, drop_last=how == "whole steps")
    loop = job.loop(loader, {"model": model, "optimizer": optimizer}, accumulate=2 if how == "accumulate" else None)
    for _, x in loop:
        loss = model(x).square().mean()
        (loss if how in ("no window", "whole steps") else loss / loop.window).backward()
        optimizer.step()
        optimizer.zero_grad()
    Path(record, f"end-{job.rank}").write_text(json.dumps(loop.step))


def reads(job: JobHandle, record: str, **options: Any) -> list[Any]:
    """What a loop without a model yields: its steps, the samples of each, and what it says about them."""
    loop = job.loop(job.loader(range(SAMPLES), MICRO, shuffle=False), {}, **options)
    rows = []
    for batch in loop:
        rows.append(
            [loop.step, batch.tolist(), loop.samples() if loop.samples else None, loop.window, loop.window_ends]
        )
    Path(record, f"end-{job.rank}").write_text(json.dumps([rows, loop.step, loop.total_steps]))
    return rows
