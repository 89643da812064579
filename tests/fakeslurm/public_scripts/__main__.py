"""`python -m tests.fakeslurm.public_scripts [--keep] [FOLDER]`: each *.sh of the folder on both clusters.

Prints what differs. With --keep, what the real Slurm made of scripts/ goes to records/.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from clusterdp.fakeslurm import FakeCluster
from tests.fakeslurm.differential.compare import differences, like_the_real_one
from tests.slurm.testbed import RealSlurm

from . import playing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=playing.SCRIPTS)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    scripts, differing = sorted(options.folder.glob("*.sh")), 0
    shape = like_the_real_one("22.05")
    with RealSlurm() as real, FakeCluster(shape=shape) as fake, tempfile.TemporaryDirectory() as folder:
        theirs = playing.play(scripts, real.environ(), Path(folder) / "real")
        ours = playing.play(scripts, fake.env, Path(folder) / "fake")
    for name, expected in theirs.items():
        if options.keep:
            (playing.RECORDS / f"{name}.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
        found = differences(expected, ours[name])
        differing += bool(found)
        print(f"--- {name}: {'differs' if found else 'alike'}", *(line[:500] for line in found[:20]), sep="\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
