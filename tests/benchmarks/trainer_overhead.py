"""What a step costs more than in a bare loop that does the same: with Trainer, its single pieces, and with its peers.

One process, a tiny model, batches in memory, the mean of the loss over the epoch. Ours look at the stop signal, keep
metrics and measure where the time goes as well; the peers' logging is off. The batches themselves hold the watch:
between those that they hand out they run bare steps, so that a few of one and a few of the other take turns, on however
busy a machine. A row is the difference of the two lower quartiles of CPU time. (What is not done in each step is not in
it: flags are shared every 32nd at most, see shared_flags_cost.py, and a record is written at most 10 times a second.)
Peers that are not installed are left out: pip install lightning accelerate transformers.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from clusterdp.slurm.env import SlurmEnv
from clusterdp.train import Group, JobHandle, Meters, Rendezvous, StopSignal, Trainer
from clusterdp.train.profile.stopwatch import Stopwatch
from clusterdp.train.settings import WorkerSettings
from tests.benchmarks.table import keep, machine

Run = Callable[["Batches"], Any]  # trains on them
BLOCK = 16  # steps of one kind in a row
WARM_UP = 3  # the first of them, which do not count


def parts() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return net, torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9), nn.CrossEntropyLoss()


BATCH = (torch.randn(16, 32), torch.randint(0, 10, (16,)))


class Batches:
    """The same batch, so many times, and between two blocks of them bare steps. `bare`, `theirs`: seconds of each."""

    def __init__(self, blocks: int):
        self.blocks = blocks
        self.bare: list[float] = []
        self.theirs: list[float] = []

    def __len__(self) -> int:
        return self.blocks * BLOCK

    def __iter__(self) -> Iterator[Any]:
        step = bare_step()
        for _ in range(self.blocks):
            with torch.enable_grad():  # some fetch their batches without
                began = time.thread_time()
                for at in range(BLOCK):
                    step()
                    began = self._note(self.bare, at, began)
            began = time.thread_time()
            for at in range(BLOCK):
                yield BATCH
                began = self._note(self.theirs, at, began)

    @staticmethod
    def _note(into: list[float], at: int, began: float) -> float:
        now = time.thread_time()
        if at >= WARM_UP:
            into.append(now - began)
        return now

    def found(self) -> tuple[float, float]:
        """Seconds of a bare step, and what one of theirs takes more."""
        plain = statistics.quantiles(self.bare, n=4)[0]
        return plain, statistics.quantiles(self.theirs, n=4)[0] - plain


class Streamed(IterableDataset[Any]):
    def __init__(self, batches: Batches):
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def bare_step() -> Callable[[], None]:
    net, optimizer, loss_of = parts()
    total = torch.zeros((), dtype=torch.float64)
    x, y = BATCH

    def step() -> None:
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total.add_(loss.detach())

    return step


def ours(job: Callable[[], JobHandle]) -> dict[str, Run]:
    def trainer(batches: Iterable[Any], job: JobHandle) -> None:
        net, optimizer, loss = parts()
        Trainer(net, loss, optimizer, job=job).fit(batches)

    def loop(batches: Iterable[Any], job: JobHandle) -> None:
        net, optimizer, loss_of = parts()
        total = torch.zeros((), dtype=torch.float64)
        steps = job.loop(batches, {"model": net, "optimizer": optimizer})
        for x, y in steps:
            loss = loss_of(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
            steps.log(loss=loss)

    def nothing(batches: Iterable[Any], job: JobHandle) -> None:
        step = bare_step()
        for _ in batches:
            step()

    def meters(batches: Batches) -> None:
        net, optimizer, loss_of = parts()
        mean = Meters()
        for x, y in batches:
            loss = loss_of(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean.mean(16, loss=loss)

    def laps(batches: Batches) -> None:
        net, optimizer, loss_of = parts()
        total = torch.zeros((), dtype=torch.float64)
        watch = Stopwatch()
        for x, y in batches:
            watch.lap("data")
            loss = loss_of(net(x), y)
            watch.lap("forward")
            loss.backward()
            watch.lap("backward")
            optimizer.step()
            optimizer.zero_grad()
            watch.lap("optimizer")
            total += loss.detach()
            watch.lap("metrics")
            watch.step()

    def streamed(run: Callable[[Iterable[Any], JobHandle], None]) -> Run:
        return lambda batches: run(batches, job())

    def loaded(run: Callable[[Iterable[Any], JobHandle], None]) -> Run:
        return lambda batches: run(DataLoader(Streamed(batches), batch_size=None), job())

    def dealt(run: Callable[[Iterable[Any], JobHandle], None]) -> Run:
        """With a loader of job.loader(), which hands out these batches instead of its own."""

        def with_loader(batches: Batches) -> None:
            here, rows = job(), len(batches) * len(BATCH[0])
            loader = here.loader(TensorDataset(torch.empty(rows, 1)), len(BATCH[0]))
            loader.__class__ = type("Dealt", (type(loader),), {"__iter__": lambda self: iter(batches)})
            run(loader, here)

        return with_loader

    return {
        "nothing": streamed(nothing),
        "Meters": meters,
        "Stopwatch": laps,
        "job.loop, loop.log, job.loader of tensors": dealt(loop),
        "Trainer, job.loader of tensors": dealt(trainer),
        "job.loop, loop.log, an iterable": streamed(loop),
        "Trainer, an iterable": streamed(trainer),
        "nothing, a DataLoader": loaded(nothing),
        "job.loop, loop.log, a DataLoader": loaded(loop),
    }


def peers() -> dict[str, Run]:
    found: dict[str, Run] = {}
    for make in (fabric, accelerate, lightning, transformers):
        try:
            found[make.__name__] = make()
        except ImportError:
            print(f"{make.__name__}: not installed")
    return found


def fabric() -> Run:
    from lightning.fabric import Fabric

    def run(batches: Batches) -> None:
        net, optimizer, loss_of = parts()
        it = Fabric(accelerator="cpu", devices=1)
        it.launch()
        net, optimizer = it.setup(net, optimizer)
        total = torch.zeros((), dtype=torch.float64)
        for x, y in batches:
            loss = loss_of(net(x), y)
            it.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()

    return run


def accelerate() -> Run:
    from accelerate import Accelerator

    def run(batches: Batches) -> None:
        net, optimizer, loss_of = parts()
        it = Accelerator(cpu=True)
        net, optimizer = it.prepare(net, optimizer)
        total = torch.zeros((), dtype=torch.float64)
        for x, y in batches:
            with it.accumulate(net):
                loss = loss_of(net(x), y)
                it.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                total += loss.detach()

    return run


def lightning() -> Run:
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.optimizer, self.loss_of = parts()
            self.total = torch.zeros((), dtype=torch.float64)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.loss_of(self.net(batch[0]), batch[1])
            self.total += loss.detach()
            return loss

        def configure_optimizers(self) -> Any:
            return self.optimizer

    def run(batches: Batches) -> None:
        off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        L.Trainer(accelerator="cpu", devices=1, max_epochs=1, enable_model_summary=False, **off).fit(Module(), batches)

    return run


def transformers() -> Run:
    from transformers import Trainer as Theirs
    from transformers import TrainingArguments

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, _, self.loss_of = parts()

        def forward(self, x: Any, labels: Any) -> Any:
            out = self.net(x)
            return {"loss": self.loss_of(out, labels), "logits": out}

    def run(batches: Batches) -> None:
        coming, net = iter(batches), Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        with tempfile.TemporaryDirectory() as folder:
            quiet = {"report_to": [], "logging_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
            options = TrainingArguments(
                folder, max_steps=len(batches), per_device_train_batch_size=1, use_cpu=True, max_grad_norm=0.0, **quiet
            )
            Theirs(
                net,
                options,
                train_dataset=range(len(batches)),  # type: ignore[arg-type]  # anything with a length
                data_collator=lambda _: dict(zip(("x", "labels"), next(coming), strict=True)),
                optimizers=(optimizer, constant),
            ).train()

    return run


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--blocks", type=int, default=120, help=f"of {BLOCK} steps, in each round")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--no-peers", action="store_true")
    chosen = options.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float]]] = {}

    def measure(runs: dict[str, Run]) -> None:
        for turn in range(-1, chosen.rounds):  # the first one warms up
            for name, run in runs.items():
                batches = Batches(chosen.blocks if turn >= 0 else 2)
                run(batches)
                if turn >= 0:
                    found.setdefault(name, []).append(batches.found())

    environ = dict(os.environ)
    group = Group.start(Rendezvous.find(SlurmEnv("single"), {}))
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder, StopSignal() as stop:
        made = 0

        def job() -> JobHandle:
            """With a run folder for its metrics, and a stop signal. Nothing is saved."""
            nonlocal made
            made += 1
            return JobHandle(WorkerSettings(run_dir=Path(folder, str(made))), group, stop, "1.0")

        measure(ours(job))
    group.close()
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]  # or the peers would wrap the model in DDP
    if not chosen.no_peers:
        measure(peers())
    step = statistics.median(plain for turns in found.values() for plain, _ in turns)
    print(f"\nMore than a bare step of {1e6 * step:.0f} µs\n{machine()}; medians of {chosen.rounds} rounds\n")
    for name, turns in found.items():
        more = sorted(1e6 * seconds for _, seconds in turns)
        keep(f"A step: {name}", statistics.median(more))
        print(f"{name:42}{statistics.median(more):>+8.1f} µs   rounds: {', '.join(f'{value:+.0f}' for value in more)}")


if __name__ == "__main__":
    main()
