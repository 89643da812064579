"""What the control word costs a step, over 4 ranks: `python -m tests.train.word_cost [RANKS]`.

Blocks of steps (a pause, then an all-reduce of 1 MB, as in training) with and without a tick take turns, in
one run. The difference and the time in tick() contain waiting for ranks that the machine is too busy to run; the CPU
time in tick() does not.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from clusterdp.train import ControlWord
from tests.train.programs import start
from tests.train.ranks import running

BLOCKS, STEPS = 12, 50


def measure(pause_s: float) -> dict[str, float]:
    group = start()
    word = ControlWord(group.control_word_group)
    gradients = torch.ones(262_144)
    took: dict[bool, list[float]] = {True: [], False: []}
    in_tick: list[float] = []
    on_cpu: list[float] = []
    for block in range(2 * BLOCKS):
        ticking = block % 2 == 0
        began = time.perf_counter()
        for _ in range(STEPS):
            time.sleep(pause_s)
            dist.all_reduce(gradients)
            if ticking:
                at, cpu = time.perf_counter(), time.thread_time()
                word.tick()
                on_cpu.append(time.thread_time() - cpu)
                in_tick.append(time.perf_counter() - at)
        word.drain()
        took[ticking].append((time.perf_counter() - began) / STEPS)
    group.close()
    return {
        "step": statistics.median(took[False]) * 1e6,
        "difference": (statistics.median(took[True]) - statistics.median(took[False])) * 1e6,
        "tick": statistics.mean(in_tick) * 1e6,
        "cpu": statistics.mean(on_cpu) * 1e6,
        "every": word.every,
    }


def main(size: int) -> None:
    print(f"{size} ranks; µs a step   step without   more with ticks   in tick()   of it CPU   a word every k steps")
    for pause_s in (0.0, 0.002, 0.01, 0.05):
        with tempfile.TemporaryDirectory() as folder, running(Path(folder), measure, pause_s, size=size) as ranks:
            slowest = max(ranks.answers, key=lambda answer: answer["tick"])
        print("{step:33.0f} {difference:17.1f} {tick:11.1f} {cpu:11.1f} {every:22d}".format(**slowest))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
