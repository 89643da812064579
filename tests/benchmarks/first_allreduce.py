"""From submit to the first all-reduce over 2 nodes x 2 ranks, beside a script by hand that does the same."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from clusterdp.fakeslurm.cluster import FakeCluster
from tests.benchmarks.table import Measure, show, take_turns
from tests.e2e.cluster import Cluster
from tests.slurm import packages
from tests.slurm.testbed import RealSlurm
from tests.waiting import wait_for

BY_HAND, COMMAND, ENTRY = "sbatch, script by hand", "clusterdp submit, command:", "clusterdp submit, entry:"

# The training code: as a program of its own, and as an entry, where the process group is there when it is called.
PROGRAM = """\
import os, sys, time
import torch
import torch.distributed as dist

def main(job, file):
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones == 4
    if dist.get_rank() == 0:
        with open(file + ".new", "w") as out:
            out.write(repr(time.time()))
        os.rename(file + ".new", file)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(None, sys.argv[1])
    dist.destroy_process_group()
"""

# Who writes it by hand knows the machine: all nodes are here, and gloo must not look for them by the host's name.
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=1
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((12000 + SLURM_JOB_ID % 8000)) GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1
srun --cpus-per-task=1 bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID exec "$@"' - "$@"
"""

CONFIG = """\
name: first
resources: {nodes: 2, tasks_per_node: 2}
params:
  file: ???
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cluster", choices=("fake", "slurm", "both"), default="both")
    options.add_argument("--rounds", type=int, default=7)
    chosen = options.parse_args()
    for name, boot in (("fake", fake), ("slurm", real)):
        if chosen.cluster not in (name, "both"):
            continue
        if name == "slurm" and (reason := packages.why_not()):
            print(reason, file=sys.stderr)
            continue
        with boot() as cluster, tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as folder:
            rows = take_turns(measures(cluster, Path(folder)), chosen.rounds, {COMMAND: BY_HAND, ENTRY: BY_HAND})
        title = f"From submit to the first all-reduce over 4 ranks, {name} cluster"
        show(title, rows)
        print()


@contextmanager
def fake() -> Iterator[Cluster]:
    with FakeCluster(quick=True) as cluster:
        environ = cluster.environ()
        yield Cluster("fake", {name: environ[name] for name in ("PATH", "SLURM_CONF")}, 60)


@contextmanager
def real() -> Iterator[Cluster]:
    with RealSlurm() as slurm:
        yield Cluster("slurm", slurm.environ(), 60)


def measures(cluster: Cluster, folder: Path) -> dict[str, Measure]:
    (folder / "first.py").write_text(PROGRAM)
    (folder / "hand.sbatch").write_text(SCRIPT)
    (folder / "command.yaml").write_text(CONFIG + f"command: [{sys.executable}, first.py, '${{params.file}}']\n")
    (folder / "entry.yaml").write_text(CONFIG + "entry: first:main\n")
    python = sys.executable

    def by_hand(file: Path) -> list[str]:
        return ["sbatch", "--parsable", f"--output={folder}/%j.out", "hand.sbatch", python, "first.py", str(file)]

    def ours(kind: str) -> Callable[[Path], list[str]]:
        def command(file: Path) -> list[str]:
            clusterdp = str(Path(python).with_name("clusterdp"))
            words = [f"params.file={file}", f"run_dir={file}.run", "--cluster", "slurm"]
            return [clusterdp, "submit", f"{kind}.yaml", *words]

        return command

    commands = {BY_HAND: by_hand, COMMAND: ours("command"), ENTRY: ours("entry")}
    numbers = count()
    return {name: timed(cluster, folder, command, numbers) for name, command in commands.items()}


def timed(cluster: Cluster, folder: Path, command: Callable[[Path], list[str]], numbers: Iterator[int]) -> Measure:
    def measure() -> float:
        file = folder / f"first-{next(numbers)}"
        words = command(file)
        began = time.time()
        quiet = subprocess.DEVNULL
        subprocess.run(words, cwd=folder, env=cluster.environ(), stdin=quiet, stdout=quiet, check=True)
        wait_for("the first all-reduce", file.exists, 120, report=lambda: cluster.run("squeue"))
        wait_for("an idle cluster", lambda: not cluster.run("squeue", "-h"), 60)
        return float(file.read_text()) - began

    return measure


if __name__ == "__main__":
    main()
