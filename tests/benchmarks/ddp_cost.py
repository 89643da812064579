"""What job.wrap() and job.loop() cost a step of DistributedDataParallel over gloo, beside DDP and a loop by hand.

On each rank blocks of steps of both kinds take turns; a figure is the median of the ratios of neighbouring blocks, on
the slowest rank. The loop looks at the control word, keeps metrics, and measures where the time goes; nothing is saved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clusterdp.train import JobHandle, StopSignal
from clusterdp.train.settings import Saving, Settings
from tests.benchmarks.table import machine
from tests.train.programs import start
from tests.train.ranks import running

WIDTHS = (256, 1024)  # of a hidden layer
BLOCK = 25  # steps of one kind in a row


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--blocks", type=int, default=40, help=f"of {BLOCK} steps, of each kind")
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    print(f"DDP over {chosen.ranks} gloo ranks\n{machine()}\n")
    print("parameters   bare step, ms   ours / bare   quartiles")
    rows = []
    for width in WIDTHS:
        with (
            tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder,
            running(Path(folder), measure, chosen.blocks, width, size=chosen.ranks) as started,
        ):
            row = max(started.answers, key=lambda answer: float(answer["ratio"]))
        rows.append(row)
        print("{size:10d} {bare:15.2f} {ratio:13.3f}   {low:.3f} to {high:.3f}".format(**row))
    if chosen.json:
        record = {"title": "DDP", "machine": machine(), "ranks": chosen.ranks, "rows": rows}
        chosen.json.write_text(json.dumps(record, indent=1) + "\n")


def net_of(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def measure(blocks: int, width: int) -> dict[str, Any]:
    """On each rank."""
    torch.set_num_threads(1)
    group = start()
    loss_of = nn.CrossEntropyLoss()
    batch = (torch.randn(64, 64), torch.randint(0, 10, (64,)))
    by_hand = DistributedDataParallel(net_of(width))
    bare: list[float] = []
    ours: list[float] = []

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    class Batches:
        """Hands out a block, and then runs one by hand."""

        def __len__(self) -> int:
            return blocks * BLOCK

        def __iter__(self) -> Iterator[Any]:
            optimizer = torch.optim.SGD(by_hand.parameters(), lr=1e-3)
            for _ in range(blocks):
                began = time.perf_counter()
                for _ in range(BLOCK):
                    step(by_hand, optimizer, *batch)
                ended = time.perf_counter()
                bare.append(ended - began)
                for _ in range(BLOCK):
                    yield batch
                ours.append(time.perf_counter() - ended)

    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder, StopSignal() as stop:
        settings = Settings(run_dir=Path(folder), checkpoint=Saving(url=None))
        job = JobHandle(settings, group, stop, "1.0")
        model = job.wrap(net_of(width))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loop = job.loop(Batches(), {"model": model, "optimizer": optimizer})
        for x, y in loop:
            loop.log(loss=step(model, optimizer, x, y))
    group.close()
    ratios = [mine / plain for mine, plain in zip(ours, bare, strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    size = sum(parameter.numel() for parameter in model.parameters())
    return {"size": size, "bare": 1e3 * statistics.median(bare) / BLOCK, "ratio": ratio, "low": low, "high": high}


if __name__ == "__main__":
    main()
