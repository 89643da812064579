"""A real cluster in a rehearsal: here the fake cluster's commands answer."""

from __future__ import annotations

import subprocess
from pathlib import Path

from clusterdp.fakeslurm import FakeCluster
from clusterdp.slurm import commands
from tests.waiting import wait_for

STEPS = """\
#!/bin/bash
start() {
    srun --overlap --job-name=$1 sleep 60 &
    until squeue --steps -h -j $SLURM_JOB_ID -o %j | grep -q $1; do sleep 0.05; done
}
start keepers
start ranks
start reserve
wait
"""


def test_kill_step_kills_the_oldest_step_but_the_keepers(fake_slurm: FakeCluster, tmp_path: Path) -> None:
    script = tmp_path / "steps.sbatch"
    script.write_text(STEPS)
    job = subprocess.check_output(["sbatch", "--parsable", "--output=/dev/null", str(script)], text=True).strip()

    def steps() -> set[str]:
        listed = subprocess.run(["squeue", "--steps", "-h", "-j", job, "-o", "%j"], capture_output=True, text=True)
        return set(listed.stdout.split()) & {"keepers", "ranks", "reserve"}

    wait_for("three steps", lambda: len(steps()) == 3, 30)
    commands.kill_step(job)
    wait_for("the end of a step", lambda: len(steps()) == 2, 30)
    assert steps() == {"keepers", "reserve"}
