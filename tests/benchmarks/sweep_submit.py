"""How long it takes to submit a sweep and to read its table, beside a loop of sbatch and submitit's map_array.

All on the fake cluster, whose sbatch is as quick as a real one's. Nothing runs: the jobs are held.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusterdp.fakeslurm.cluster import FakeCluster
from tests.benchmarks.table import Measure, show, take_turns

OURS, TABLE = "clusterdp submit --sweep", "clusterdp sweep, its table"
LOOP, MAP_ARRAY = "a loop of sbatch", "submitit's map_array"
SUBMITIT = """\
import sys
import submitit
executor = submitit.SlurmExecutor(folder=sys.argv[1])
executor.update_parameters(time=5, array_parallelism=1000, additional_parameters={"hold": True})
executor.map_array(print, range(int(sys.argv[2])))
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--elements", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name, FakeCluster() as cluster:
        os.environ.update(cluster.environ())
        os.environ["XDG_STATE_HOME"] = name
        os.chdir(name)
        rows = take_turns(measures(Path(name), chosen.elements), chosen.rounds, {LOOP: OURS, MAP_ARRAY: OURS})
    show(f"Submitting {chosen.elements} runs", rows, chosen.json)


def measures(folder: Path, count: int) -> dict[str, Measure]:
    (folder / "train.py").write_text("def main(job, seed: int, lr: float = 0.1): ...\n")
    (folder / "train.yaml").write_text("entry: train:main\nresources: {extra: {hold: true}}\n")
    (folder / "hold.sh").write_text("#!/bin/bash\n#SBATCH --hold --output=/dev/null\ntrue\n")
    (folder / "map_array.py").write_text(SUBMITIT)
    clusterdp = [sys.executable, "-m", "clusterdp"]
    rounds = iter(range(1_000_000))

    def sweep() -> float:
        name = f"sweep-{next(rounds)}"
        words = ["submit", "train.yaml", "--sweep", f"params.seed=range({count})", f"run_dir={name}"]
        return seconds([*clusterdp, *words])

    def table() -> float:
        newest = max(folder.glob("sweep-*"), key=lambda path: path.stat().st_mtime)
        return seconds([*clusterdp, "sweep", str(newest)])

    def loop() -> float:
        began = time.perf_counter()
        for seed in range(count):
            subprocess.run(["sbatch", "hold.sh", str(seed)], check=True, capture_output=True)
        return time.perf_counter() - began

    def map_array() -> float:
        return seconds([sys.executable, "map_array.py", f"submitit-{next(rounds)}", str(count)])

    return {OURS: sweep, TABLE: table, LOOP: loop, MAP_ARRAY: map_array}


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
