"""Figures on a GPU: the stall of an asynchronous save, a restore beside torch.load(), the comparison of replicas.

python -m tests.gpu.bench [--mb 8000]: one JSON line for each figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.save.replica_check import Sums
from clusterdp.checkpoint.state.tree import as_bytes
from tests.gpu.conftest import ON

DEVICE = torch.device(ON)
ROUNDS = 5


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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--mb", type=int, default=8000 if DEVICE.type == "cuda" else 128)
    chosen = options.parse_args()
    card = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder:
        for name, value in figures(chosen.mb, Path(folder)):
            print(json.dumps({"figure": name, "value": round(value, 3), "mb": chosen.mb, "on": card}), flush=True)


if __name__ == "__main__":
    main()
