"""Seconds until a node is named whose processes are all stopped, until a spare node runs its ranks, and until a job is
requeued that has lost the node of its batch script, from the moment at which Slurm notices; each beside its limit.

On the fake cluster, or a real Slurm (24.11 or newer, because 22.05 fails such a job).
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from statistics import median

from tests.benchmarks.first_allreduce import fake, real
from tests.e2e.cluster import Cluster
from tests.e2e.processes import keepers_on, lost, nodes_of, processes_on
from tests.e2e.run import Run, submit
from tests.waiting import wait_for

# Of the 20 s, a node is silent for 10 until its place is given away, and srun gets 5 to end.
NAMED_S, REPLACED_S, REQUEUED_S = 5.0, 20.0, 15.0
CONFIG = """\
command: [sleep, "600"]
resources: {nodes: 2, tasks_per_node: 1, spare_nodes: 1}
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--cluster", choices=("fake", "slurm"), default="fake")
    chosen = options.parse_args()
    named, replaced, requeued = [], [], []
    with (
        (fake if chosen.cluster == "fake" else real)() as cluster,
        tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name,
    ):
        (Path(name) / "train.yaml").write_text(CONFIG)
        numbers = count()
        for _ in range(chosen.rounds):
            run = started(cluster, Path(name), next(numbers))
            for found, seconds in zip((named, replaced), until_named_and_replaced(run), strict=True):
                found.append(seconds)
            requeued.append(until_requeued(run))
            cluster.run("scancel", run.job)
            wait_for("an idle cluster", lambda: not cluster.run("squeue", "-h"), 60)
    for what, found, limit in (
        ("silent node named", named, NAMED_S),
        ("silent node replaced", replaced, REPLACED_S),
        ("batch host lost", requeued, REQUEUED_S),
    ):
        print(f"{what}: {median(found):.1f} s ({min(found):.1f} to {max(found):.1f}), limit {limit:.0f} s")


def started(cluster: Cluster, folder: Path, number: int) -> Run:
    run = submit(cluster, folder, "train.yaml", f"run_dir={folder}/run-{number}")
    wait_for("the keepers", lambda: run.events("started") and len(keepers_on(run)) == 3, 60, report=run.account)
    time.sleep(2)  # a node is silent only after its first beat
    return run


def until_named_and_replaced(run: Run) -> tuple[float, float]:
    _, node, spare = nodes_of(run)
    pids = processes_on(run, node)
    before, began = {*processes_on(run, spare)}, time.time()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_for("the spare node", lambda: {*processes_on(run, spare)} - before, 60, every_s=0.1, report=run.account)
    replaced_s = time.time() - began
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return float(run.events("silent")[0]["time"]) - began, replaced_s


def until_requeued(run: Run) -> float:
    first = nodes_of(run)[0]
    with lost(run, first):
        wait_for("Slurm to notice", lambda: first not in nodes_of(run), 60, every_s=0.1, report=run.account)
        noticed = time.time()
        wait_for("the requeue", lambda: run.events("requeued"), 60, report=run.account)
    return float(run.events("requeued")[0]["time"]) - noticed


if __name__ == "__main__":
    main()
