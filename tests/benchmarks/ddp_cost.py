"""What job.wrap() and job.loop() cost a step of DistributedDataParallel over gloo, beside DDP and a loop by hand.

Short blocks of steps of both kinds take turns, each pair in the other order than the pair before. A figure is the mean
of the pairs' differences without their outer fifths, and its standard error, on the slowest rank; beside it what the
same gives for two models that are both bare. The loop reads the shared flags, keeps metrics, and measures where the
time goes; nothing is saved.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clusterdp.train import JobHandle, StopSignal
from clusterdp.train.settings import WorkerSettings
from tests.benchmarks.table import keep, machine
from tests.train.programs import start
from tests.train.ranks import running

WIDTHS = (256, 1024)  # of a hidden layer
BLOCK = 10  # steps of one kind in a row


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--blocks", type=int, default=400, help=f"of {BLOCK} steps, of each kind")
    options.add_argument("--ranks", type=int, default=2)
    chosen = options.parse_args()
    print(f"DDP over {chosen.ranks} gloo ranks\n{machine()}\n")
    print("parameters   bare step, ms   ours / bare   bare / bare")
    for width in WIDTHS:
        found = {}
        for kind in ("ours", "bare"):
            with (
                tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder,
                running(Path(folder), measure, kind, chosen.blocks, width, size=chosen.ranks) as started,
            ):
                found[kind] = max(started.answers, key=lambda answer: float(answer["ratio"]))
        keep(f"DDP: {width}", found["ours"]["ratio"])
        ratios = "   ".join("{ratio:.3f} ± {error:.3f}".format(**found[kind]) for kind in found)
        print(f"{found['ours']['size']:10d} {found['ours']['bare']:15.2f}   {ratios}")


def net_of(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def measure(kind: str, blocks: int, width: int) -> dict[str, Any]:
    """On each rank."""
    torch.set_num_threads(1)
    group = start()
    loss_of = nn.CrossEntropyLoss()
    batch = (torch.randn(64, 64), torch.randint(0, 10, (64,)))
    by_hand = DistributedDataParallel(net_of(width))
    took: dict[str, list[float]] = {"bare": [], "ours": []}

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    class Batches:
        """Hands out a block, and runs one by hand before it or after it."""

        def __init__(self, discount: Callable[[float], None] = lambda seconds: None):
            self.discount = discount
            self.optimizer = torch.optim.SGD(by_hand.parameters(), lr=1e-3)

        def __len__(self) -> int:
            return blocks * BLOCK

        def __iter__(self) -> Iterator[Any]:
            for block in range(blocks):
                if block % 2:
                    self.bare()
                dist.barrier()
                began = time.perf_counter()
                for _ in range(BLOCK):
                    yield batch
                took["ours"].append(time.perf_counter() - began)
                if not block % 2:
                    self.bare()

        def bare(self) -> None:
            dist.barrier()
            began = time.perf_counter()
            for _ in range(BLOCK):
                step(by_hand, self.optimizer, *batch)
            took["bare"].append(time.perf_counter() - began)
            self.discount(took["bare"][-1])

    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder, StopSignal() as stop:
        settings = WorkerSettings(run_dir=Path(folder))
        job = JobHandle(settings, group, stop, "1.0")
        if kind == "bare":
            model: nn.Module = DistributedDataParallel(net_of(width))
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            for x, y in Batches():
                step(model, optimizer, x, y)
        else:
            model = job.wrap(net_of(width))
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            loop = job.loop(Batches(job.flags.discount), {"model": model, "optimizer": optimizer})
            for x, y in loop:
                loop.log(loss=step(model, optimizer, x, y))
    group.close()
    settled = blocks // 10
    more = [mine - bare for mine, bare in zip(took["ours"][settled:], took["bare"][settled:], strict=True)]
    middle = sorted(more)[len(more) // 5 : -len(more) // 5]
    bare = statistics.median(took["bare"])
    size = sum(parameter.numel() for parameter in model.parameters())
    # The error of a trimmed mean (Tukey, McLaughlin 1963) is that of what is left, and some more.
    error = statistics.stdev(middle) / (0.6 * len(more) ** 0.5)
    return {
        "size": size,
        "bare": 1e3 * bare / BLOCK,
        "ratio": 1 + statistics.mean(middle) / bare,
        "error": error / bare,
    }


if __name__ == "__main__":
    main()
