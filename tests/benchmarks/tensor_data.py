"""An epoch over data that lies in tensors, beside the loop that slices it by hand: 200,000 samples of two numbers.

One process, one thread, a linear model; CPU time. The hand's loop draws an order anew for each epoch, as ours do.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.slurm.env import SlurmEnv
from clusterdp.train import Group, JobHandle, Rendezvous, StopSignal, Trainer
from clusterdp.train.settings import WorkerSettings
from tests.benchmarks.table import Measure, rounds_of, show, take_turns

SAMPLES = 200_000
X = torch.randn(SAMPLES, 2, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
DATA = TensorDataset(X, Y)
SIZES = {SAMPLES: 20, 1000: 3}  # of a batch: epochs that are measured together


def parts() -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    net = nn.Linear(2, 1)
    return net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.01)


def fetched_by_hand(job: JobHandle, size: int, epochs: int) -> None:
    for _ in range(epochs):
        order = torch.randperm(SAMPLES)
        for begin in range(0, SAMPLES, size):
            index = order[begin : begin + size]
            X[index], Y[index]


def fetched_by_loader(job: JobHandle, size: int, epochs: int) -> None:
    loader: Any = job.loader(DATA, size)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for _ in loader:
            pass


def trained_by_hand(job: JobHandle, size: int, epochs: int) -> None:
    net, loss_of, optimizer = parts()
    total = torch.zeros(())
    for _ in range(epochs):
        order = torch.randperm(SAMPLES)
        for begin in range(0, SAMPLES, size):
            index = order[begin : begin + size]
            loss = loss_of(net(X[index]), Y[index])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()


def trained_by_loop(job: JobHandle, size: int, epochs: int) -> None:
    net, loss_of, optimizer = parts()
    loop = job.loop(job.loader(DATA, size), {"model": net, "optimizer": optimizer}, epochs=epochs)
    for x, y in loop:
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loop.log(loss=loss)


def trained_by_trainer(job: JobHandle, size: int, epochs: int) -> None:
    Trainer(*parts(), job=job).fit(DATA, epochs=epochs, batch_size=size)


def evaluated_by_hand(job: JobHandle, size: int, epochs: int) -> None:
    net, loss_of, _ = parts()
    total = torch.zeros(())
    with torch.no_grad():
        for _ in range(epochs):
            for begin in range(0, SAMPLES, size):
                total += loss_of(net(X[begin : begin + size]), Y[begin : begin + size])


def evaluated_by_trainer(job: JobHandle, size: int, epochs: int) -> None:
    trainer = Trainer(*parts(), job=job)
    for _ in range(epochs):
        trainer.evaluate(DATA, batch_size=size)


BESIDE: dict[Callable[[JobHandle, int, int], None], Callable[[JobHandle, int, int], None] | None] = {
    fetched_by_hand: None,
    fetched_by_loader: fetched_by_hand,
    trained_by_hand: None,
    trained_by_loop: trained_by_hand,
    trained_by_trainer: trained_by_hand,
    evaluated_by_hand: None,
    evaluated_by_trainer: evaluated_by_hand,
}


def name_of(way: Callable[[JobHandle, int, int], None], size: int) -> str:
    return f"{way.__name__.replace('_', ' ')}, batches of {size:,}"


def main() -> None:
    rounds = rounds_of(__doc__, 9)
    torch.set_num_threads(1)
    group = Group.start(Rendezvous.find(SlurmEnv("single"), {}))
    with StopSignal() as stop:

        def measure(way: Callable[[JobHandle, int, int], None], size: int) -> Measure:
            def seconds() -> float:
                """Of an epoch."""
                job, epochs = JobHandle(WorkerSettings(), group, stop, "1.0"), SIZES[size]
                with contextlib.redirect_stdout(io.StringIO()):
                    began = time.thread_time()
                    way(job, size, epochs)
                    return (time.thread_time() - began) / epochs

            return seconds

        measures = {name_of(way, size): measure(way, size) for size in SIZES for way in BESIDE}
        beside = {name_of(way, size): name_of(hand, size) for size in SIZES for way, hand in BESIDE.items() if hand}
        rows = take_turns(measures, rounds, beside)
    group.close()
    show("An epoch over 200,000 x 2 floats in tensors", rows)


if __name__ == "__main__":
    main()
