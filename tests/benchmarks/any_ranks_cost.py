"""What train.global_batch_size and train.exact: any_ranks cost a step, beside DDP with accumulation by hand.

    python -m tests.benchmarks.any_ranks_cost --ranks 2
    python -m tests.benchmarks.any_ranks_cost --ranks 4

Blocks of steps of both take turns, and a figure is the median of the pairs' ratios, on the slowest rank: of the time on
the clock, which needs an idle machine with a core for each rank, and of the CPU time of all ranks. Bytes are those of
gradients that a rank sends, beside an all-reduce's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clusterdp.config.tree import CheckpointConfig, TrainConfig
from clusterdp.train import JobHandle, StopSignal
from clusterdp.train.settings import WorkerSettings
from tests.benchmarks.table import keep, machine
from tests.train.programs import start
from tests.train.ranks import running

MICRO_BATCHES, SAMPLES = 8, 8
WIDTH, LAYERS = 1024, 24  # 25 million parameters
BLOCK = 2  # steps of one kind in a row
KINDS = ("bare", "global_batch_size", "any_ranks")  # bare: by hand as well


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--blocks", type=int, default=30, help=f"of {BLOCK} steps, of each kind")
    options.add_argument("--ranks", type=int, default=2)
    chosen = options.parse_args()
    print(f"{WIDTH * WIDTH * LAYERS / 1e6:.0f} M parameters on {chosen.ranks} gloo ranks\n{machine()}\n")
    print(f"{'':28}{'DDP, ms':>10}{'time':>8}{'CPU':>8}{'bytes':>8}")
    for kind in KINDS:
        with (
            tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder,
            running(Path(folder), measure, kind, chosen.blocks, size=chosen.ranks) as started,
        ):
            for process in started.processes:
                process.join()
            found = max(started.answers, key=lambda answer: float(answer["time"]))
        keep(f"any_ranks: {chosen.ranks} ranks, {kind}", found["time"])
        print(f"{kind:28}{found['bare']:>10.0f}{found['time']:>8.3f}{found['cpu']:>8.3f}{found['bytes']:>8.2f}")


def net_of() -> nn.Module:
    torch.manual_seed(0)
    layers = [each for _ in range(LAYERS - 1) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))


class Clock:
    """Time and CPU time, the latter of all ranks."""

    def __init__(self) -> None:
        self.read()

    def read(self) -> tuple[float, float]:
        dist.barrier()
        cpu = torch.tensor(time.process_time(), dtype=torch.float64)
        dist.all_reduce(cpu)
        now = time.perf_counter(), cpu.item()
        before, self._last = getattr(self, "_last", now), now
        return now[0] - before[0], now[1] - before[1]


def measure(kind: str, blocks: int) -> dict[str, Any]:
    """On each rank."""
    torch.set_num_threads(1)
    group = start()
    ranks, loss_of = dist.get_world_size(), nn.MSELoss()
    data = torch.randn(blocks * BLOCK * MICRO_BATCHES * SAMPLES, WIDTH)
    batches = [data[:SAMPLES].clone() for _ in range(MICRO_BATCHES // ranks)]
    hand = DistributedDataParallel(net_of(), gradient_as_bucket_view=True)
    by_hand = torch.optim.SGD(hand.parameters(), lr=1e-5, momentum=0.9)

    def bare() -> None:
        for _ in range(BLOCK):
            for number, x in enumerate(batches, 1):
                with nullcontext() if number == len(batches) else hand.no_sync():
                    (loss_of(hand(x), x) / len(batches)).backward()
            by_hand.step()
            by_hand.zero_grad()

    clock, took = Clock(), list[tuple[tuple[float, float], tuple[float, float]]]()
    if kind == "bare":
        for _ in range(blocks):
            clock.read()
            bare()
            mine = clock.read()
            bare()
            took.append((mine, clock.read()))
        sent = 1.0
    else:
        sent = ours(kind, group, data, bare, clock, took)
    group.close()
    settled = took[blocks // 5 :]
    return {
        "bare": 1e3 * statistics.median(hand[0] for _, hand in settled) / BLOCK,
        "time": statistics.median(mine[0] / hand[0] for mine, hand in settled),
        "cpu": statistics.median(mine[1] / hand[1] for mine, hand in settled),
        "bytes": sent,
    }


def ours(kind: str, group: Any, data: torch.Tensor, bare: Callable[[], None], clock: Clock, took: list[Any]) -> float:
    """Returns the bytes that a rank has sent for each byte of an all-reduce."""
    ranks, sent = dist.get_world_size(), [0]
    exchange = dist.batch_isend_irecv

    def counted(messages: list[Any]) -> list[Any]:
        sent[0] += sum(each.tensor.nbytes for each in messages if each.op is dist.isend)
        return exchange(messages)

    dist.batch_isend_irecv = counted
    train = TrainConfig(global_batch_size=MICRO_BATCHES * SAMPLES, exact=kind if kind == "any_ranks" else "same_ranks")
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder, StopSignal() as stop:
        settings = WorkerSettings(run_dir=Path(folder), train=train, checkpoint=CheckpointConfig(url=None))
        job = JobHandle(settings, group, stop, "1.0")
        model, loss_of = job.wrap(net_of()), nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
        loop = job.loop(job.loader((data, data), SAMPLES), {"model": model, "optimizer": optimizer})
        clock.read()
        for x, y in loop:
            loss = loss_of(model(x), y)
            (loss / loop.window).backward()
            loop.log(loss=loss)
            if loop.window_ends:
                optimizer.step()
                optimizer.zero_grad()
                if (loop.step + 1) % BLOCK == 0:
                    mine = clock.read()
                    bare()
                    took.append((mine, clock.read()))
                    job.flags.discount(took[-1][1][0])
        size = sum(parameter.nbytes for parameter in model.parameters())
        return sent[0] / loop.step / (2 * (ranks - 1) / ranks * size) or 1.0


if __name__ == "__main__":
    main()
