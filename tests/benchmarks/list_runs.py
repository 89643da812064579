"""How long `clusterdp list` takes over 10,000 runs that are over and 100 that are not, beside Python that starts and
ends, and beside a read of all their ledgers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.startup import BARE, clusterdp, timed
from tests.benchmarks.table import rounds_of, show, take_turns
from tests.operate.builder import RunBuilder

OVER, LIVE = 10_000, 100
BY_HAND = "json.loads of each line of all ledgers"
READ_ALL = """
import glob, json
for path in glob.iglob("runs/*/events/*.jsonl"):
    with open(path) as file:
        for line in file:
            json.loads(line)
"""


def main() -> None:
    rounds = rounds_of(__doc__, 5)
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
        folder = Path(name)
        make_runs(folder, OVER, LIVE)
        os.chdir(folder)
        os.environ.update(PATH=f"{folder / 'bin'}:{os.environ['PATH']}", XDG_STATE_HOME=str(folder / "state"))
        os.environ.pop("SLURM_CONF", None)
        began = time.perf_counter()
        subprocess.run(clusterdp("list"), stdout=subprocess.DEVNULL, check=True)
        first = time.perf_counter() - began
        measures = {BARE: timed([sys.executable, "-c", "pass"]), BY_HAND: timed([sys.executable, "-c", READ_ALL])}
        words = ("", "-n 20", "--state failed", "--json")
        verbs = {" ".join(["clusterdp list", each]).strip(): each.split() for each in words}
        measures |= {name: timed(clusterdp("list", *each)) for name, each in verbs.items()}
        rows = take_turns(measures, rounds, dict.fromkeys(verbs, BY_HAND))
    show(f"Listing {OVER:,} runs that are over and {LIVE} that run", rows)
    print(f"\nThe first time of all, when no summary is kept yet: {first:.1f} s")


def make_runs(folder: Path, over: int, live: int) -> None:
    """Of every twenty runs that are over, one has failed. The live ones have 64 KiB of metrics each, and lie among
    the others. squeue is a shell script."""
    done, failed = (RunBuilder(folder / "templates" / name).submitted() for name in ("done", "failed"))
    for builder, name in ((done, "done"), (failed, "failed")):
        attempt = builder.attempt("7.0").trained(1, 40).saved(40)
        _ = attempt.finished(40) if name == "done" else attempt.failed(exit=1)
    for path in (folder / "templates").rglob("*"):
        os.utime(path, (0, time.time() - 3600))
    noted, queue = [], []
    for i in range(over + live):
        run = folder / "runs" / f"digits-20260131-235959-{i:04x}"
        if i % ((over + live) // live) == 0 and len(queue) < live:
            job = str(100_000 + i)
            builder = RunBuilder(run).submitted(job)
            attempt = builder.attempt(f"{job}.0").trained(1, 900, total=4000)
            queue.append(f"{job}|RUNNING|None|n1")
        else:
            # Links to the same files: a tenth of the time.
            template = folder / "templates" / ("failed" if i % 20 == 1 else "done")
            shutil.copytree(template, run, copy_function=os.link)
        noted.append({"time": 1_700_000_000 + i, "run": str(run), "dir": str(folder)})
    (folder / "state/clusterdp").mkdir(parents=True)
    lines = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in noted)
    (folder / "state/clusterdp/runs").write_text(lines)
    (folder / "bin").mkdir()
    (folder / "bin/squeue").write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(queue) + "\nEND\n")
    (folder / "bin/squeue").chmod(0o755)


if __name__ == "__main__":
    main()
