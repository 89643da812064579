"""What sharing the flags costs a step, over 4 ranks.

Blocks of steps (a pause, then an all-reduce of 1 MB, as in training) with and without a tick take turns, in one run.
The difference and the time in tick() contain waiting for ranks that the machine is too busy to run; the CPU time in
tick() does not.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from clusterdp.train import SharedFlags
from tests.benchmarks.table import machine
from tests.train.programs import start
from tests.train.ranks import running

STEPS = 50  # of a block
PAUSES_S = (0.0, 0.002, 0.01, 0.05)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--ranks", type=int, default=4)
    chosen = options.parse_args()
    print(f"Shared flags over {chosen.ranks} ranks, µs a step of the slowest rank\n{machine()}\n")
    print("pause of a step   without flags    more with them  in tick()   of it CPU   shared every k steps")
    found = []
    for pause_s in PAUSES_S:
        row = slowest(chosen.ranks, chosen.rounds, pause_s)
        found.append(row)
        print("{pause:12.0f} ms {step:16.0f} {difference:15.1f} {tick:11.1f} {cpu:11.1f} {every:22.0f}".format(**row))


def slowest(ranks: int, rounds: int, pause_s: float) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder,
        running(Path(folder), measure, rounds, pause_s, size=ranks) as started,
    ):
        return max(started.answers, key=lambda answer: float(answer["tick"]))


def measure(rounds: int, pause_s: float) -> dict[str, float]:
    """On each rank."""
    group = start()
    flags = SharedFlags(group.flags_group)
    gradients = torch.ones(262_144)
    took: dict[bool, list[float]] = {True: [], False: []}
    in_tick: list[float] = []
    on_cpu: list[float] = []
    for block in range(2 * rounds):
        ticking = block % 2 == 0
        began = time.perf_counter()
        for _ in range(STEPS):
            time.sleep(pause_s)
            dist.all_reduce(gradients)
            if ticking:
                at, cpu = time.perf_counter(), time.thread_time()
                flags.tick()
                on_cpu.append(time.thread_time() - cpu)
                in_tick.append(time.perf_counter() - at)
        flags.drain()
        took[ticking].append((time.perf_counter() - began) / STEPS)
    group.close()
    without, more = statistics.median(took[False]), statistics.median(took[True])
    return {
        "pause": pause_s * 1e3,
        "step": without * 1e6,
        "difference": (more - without) * 1e6,
        "tick": statistics.mean(in_tick) * 1e6,
        "cpu": statistics.mean(on_cpu) * 1e6,
        "every": flags.every,
    }


if __name__ == "__main__":
    main()
