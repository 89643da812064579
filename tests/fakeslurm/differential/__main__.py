"""`python -m tests.fakeslurm.differential [--workloads N] [--seed N] [--keep]`: many random workloads on both clusters.

Prints what differs. With --keep, workloads that differ go to cases/, with what the real Slurm did: from then on the
quick tests play them on the fake. `--again` plays the cases there on both, and keeps anew what the real Slurm did.
The fake is of the release that is there: another than the machine's is inside `python -m tests.slurm.release 24.11`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clusterdp.fakeslurm import FakeCluster
from tests.slurm.testbed import RealSlurm

from . import driver
from .compare import differences, like_the_real_one
from .observed import Observation
from .workload import Workload, make

CASES = Path(__file__).parent / "cases"


def release_here() -> str:
    """The release of the machine's Slurm: 22.05."""
    said = subprocess.run(["slurmctld", "-V"], check=True, capture_output=True, text=True).stdout
    return ".".join(said.split()[-1].split(".")[:2])


def main() -> int:
    release = release_here()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    if options.again:
        named = {
            case.stem: Workload.from_json(json.loads(case.read_text())["workload"])
            for case in (CASES / release).iterdir()
        }
    else:
        seeds = range(options.seed, options.seed + options.workloads)
        named = {str(seed): make(random.Random(seed).choice) for seed in seeds}
    differing = 0
    shape = like_the_real_one(release)
    with RealSlurm() as real, FakeCluster(shape=shape) as fake, tempfile.TemporaryDirectory() as folder:
        names = list(named)
        for first in range(0, len(names), options.batch):
            batch = {name: named[name] for name in names[first : first + options.batch]}
            theirs, ours = on_both(list(batch.values()), real.environ(), fake.env, Path(folder) / str(first))
            for (name, workload), expected, seen in zip(batch.items(), theirs, ours, strict=True):
                found = differences(expected, seen)
                if found:
                    differing += 1
                    print(f"--- {name}", *(line[:500] for line in found[:20]), sep="\n", flush=True)
                if options.again or (found and options.keep):
                    keep(CASES / release / f"{name}.json", workload, expected)
            print(f"=== {first + len(batch)} workloads, {differing} differ", flush=True)
    return 1 if differing else 0


def on_both(
    workloads: list[Workload], real: dict[str, str], fake: dict[str, str], folder: Path
) -> tuple[list[Observation], list[Observation]]:
    """At the same time: they mostly wait."""
    with ThreadPoolExecutor(2) as both:
        theirs = both.submit(driver.run_all, workloads, real, folder / "real")
        ours = both.submit(driver.run_all, workloads, fake, folder / "fake")
        return theirs.result(), ours.result()


def keep(path: Path, workload: Workload, expected: Observation) -> None:
    path.parent.mkdir(exist_ok=True)
    case = {"workload": workload.to_json(), "real": expected}
    path.write_text(json.dumps(case, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
