"""Matrix products and a linear regression, timed on the CPU and, if available, on the GPU.

    clusterdp submit configs/products.yaml --cluster local
    python configs/products.py rounds=5

The result is a table of times, which shows that a GPU is made for large pieces of work. Each call of the GPU costs some
microseconds before it computes, and computing a small product, or the ten columns of the regression, takes no longer
than these microseconds.

The recipe trains nothing. Its state is the times that it has measured, and after a preemption it continues with the
next round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.benchmark import Timer

from clusterdp.recipes.bundled import diabetes
from clusterdp.train import JobHandle

SIZES = (64, 256, 1024)
DESCENT = 100  # steps of gradient descent in the regression


def main(job: JobHandle, rounds: int = 5, least_s: float = 0.2, largest: int = SIZES[-1]) -> float:
    """Returns the largest error of a product, relative to the product in float64. least_s: the minimum time of each
    measurement in a round; the best round counts. largest: rows of the largest product on each device."""
    devices = ["cpu", *(["cuda"] if job.device.type == "cuda" else [])]
    works: dict[str, tuple[Callable[[], Any], float]] = {}
    for device in devices:
        for size in sorted({*SIZES, largest}):
            works[f"product {size:,}/{device}"] = product(size, device)
        works[f"regression/{device}"] = regression(device)
    table = Table()
    loop = job.loop(list(works), {"table": table}, epochs=rounds)
    for name in loop:
        work, flops = works[name]
        table.add(name, seconds(work, least_s), flops)
        loop.log(gflops=table.rows[name][1])

    worst = max(error(256, device) for device in devices)
    job.log(rows={name: row[0] for name, row in table.rows.items()}, test_loss=worst)
    if job.rank == 0:
        print(f"{table.text(devices)}\nproducts: relative error {worst:.1e}", flush=True)
    return worst


def product(size: int, device: str) -> tuple[Callable[[], Any], float]:
    """Returns a function that computes the product, and the number of floating point operations of a call."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    return lambda: a @ b, 2.0 * size**3


def regression(device: str) -> tuple[Callable[[], Any], float]:
    """Returns a function that does steps of gradient descent on the diabetes set, all 442 rows at once, and the number
    of floating point operations of a call."""
    features, target = (part.to(device) for part in diabetes())
    rows, columns = features.shape

    def descend() -> torch.Tensor:
        weights = torch.zeros(columns, device=device)
        for _ in range(DESCENT):
            weights -= 0.1 / rows * (features.T @ (features @ weights - target))
        return weights

    return descend, DESCENT * 4.0 * rows * columns


def seconds(work: Callable[[], Any], least_s: float) -> float:
    """Returns the mean seconds that a call takes, measured for at least least_s. The first calls are not measured."""
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=least_s).mean


def error(size: int, device: str) -> float:
    """Returns the error of a product in float32, relative to the product in float64."""
    chance = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=chance) for _ in range(2))
    right = a.double() @ b.double()
    return float(((a.to(device) @ b.to(device)).cpu() - right).norm() / right.norm())


class Table:
    """The best time of each workload. Each rank has its own times."""

    per_rank = True

    def __init__(self) -> None:
        self.rows: dict[str, tuple[float, float]] = {}  # workload -> seconds, and 1e9 operations a second

    def add(self, name: str, took_s: float, flops: float) -> None:
        best = min(took_s, self.rows.get(name, (took_s, 0.0))[0])
        self.rows[name] = (best, flops / best / 1e9)

    def text(self, devices: list[str]) -> str:
        """Returns the table: a row for each workload, a column for each device."""
        works = dict.fromkeys(name.partition("/")[0] for name in self.rows)
        lines = [f"{'':16}" + "".join(f"{device:>12} {'GFLOP/s':>9}" for device in devices)]
        for work in works:
            cells = (self.rows[f"{work}/{device}"] for device in devices)
            lines.append(f"{work:16}" + "".join(f"{1e6 * took:>9,.0f} µs {rate:>9,.1f}" for took, rate in cells))
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Any]:
        return {name: list(row) for name, row in self.rows.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = {name: (took, rate) for name, (took, rate) in state.items()}


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
