"""What the batch program costs a job, besides Slurm's answers: from the script's first line to srun, and from srun's
end to the script's. Of a first attempt, and after 1,000 earlier ones with 10 GB of output, beside a script by hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusterdp import config
from clusterdp.submission.render.script import render
from clusterdp.submission.render.script_spec import make_spec
from clusterdp.submission.snapshot.batch_copy import write_batch
from tests.benchmarks.table import Measure, rounds_of, show, take_turns

SRUN = """\
#!/bin/bash
echo "$EPOCHREALTIME" >"$TIMES/began"
exec /bin/false
"""
SCONTROL = """\
#!/bin/bash
[ "$1 $2" != "show job" ] ||
  echo "JobId=7 JobState=RUNNING Reason=None PreemptTime=None Requeue=1 Restarts=${SLURM_RESTART_COUNT:-0} BatchFlag=1"
"""
SILENT = "#!/bin/bash\n"
BY_HAND = '#!/bin/bash\nexport MASTER_ADDR=127.0.0.1\nsrun true || scontrol requeue "$SLURM_JOB_ID"\n'
MANY, OUTPUT_BYTES = 1000, 10 << 30
FIRST, LATER = "first attempt", f"after {MANY:,} attempts, {OUTPUT_BYTES >> 30} GB of output"


def main() -> None:
    rounds = rounds_of(__doc__, 20)
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
        folder = Path(name)
        for command, text in {"srun": SRUN, "scontrol": SCONTROL, "squeue": SILENT, "sinfo": SILENT}.items():
            (folder / command).write_text(text)
            (folder / command).chmod(0o755)
        measures: dict[str, Measure] = {}
        beside: dict[str, str] = {}
        for part in ("start", "end"):
            hand = f"{part}: by hand"
            measures[hand] = timed(by_hand(folder), folder, 0, part)
            for kind, run, restart in ((FIRST, new_run(folder / "first"), 0), (LATER, old_run(folder / "later"), MANY)):
                measures[f"{part}: {kind}"] = timed(run, folder, restart, part)
                beside[f"{part}: {kind}"] = hand
        show("The batch program", take_turns(measures, rounds, beside))


def by_hand(folder: Path) -> Path:
    run = folder / "hand"
    run.mkdir(exist_ok=True)
    (run / "job.sbatch").write_text(BY_HAND)
    return run


def new_run(run: Path) -> Path:
    """A run that has not begun, and may be tried without end."""
    values = {
        "command": "true",
        "restart": {"max_crashes": MANY * 9, "max_attempts": None, "max_no_progress": MANY * 9},
    }
    script = render(make_spec(config.from_mapping(values), run, run.parent, sys.executable))
    (run / "code").mkdir(parents=True, exist_ok=True)
    (run / "job.sbatch").write_text(script.text)
    if not (run / "batch").is_dir():
        write_batch(run / "batch", {})
    (run / "batch/rules.json").write_text(json.dumps(script.rules))
    return run


def old_run(run: Path) -> Path:
    """A run with the records of many preempted attempts."""
    new_run(run)
    for restart in range(MANY):
        attempt = run / f"attempts/7.{restart}"
        (attempt / "logs").mkdir(parents=True, exist_ok=True)
        for name, text in {
            "chain": "7",
            "cause": "preempted",
            "exit": "143 600 1",
            "saved": "9",
            "outcome": "",
        }.items():
            (attempt / name).write_text(f"{text}\n")
    with (run / "slurm-7.out").open("wb") as output:
        output.truncate(OUTPUT_BYTES)
    return run


def timed(run: Path, folder: Path, restart: int, part: str) -> Measure:
    """part: `start`, up to srun, or `end`, after it."""
    environ = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TIMES": str(folder),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_JOB_PARTITION": "main",
        "SLURM_RESTART_COUNT": str(restart),
    }

    def measure() -> float:
        shutil.rmtree(run / f"attempts/7.{restart}", ignore_errors=True)
        began = time.time()
        subprocess.run(["bash", str(run / "job.sbatch")], env=environ, cwd=folder, capture_output=True)
        ended, at = time.time(), float((folder / "began").read_text())
        return at - began if part == "start" else ended - at

    return measure


if __name__ == "__main__":
    main()
