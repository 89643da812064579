"""A stop and a restart of a training over 2 nodes x 1 rank, on the fake cluster or a real Slurm.

Restart: from the start of the batch script to the end of the first new step, without the time in Slurm's queue; beside
a script by hand that imports torch, meets over gloo, loads a checkpoint and makes a step. Restart in place: from the
kill of a rank, or from the end of the attempt as hung, to the end of the first new step; the other rank stands
still, so that only KILL ends it. The limit is 1.1 times the cold start by hand, and a second. On fewer nodes: from the
loss of a node of three to the end of the first new step on two; the limit is 1.3 times the cold start by hand, and a
second. Stop: from SIGTERM to the end of the last process; beside its first part, two exchanges of flags and the save.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from statistics import median

from clusterdp.batch.nodes.keeper import HELD
from tests.benchmarks.first_allreduce import fake, real
from tests.benchmarks.table import Row, show
from tests.e2e.cluster import Cluster
from tests.e2e.processes import copies_of, lost, nodes_of, processes_of, ranks_of, waiting_of
from tests.e2e.run import Run, submit
from tests.waiting import wait_for

BY_HAND, RESTART = "a cold start by hand", "clusterdp: restart"
KILLED, HUNG = "clusterdp: rank killed, in place", "clusterdp: hung, in place"
WARM = "clusterdp: rank killed, in place, warm"
FEWER = "clusterdp: node lost, on fewer nodes"
STARTS = (BY_HAND, RESTART, KILLED, HUNG, WARM, FEWER)
SAVED, STOP = "SIGTERM until that is saved", "SIGTERM to the last process gone"

# The same training twice: as an entry, and as a program of its own with a loop that knows nothing of stops.
PROGRAM = """\
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

def parts():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(40_000, 64), torch.randint(10, (40_000,)))
    net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return data, net

def step(model, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()

def main(job):
    data, net = parts()
    model = job.wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loop = job.loop(job.loader(data, 8), {"model": model, "optimizer": optimizer})
    for x, y in loop:
        (nn.functional.cross_entropy(model(x), y) / loop.window).backward()
        if loop.window_ends:
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.05)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    data, net = parts()
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    checkpoint, done = sys.argv[1:]
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    sampler = torch.utils.data.DistributedSampler(data)
    for x, y in torch.utils.data.DataLoader(data, 8, sampler=sampler):
        step(model, optimizer, x, y)
        break
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
        with open(done + ".new", "w") as out:
            out.write(repr(time.time()))
        os.rename(done + ".new", done)
    dist.destroy_process_group()
