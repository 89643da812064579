"""What each technique adds to a step, beside the same step in plain torch, in one process.

    python -m tests.benchmarks.technique_cost

The model is tiny (8 parameters), so that a step is short; what grows with the model (a norm, a copy of the weights) is
a part of the technique, and torch's own line does it as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from clusterdp.slurm.env import SlurmEnv
from clusterdp.train import Amp, Ema, Group, JobHandle, NanGuard, Rendezvous, StopSignal, gradient_sync
from clusterdp.train.parallel.ddp import check_finished
from clusterdp.train.settings import WorkerSettings
from tests.benchmarks.table import machine

STEPS = 200


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=30)
    rounds = options.parse_args().rounds
    torch.set_num_threads(1)
    group = Group.start(Rendezvous.find(SlurmEnv("single"), {}), backend="gloo")
    job = JobHandle(WorkerSettings(), group, StopSignal(), "local.1")
    print(f"What a technique adds to a step\n{machine()}; the least of {rounds} blocks of {STEPS} steps, in turns\n")
    print(f"{'':44}{'torch':>9}{'ours':>9}{'more':>9}")
    for name, (theirs, ours) in pairs(job).items():
        least = {theirs: float("inf"), ours: float("inf")}
        for _ in range(rounds):
            for block in least:
                least[block] = min(least[block], timed(block))
        a, b = least[theirs] * 1e6, least[ours] * 1e6
        print(f"{name:44}{a:>6.1f} µs{b:>6.1f} µs{b - a:>6.1f} µs")
    group.close()


def timed(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - began) / STEPS


def pairs(job: JobHandle) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    x = torch.randn(2, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
    plain, nan_guard = Amp("O0", "cpu"), NanGuard(net, job.group)
    half, scaler = Amp("O1", "cpu"), torch.amp.GradScaler("cpu")
    ema, averaged = Ema(net, 0.9), AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    ddp = job.wrap(net)
    assert isinstance(ddp, nn.parallel.DistributedDataParallel)

    def forward_and_backward() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = ddp(x).square().mean()
        return loss

    def by_torch(clip: bool = False) -> None:
        forward_and_backward().backward()  # type: ignore[no-untyped-call]
        if clip and nn.utils.clip_grad_norm_(net.parameters(), 1.0).isnan().item():
            return
        optimizer.step()

    def by_amp(**options: float) -> None:
        plain.backward(forward_and_backward())
        plain.step(optimizer, **options)

    def by_scaler() -> None:
        scaler.scale(forward_and_backward()).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()

    def by_half() -> None:
        half.backward(forward_and_backward())
        half.step(optimizer)

    def watched() -> None:
        plain.backward(nan_guard.watch(forward_and_backward()))
        plain.step(optimizer, clip_norm=1.0, nan_guard=nan_guard)

    def synced() -> None:
        with gradient_sync(ddp, True):
            by_torch()

    def unsynced_by_torch() -> None:
        with ddp.no_sync():
            by_torch()

    def unsynced() -> None:
        with gradient_sync(ddp, False):
            by_torch()

    def checked() -> None:
        by_torch()
        check_finished(ddp)

    return {
        "Amp, O0": (by_torch, by_amp),
        "Amp, clipped": (lambda: by_torch(True), lambda: by_amp(clip_norm=1.0)),
        "Amp, scaled": (by_scaler, by_half),
        "NanGuard, clipped": (lambda: by_torch(True), watched),
        "gradient_sync, the last batch of a window": (by_torch, synced),
        "gradient_sync, another batch": (unsynced_by_torch, unsynced),
        "parameters without a gradient": (by_torch, checked),
        "Ema": (lambda: averaged.update_parameters(net), ema.update),
    }


if __name__ == "__main__":
    main()
