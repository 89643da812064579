"""The test cluster itself: if it left daemons behind, or met another one, no test on it could be trusted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.testbed import ROOT, RealSlurm
from tests.waiting import wait_for

pytestmark = pytest.mark.slurm

HOLD = """\
import sys
from tests.slurm.testbed import RealSlurm
with RealSlurm(nodes=1) as slurm:
    print(slurm.folder, flush=True)
    sys.stdin.read()
"""


def run(slurm_environ: dict[str, str], *words: str) -> str:
    environ = os.environ | slurm_environ
    return subprocess.run(
        words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout


def test_step_runs_on_several_nodes_with_their_own_gpus(real_slurm: RealSlurm) -> None:
    say = "echo $SLURMD_NODENAME $SLURM_PROCID $CUDA_VISIBLE_DEVICES"
    said = run(real_slurm.environ(), "srun", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2", "bash", "-c", say)
    assert sorted(said.splitlines()) == ["n1 0 0,1", "n1 1 0,1", "n2 2 0,1", "n2 3 0,1"]


def test_sacct_shows_a_completed_job(real_slurm: RealSlurm) -> None:
    job = run(real_slurm.environ(), "sbatch", "--wait", "--parsable", "--output=/dev/null", "--wrap=exit 0").strip()
    rows = ("sacct", "--jobs", job, "--noheader", "--parsable2", "--format=JobID,State")
    wait_for("its row", lambda: f"{job}|COMPLETED" in run(real_slurm.environ(), *rows), 20)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_slurm_testbed_leaves_no_process_or_folder_if_its_owner_is_killed(how: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin and owner.stdout
    with owner:
        folder = Path(owner.stdout.readline().strip())
        conf = {"SLURM_CONF": f"{folder}/slurm.conf"}
        job = "setsid sleep 1000 & srun sleep 1000"  # a process that leaves its session is the hardest to find
        run(conf, "sbatch", "--output=/dev/null", f"--wrap={job}")
        wait_for("the job's processes", lambda: belonging_to(folder, "sleep") == 2, 30)
        owner.send_signal(how)
        owner.wait(30)
    wait_for("the end of all", lambda: belonging_to(folder) == 0 and not folder.exists(), 30)


def belonging_to(folder: Path, name: str = "") -> int:
    """How many processes know of the cluster in `folder`, by their words or their environment."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            known = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            is_it = (process / "comm").read_text().strip().startswith(name)
        except OSError:
            continue
        count += is_it and str(folder).encode() in known
    return count
