"""What a step costs more than in a bare loop that does the same: with Trainer, its single pieces, and with its peers.

One process, a tiny model, batches in memory, the mean of the loss over the epoch. Ours look at the stop signal and log
as well; the peers' logging is off. Blocks of steps take turns, and each row is the median of its differences from the
bare blocks beside it. Peers that are not installed are left out: pip install lightning accelerate transformers.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clusterdp.slurm.env import SlurmEnv
from clusterdp.train import Group, JobHandle, Meters, Rendezvous, StopSignal, Trainer
from clusterdp.train.settings import Saving, Settings
from tests.benchmarks.table import machine

Block = Callable[[int], float]  # runs so many steps; returns the seconds of one


def parts() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return net, torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9), nn.CrossEntropyLoss()


BATCH = (torch.randn(16, 32), torch.randint(0, 10, (16,)))


class Batches:
    """The same batch, so many times: no loader is measured."""

    def __init__(self, steps: int):
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Any:
        return (BATCH for _ in range(self.steps))


def timed(run: Callable[[], Any], steps: int) -> float:
    """CPU time: one thread does all of it, and a machine that is busy with other things does not show."""
    began = time.process_time()
    run()
    return (time.process_time() - began) / steps


def bare(steps: int) -> float:
    net, optimizer, loss_of = parts()

    def run() -> float:
        total = torch.zeros((), dtype=torch.float64)
        for x, y in Batches(steps):
            loss = loss_of(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        return total.item() / steps

    return timed(run, steps)


def ours(job: Callable[[], JobHandle]) -> dict[str, Block]:
    def trainer(steps: int) -> float:
        net, optimizer, loss = parts()
        fits = Trainer(net, loss, optimizer, job=job())
        return timed(lambda: fits.fit(Batches(steps)), steps)

    def loop(steps: int) -> float:
        net, optimizer, loss_of = parts()
        batches = job().loop(Batches(steps), {"model": net, "optimizer": optimizer})

        def run() -> float:
            total = torch.zeros((), dtype=torch.float64)
            for x, y in batches:
                loss = loss_of(net(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                total += loss.detach()
                batches.log(loss=loss)
            return total.item() / steps

        return timed(run, steps)

    def meters(steps: int) -> float:
        net, optimizer, loss_of = parts()
        mean = Meters()

        def run() -> Any:
            for x, y in Batches(steps):
                loss = loss_of(net(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                mean.mean(16, loss=loss)
            return mean.reduce()

        return timed(run, steps)

    return {"job.loop and loop.log": loop, "Meters": meters, "Trainer": trainer}


def peers() -> dict[str, Block]:
    found: dict[str, Block] = {}
    for make in (fabric, accelerate, lightning, transformers):
        try:
            found[make.__name__] = make()
        except ImportError:
            print(f"{make.__name__}: not installed")
    return found


def fabric() -> Block:
    from lightning.fabric import Fabric

    def block(steps: int) -> float:
        net, optimizer, loss_of = parts()
        it = Fabric(accelerator="cpu", devices=1)
        it.launch()
        net, optimizer = it.setup(net, optimizer)

        def run() -> float:
            total = torch.zeros((), dtype=torch.float64)
            for x, y in Batches(steps):
                loss = loss_of(net(x), y)
                it.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                total += loss.detach()
            return total.item() / steps

        return timed(run, steps)

    return block


def accelerate() -> Block:
    from accelerate import Accelerator

    def block(steps: int) -> float:
        net, optimizer, loss_of = parts()
        it = Accelerator(cpu=True)
        net, optimizer = it.prepare(net, optimizer)

        def run() -> float:
            total = torch.zeros((), dtype=torch.float64)
            for x, y in Batches(steps):
                with it.accumulate(net):
                    loss = loss_of(net(x), y)
                    it.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    total += loss.detach()
            return total.item() / steps

        return timed(run, steps)

    return block


def lightning() -> Block:
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

    def block(steps: int) -> float:
        off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        more = {"enable_model_summary": False, "max_epochs": 1, "barebones": False}
        fits = L.Trainer(accelerator="cpu", devices=1, **off, **more)
        return timed(lambda: fits.fit(Module(), Batches(steps)), steps)

    return block


def transformers() -> Block:
    from transformers import Trainer as Theirs
    from transformers import TrainingArguments

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, _, self.loss_of = parts()

        def forward(self, x: Any, labels: Any) -> Any:
            out = self.net(x)
            return {"loss": self.loss_of(out, labels), "logits": out}

    class Data(torch.utils.data.Dataset[Any]):
        """Of whole batches."""

        def __init__(self, steps: int):
            self.steps = steps

        def __len__(self) -> int:
            return self.steps

        def __getitem__(self, index: int) -> Any:
            return index

    def block(steps: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            quiet = {"report_to": [], "logging_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
            options = TrainingArguments(
                folder, max_steps=steps, per_device_train_batch_size=1, use_cpu=True, max_grad_norm=0.0, **quiet
            )
            net = Net()
            optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
            constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
            fits = Theirs(
                net,
                options,
                train_dataset=Data(steps),
                data_collator=lambda _: {"x": BATCH[0], "labels": BATCH[1]},
                optimizers=(optimizer, constant),
            )
            return timed(fits.train, steps)

    return block


def measured(blocks: dict[str, Block], rounds: int, steps: int) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds of the bare steps, and what each block took more than those beside it. A first round does not count."""
    plain: list[float] = []
    more: dict[str, list[float]] = {name: [] for name in blocks}
    for turn in range(-1, rounds):
        for name, block in blocks.items():
            before, taken, after = bare(steps), block(steps), bare(steps)
            if turn >= 0:
                plain += [before, after]
                more[name].append(taken - (before + after) / 2)
    return plain, more


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--no-peers", action="store_true")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    torch.set_num_threads(1)
    group = Group.start(Rendezvous.find(SlurmEnv("single"), {}))
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder, StopSignal() as stop:
        made = 0

        def job() -> JobHandle:
            """With a run folder for its metrics, and a stop signal. Nothing is saved."""
            nonlocal made
            made += 1
            return JobHandle(Settings(run_dir=Path(folder, str(made)), checkpoint=Saving(url=None)), group, stop, "1.0")

        steps, more = measured(ours(job), chosen.rounds, chosen.steps)
    group.close()  # or the peers would wrap the model in DDP
    if not chosen.no_peers:
        again, theirs = measured(peers(), chosen.rounds, chosen.steps)
        steps, more = steps + again, more | theirs
    step = statistics.median(steps)
    print(f"\nMore than a bare step of {1e6 * step:.0f} µs, of {chosen.steps} steps\n{machine()}; medians\n")
    rows = []
    for name, found in more.items():
        low, middle, high = (1e6 * value for value in statistics.quantiles(found, n=4))
        rows.append({"name": name, "more_us": middle, "quartiles_us": [low, high]})
        print(f"{name:28}{middle:>+8.1f} µs   half lie within {low:+.0f} to {high:+.0f}")
    if chosen.json:
        record = {"title": "A step of Trainer", "machine": machine(), "step_us": 1e6 * step, "rows": rows}
        chosen.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
