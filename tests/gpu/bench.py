"""Figures on a GPU: saves, restores beside torch.load(), the comparison of replicas, and what a step costs more.

python -m tests.gpu.bench [--mb 8000]: one JSON line for each figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.save.replica_check import Sums
from clusterdp.checkpoint.state.tree import as_bytes
from clusterdp.config.tree import CheckpointConfig
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train import Group, JobHandle, Prefetcher, Rendezvous, StopSignal
from clusterdp.train.settings import WorkerSettings
from tests.gpu.conftest import ON

DEVICE = torch.device(ON)
ROUNDS = 5
STEPS = 300
MB = 1 << 20
WIDE = 4096 if DEVICE.type == "cuda" else 256


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any]) -> float:
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def best(work: Callable[[], Any]) -> float:
    return min(seconds(work) for _ in range(ROUNDS))


def state_of(mb: int) -> dict[str, torch.Tensor]:
    """Tensors of 64 MB, as many as fill `mb`."""
    return {f"t{i}": torch.randn(16 << 20, device=DEVICE) for i in range(max(mb // 64, 1))}


def figures(mb: int, folder: Path) -> Iterator[tuple[str, float]]:
    state = state_of(mb)
    size = sum(tensor.nbytes for tensor in state.values())
    checkpointer = Checkpointer(folder, dict(state), keep_last=1)
    stalls = []
    for step in range(1 + ROUNDS):
        wait()
        began = time.perf_counter()
        checkpointer.async_save(step)
        stalls.append(time.perf_counter() - began)
        checkpointer.wait()
    yield "first asynchronous save, host stands still, ms", 1e3 * stalls[0]
    yield "later asynchronous save, host stands still, ms", 1e3 * statistics.median(stalls[1:])
    pieces = [as_bytes(tensor) for tensor in state.values()]
    Sums(pieces).values()
    yield (
        "checksums of all tensors, GB/s",
        size / 1e9 / best(lambda: Sums(pieces).values()),
    )
    yield "restore, every byte verified, GB/s", size / 1e9 / best(checkpointer.restore)
    torch.save(state, folder / "torch.pt")

    def load() -> None:
        found = torch.load(folder / "torch.pt", map_location=DEVICE, weights_only=True)
        for name, tensor in state.items():
            tensor.copy_(found[name])

    yield "torch.load and copy, GB/s", size / 1e9 / best(load)


def figures_of_steps(folder: Path) -> Iterator[tuple[str, float]]:
    """Figures of a training on this GPU, beside a bare loop of the same steps."""
    group = Group.start(Rendezvous.find(SlurmEnv("single"), {}))
    settings = WorkerSettings(run_dir=folder, checkpoint=CheckpointConfig(url=str(folder / "checkpoints")))
    (folder / "attempts" / "1.0").mkdir(parents=True)
    with StopSignal() as stop:
        job = JobHandle(settings, group, stop, "1.0")
        small = Training(32)
        batch = torch.randn(16, 32)
        here = [batch.to(DEVICE)] * STEPS
        bare = best(lambda: small.run(here))
        yield "bare step, us", 1e6 * bare / STEPS
        count = iter(range(100))
        loop = best(lambda: small.run(job.loop(here, {}, name=f"a{next(count)}")))
        yield "step of job.loop, over the bare step, us", 1e6 * (loop - bare) / STEPS
        wide = Training(WIDE)
        host = torch.randn(16 * MB // (4 * WIDE), WIDE)
        host = host.pin_memory() if DEVICE.type == "cuda" else host
        there = host.to(DEVICE)
        wide.run([there] * 2)
        bare = best(lambda: wide.run([there] * 20))
        ahead = best(lambda: wide.run(Prefetcher([host] * 20, DEVICE)))
        yield "steps with batches of 16 MB copied ahead, x batches on the device", ahead / bare
        checkpointer = Checkpointer(folder / "beside", {"model": wide.model}, keep_last=1)
        checkpointer.save(0)

        def beside() -> None:
            checkpointer.async_save(next(count))
            wide.run([there] * 20)

        with_save = best(beside)
        checkpointer.wait()
        yield "20 steps beside the begin of a save, x the same without", with_save / bare
    group.close()


class Training:
    def __init__(self, width: int) -> None:
        layers = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.model = nn.Sequential(*layers).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)

    def run(self, batches: Iterable[Any]) -> None:
        for batch in batches:
            self.model(batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--mb", type=int, default=8000 if DEVICE.type == "cuda" else 128)
    chosen = options.parse_args()
    card = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder:
        for name, value in chain(figures_of_steps(Path(folder) / "steps"), figures(chosen.mb, Path(folder))):
            print(json.dumps({"figure": name, "value": round(value, 3), "mb": chosen.mb, "on": card}), flush=True)


if __name__ == "__main__":
    main()
