"""How long it takes to submit a sweep and to read its table, beside a loop of sbatch, submitit's map_array, and Hydra's
launcher for submitit if that is installed.

All on the fake cluster, whose sbatch is as quick as a real one's. Nothing runs: the jobs are held. The table is that of
elements with the records of two attempts each.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.rundir import SweepDir
from tests.benchmarks.table import Measure, show, take_turns
from tests.operate.builder import RunBuilder

OURS, TABLE = "clusterdp submit --sweep", "clusterdp sweep, its table"
LOOP, MAP_ARRAY, HYDRA = "a loop of sbatch", "submitit's map_array", "hydra-submitit-launcher"
SUBMITIT = """\
import sys
import submitit
executor = submitit.SlurmExecutor(folder=sys.argv[1])
executor.update_parameters(time=5, array_parallelism=1000, additional_parameters={"hold": True})
executor.map_array(print, range(int(sys.argv[2])))
"""
# The launcher waits for the results of its jobs: here it is not to wait.
WITH_HYDRA = """\
import hydra, submitit
from hydra.core.utils import JobReturn, JobStatus
submitit.Job.results = lambda job: [JobReturn(_return_value=None, status=JobStatus.COMPLETED)]
hydra.main(version_base=None, config_path=None)(lambda config: None)()
"""
LAUNCHER = """\
hydra/launcher=submitit_slurm hydra.launcher.timeout_min=5 hydra.launcher.array_parallelism=1000
+hydra.launcher.additional_parameters.hold=true
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--elements", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name, FakeCluster() as cluster:
        os.environ.update(cluster.environ())
        os.environ["XDG_STATE_HOME"] = name
        os.chdir(name)
        found = measures(Path(name), chosen.elements)
        beside = {other: OURS for other in (LOOP, MAP_ARRAY, HYDRA) if other in found}
        rows = take_turns(found, chosen.rounds, beside)
    show(f"Submitting {chosen.elements} runs", rows)
    if HYDRA not in found:
        print("Without Hydra: pip install hydra-core hydra-submitit-launcher")


def measures(folder: Path, count: int) -> dict[str, Measure]:
    (folder / "train.py").write_text("def main(job, seed: int, lr: float = 0.1): ...\n")
    (folder / "train.yaml").write_text("entry: train:main\nresources: {extra: {hold: true}}\n")
    (folder / "hold.sh").write_text("#!/bin/bash\n#SBATCH --hold --output=/dev/null\ntrue\n")
    (folder / "map_array.py").write_text(SUBMITIT)
    (folder / "with_hydra.py").write_text(WITH_HYDRA)
    lived = lived_sweep(folder / "lived", count)
    clusterdp = [sys.executable, "-m", "clusterdp"]
    rounds = iter(range(1_000_000))

    def sweep() -> float:
        name = f"sweep-{next(rounds)}"
        words = ["submit", "train.yaml", "--sweep", f"params.seed=range({count})", f"run_dir={name}"]
        return seconds([*clusterdp, *words])

    def table() -> float:
        return seconds([*clusterdp, "sweep", str(lived)])

    def loop() -> float:
        began = time.perf_counter()
        for seed in range(count):
            subprocess.run(["sbatch", "hold.sh", str(seed)], check=True, capture_output=True)
        return time.perf_counter() - began

    def map_array() -> float:
        return seconds([sys.executable, "map_array.py", f"submitit-{next(rounds)}", str(count)])

    def with_hydra() -> float:
        words = [f"hydra.sweep.dir=hydra-{next(rounds)}", f"+seed=range({count})"]
        return seconds([sys.executable, "with_hydra.py", "-m", *LAUNCHER.split(), *words])

    found: dict[str, Measure] = {OURS: sweep, TABLE: table, LOOP: loop, MAP_ARRAY: map_array}
    if all(map(importlib.util.find_spec, ("hydra", "hydra_plugins"))):
        found[HYDRA] = with_hydra
    return found


def lived_sweep(folder: Path, count: int) -> Path:
    """Each element was preempted once, and is done."""
    sweep = SweepDir(folder)
    sweep.files.events.mkdir(parents=True)
    sweep.write_table("lived", [{"params.seed": number} for number in range(count)])
    for number in range(count):
        run = RunBuilder(sweep.element(number).path).submitted(f"7_{number}")
        run.attempt(f"7_{number}.0").trained(1, 20, 40, lr=0.1).stopped(20).requeued("preempted")
        run.attempt(f"7_{number}.1").restored(20).trained(21, 40, 40, lr=0.1).measured(step=40, test_loss=0.5).finished(
            40
        )
    return folder


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
