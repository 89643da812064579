"""A training that does by itself what the loop could do for it: it accumulates by hand, and its loader shuffles as it
goes. With dropout, whose random numbers come from the same streams."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import StateError
from clusterdp.train import JobHandle, Stopped, StopSignal
from clusterdp.train.ranks import shared_flags
from clusterdp.train.ranks.group import seed_everything
from clusterdp.train.settings import WorkerSettings
from tests.checkpoint.training import digest
from tests.train.programs import start

WINDOW = 4
BATCHES = 10  # of an epoch: its windows reach into the next one


class Buffered(IterableDataset[torch.Tensor]):
    """This rank's part of a stream, shuffled in a buffer by the global random numbers."""

    def __init__(self, rank: int, world_size: int):
        self.items = range(rank, 2 * BATCHES * world_size, world_size)

    def __iter__(self) -> Iterator[torch.Tensor]:
        buffer = []
        for item in self.items:
            buffer.append(item)
            if len(buffer) == 6:
                yield torch.full((8,), float(buffer.pop(int(torch.randint(6, ())))))
        yield from (torch.full((8,), float(item)) for item in buffer)


def train(
    job: JobHandle,
    stop_at: int | None = None,
    break_at: int | None = None,
    batch_size: int = 2,
    beside: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """stop_at: the step in which the last rank gets a TERM. break_at: the one in which the attempt is given up.
    beside: a second model has an optimizer that steps at each batch."""
    torch.manual_seed(3)  # the same weights on all ranks
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.3), nn.Linear(64, 1))
    seed_everything(job.seed, job.rank)
    model = job.wrap(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Buffered(job.rank, job.world_size), batch_size)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if beside:
        state |= {"second": (second := nn.Linear(8, 1)), "every": (every := torch.optim.SGD(second.parameters(), 1e-3))}
    loop = job.loop(loader, state, epochs=3, **options)
    seen = []
    try:
        for x in loop:
            seen.append([loop.step, x[:, 0].tolist()])
            (model(x).square().mean() / WINDOW).backward()
            if loop.step == stop_at and job.rank == job.world_size - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            if loop.step == break_at:
                break
            if beside:
                every.zero_grad()
                second(x).square().mean().backward()
                every.step()
            if (loop.step + 1) % WINDOW == 0:
                optimizer.step()
                optimizer.zero_grad()
    except Stopped:
        pass
    streams = [torch.get_rng_state()]
    return {"seen": seen, "step": loop.step, "digest": digest([list(net.state_dict().values()), streams])}


def whole_and_in_parts(folder: str, stops: list[int]) -> list[Any]:
    """One that nobody stops, and for each of `stops` one that is stopped there and goes on: [whole, first, second].
    In between, an attempt with another loader is refused, on all ranks."""
    shared_flags.MOST_STEPS = 1
    group = start()

    def attempt(name: str, number: int, **options: Any) -> dict[str, Any]:
        run_dir = Path(folder, name)
        saving = CheckpointConfig(url=str(run_dir / "checkpoints"))
        seed_everything(50 * number, group.rendezvous.rank)  # a new process begins somewhere else
        with StopSignal() as stop:
            job = JobHandle(WorkerSettings(run_dir=run_dir, checkpoint=saving), group, stop, f"1.{number}")
            try:
                return train(job, **options)
            except StateError as error:
                return {"refused": str(error)}

    found: list[Any] = [attempt("whole", 0)]
    for at in stops:
        first = attempt(f"stopped-{at}", 0, stop_at=at)
        refused = attempt(f"stopped-{at}", 1, batch_size=4)
        assert "it has changed since the checkpoint: batch size 2 -> 4" in refused["refused"]
        found += [first, attempt(f"stopped-{at}", 2)]
    dist.barrier()
    group.close()
    return found
