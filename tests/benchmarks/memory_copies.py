"""Copies of the state in the memory of the nodes: what they cost a training, and how fast they are restored.

Restore: 1 GB of one process; beside a copy of the same bytes in memory. Steps: two ranks on the fake cluster, without
copies, with them, and with partners (a job with a spare node), in turns; the limit is 1.02 times. A step keeps each
rank's core busy, so that no core is idle.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.format.manifest import scan
from clusterdp.checkpoint.format.read_targets import BufferTarget
from clusterdp.checkpoint.format.verified_reads import ranges_of, read_manifest, read_ranges
from clusterdp.storage import MemoryStorage
from tests.benchmarks.first_allreduce import fake
from tests.benchmarks.table import show, take_turns
from tests.e2e.cluster import Cluster
from tests.e2e.run import submit
from tests.keepers import Node, keepers

MEMCPY, READ = "a copy of the bytes in memory", "read from the keeper, verified"
RESTORE, DISK = "restore from memory, into live tensors", "restore from the disk (page cache)"
# Adam on 10 million parameters: 120 MB of state. A step takes about a tenth of a second of one core.
PROGRAM = """\
import torch
from torch import nn

def main(job):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(torch.randn(20_000, 1024))
    model = job.wrap(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(10)]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for (x,) in job.loop(job.loader(data, 32), {"model": model, "optimizer": optimizer}):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""
CONFIG = """\
entry: train:main
resources: {nodes: 2, tasks_per_node: 1}
checkpoint: {every_s: null}
train: {max_steps: STEPS}
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--steps", type=int, default=300)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
        with keepers(Path(name), "n1", key=uuid.uuid4().hex) as (node,):
            restore(node, Path(name, "disk"), chosen.rounds)
        with fake() as cluster:
            Path(name, "steps").mkdir()
            steps(cluster, Path(name, "steps"), chosen.rounds, chosen.steps)


def state() -> dict[str, nn.Module]:
    return {"model": nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(15)])}  # 1.007 GB


def restore(node: Node, folder: Path, rounds: int) -> None:
    os.environ |= node.environ
    memory = MemoryStorage(node.key, node.name)
    checkpointer = Checkpointer(folder, state(), memory=memory)
    checkpointer.save(1)
    checkpointer.copy(2)
    checkpointer.wait()
    (info,), _ = scan(memory)
    ranges = ranges_of(read_manifest(memory, info))
    source = torch.ones(info.bytes, dtype=torch.uint8)
    target = torch.zeros(info.bytes, dtype=torch.uint8)
    live = state()

    def read() -> None:
        read_ranges(memory, ranges, BufferTarget(memoryview(target.numpy())))

    def restored(memory: MemoryStorage | None) -> None:
        found = Checkpointer(folder, live, memory=memory).restore()
        assert found is not None
        assert found.from_memory == (memory is not None)

    torch.set_num_threads(1)
    measures = {
        MEMCPY: lambda: timed(lambda: target.copy_(source)),
        READ: lambda: timed(read),
        RESTORE: lambda: timed(lambda: restored(memory)),
        DISK: lambda: timed(lambda: restored(None)),
    }
    rows = take_turns(measures, rounds, dict.fromkeys((READ, RESTORE, DISK), MEMCPY))
    show("1 GB into one process", rows)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def steps(cluster: Cluster, folder: Path, rounds: int, count: int) -> None:
    (folder / "train.py").write_text(PROGRAM)
    (folder / "entry.yaml").write_text(CONFIG.replace("STEPS", str(count)))
    words = {
        "without copies": "checkpoint.memory_s=0",
        "with copies": "resources.spare_nodes=0",
        "with partners": "resources.spare_nodes=1",
    }
    seconds: dict[str, list[float]] = {name: [] for name in words}
    for turn in range(len(words) * rounds):
        name = [*words][turn % len(words)]
        run = submit(cluster, folder, "entry.yaml", f"run_dir={folder}/run-{turn}", words[name])
        assert run.wait_end() == "COMPLETED", run.account()
        spent = run.events("spent")[-1]
        seconds[name].append((spent["steps_s"] + spent["saves_s"]) / count)
    without = median(seconds["without copies"])
    for name, values in seconds.items():
        spread = f"({1000 * min(values):.1f} to {1000 * max(values):.1f})"
        print(f"a step {name}: {1000 * median(values):.1f} ms {spread}, {median(values) / without:.3f} x, limit 1.02 x")


if __name__ == "__main__":
    main()