"""
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=1
echo $EPOCHREALTIME >$2.began
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((12000 + SLURM_JOB_ID % 8000)) GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1
srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID exec "$@"' - PYTHON train.py "$@"
"""
CONFIG = """\
entry: train:main
resources: {nodes: 2, tasks_per_node: 1}
checkpoint: {every_s: null}
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--cluster", choices=("fake", "slurm"), default="fake")
    chosen = options.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in (*STARTS, SAVED, STOP)}
    with (
        (fake if chosen.cluster == "fake" else real)() as cluster,
        tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name,
    ):
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        (folder / "hand.sbatch").write_text(SCRIPT.replace("PYTHON", sys.executable))
        (folder / "entry.yaml").write_text(CONFIG)
        numbers = count()
        for turn in range(-1, chosen.rounds):
            taken = {BY_HAND: by_hand(cluster, folder, next(numbers))}
            if chosen.cluster == "fake":  # a real Slurm starts a requeued job after two minutes
                taken |= ours(cluster, folder, next(numbers))
            taken[KILLED] = in_place(cluster, folder, next(numbers), hangs=False)
            taken[HUNG] = in_place(cluster, folder, next(numbers), hangs=True)
            taken[WARM] = in_place(cluster, folder, next(numbers), hangs=False, warm=True)
            taken[FEWER] = on_fewer(cluster, folder, next(numbers))
            if turn >= 0:  # the first one warms the caches
                for each, value in taken.items():
                    seconds[each].append(value)
    seconds = {name: values for name, values in seconds.items() if values}
    show(
        "From the start of the batch script to the first step",
        [Row(name, seconds[name], None if name == BY_HAND else BY_HAND) for name in STARTS if name in seconds],
    )
    limit = 1.1 * median(seconds[BY_HAND]) + 1
    for name in (KILLED, HUNG):
        print(f"{name}: {median(seconds[name]):.2f} s, limit {limit:.2f} s")
    print(f"{FEWER}: {median(seconds[FEWER]):.2f} s, limit {1.3 * median(seconds[BY_HAND]) + 1:.2f} s")
    print(f"{WARM}: {median(seconds[WARM]):.2f} s, limit {0.35 * median(seconds[BY_HAND]):.2f} s")
    if STOP not in seconds:
        return
    print()
    show("The stop of all ranks, at 20 steps a second", [Row(SAVED, seconds[SAVED]), Row(STOP, seconds[STOP], SAVED)])


def by_hand(cluster: Cluster, folder: Path, number: int) -> float:
    done = folder / f"done-{number}"
    words = ["sbatch", f"--output={folder}/%j.out", "hand.sbatch", f"{folder}/checkpoint.pt", str(done)]
    subprocess.run(words, cwd=folder, env=cluster.environ(), stdout=subprocess.DEVNULL, check=True)
    wait_for("the first step", done.exists, 60)
    wait_for("an idle cluster", lambda: not cluster.run("squeue", "-h"), 60)
    return float(done.read_text()) - float(done.with_suffix(".began").read_text())


def ours(cluster: Cluster, folder: Path, number: int) -> dict[str, float]:
    run = submit(cluster, folder, "entry.yaml", f"run_dir={folder}/run-{number}")
    wait_for("some steps", lambda: run.step() > 40, 60, report=run.account)
    began = time.time()
    gone = stopped_after(run)
    wait_for("the first new step", lambda: len(first_steps(run)) == 2, 60, report=run.account)
    cluster.run("scancel", run.job)
    wait_for("an idle cluster", lambda: not cluster.run("squeue", "-h"), 60)
    save = run.events("saved")[0]  # of the stop; the next attempt may save, too
    awake = run.events("started")[-1]["awake"]
    return {RESTART: first_steps(run)[-1] - awake, STOP: gone, SAVED: save["time"] - began}


def in_place(cluster: Cluster, folder: Path, number: int, hangs: bool, warm: bool = False) -> float:
    """Seconds from a fault to the end of the first new step in the same allocation."""
    words = [f"restart.warm_after_s={1 if warm else 'null'}", *(["restart.hang_after_s=2"] if hangs else [])]
    run = submit(cluster, folder, "entry.yaml", f"run_dir={folder}/run-{number}", *words)
    wait_for("some steps", lambda: run.step() > 40, 60, report=run.account)
    if warm:
        wait_for("ranks in reserve", lambda: len(waiting_of(run)) == 2, 60, report=run.account)
    ranks = ranks_of(run)
    os.kill(ranks[0], signal.SIGSTOP)
    began = time.time()
    if not hangs:
        os.kill(ranks[1], signal.SIGKILL)
    wait_for("the first new step", lambda: len(first_steps(run)) == 2, 60, report=run.account)
    if hangs:
        began = run.files.attempts()[0].hung.stat().st_mtime
    cluster.run("scancel", run.job)
    wait_for("an idle cluster", lambda: not cluster.run("squeue", "-h"), 60)
    assert bool(run.events("warm")) == warm, run.account()
    return first_steps(run)[-1] - began


def on_fewer(cluster: Cluster, folder: Path, number: int) -> float:
    """Seconds from the loss of a node to the end of the first new step on the others."""
    words = ["resources.nodes=2-3", "train.global_batch_size=24", "checkpoint.memory_s=1", "restart.warm_after_s=null"]
    run = submit(cluster, folder, "entry.yaml", f"run_dir={folder}/run-{number}", *words)
    wait_for("some steps", lambda: run.step() > 40, 60, report=run.account)
    wait_for("copies", lambda: any(HELD in name for name in copies_of(run)), 60, report=run.account)
    node = nodes_of(run)[1]
    began = time.time()
    with lost(run, node):
        wait_for("the first new step", lambda: len(first_steps(run)) == 2, 60, report=run.account)
    cluster.run("scancel", run.job)
    wait_for("an idle cluster", lambda: not cluster.run("squeue", "-h"), 60)
    assert [event["size"] for event in run.events("restarted")] == [2], run.account()
    return first_steps(run)[-1] - began


def stopped_after(run: Run) -> float:
    """Sends SIGTERM to all ranks; seconds until no process of theirs is left."""
    pids = list(processes_of(run))
    began = time.monotonic()
    for pid in ranks_of(run).values():
        os.kill(pid, signal.SIGTERM)
    wait_for("their end", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 60, every_s=0.005)
    return time.monotonic() - began


def first_steps(run: Run) -> list[float]:
    """When each attempt had made its first step."""
    found: dict[str, float] = {}
    for event in run.events("spent"):
        found.setdefault(event["attempt"], event["time"])
    return list(found.values())


if __name__ == "__main__":
    main()
