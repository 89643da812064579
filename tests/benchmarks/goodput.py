"""The share of its allocated time that becomes steps of a training to which something happens about every minute."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.benchmarks.table import machine
from tests.e2e.account import assert_sacct_agrees
from tests.e2e.day import Day, own_cluster


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=5)
    options.add_argument("--seed", type=int, default=0, help="of what goes wrong, and when")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
        folder = Path(name)
        (folder / "store").mkdir()
        day = Day(folder, folder / "store", chosen.minutes, chosen.seed)
        with own_cluster(folder) as (fake, cluster):
            run = day.live(fake, cluster)
            print(f"{machine()}\n\n{day.report(run, assert_sacct_agrees(run))}")


if __name__ == "__main__":
    main()
