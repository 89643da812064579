"""Runs a folder of job scripts on a cluster, with its own commands alone; the programs they call have stand-ins."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterdp.fakeslurm.core.state import JobState
from tests.fakeslurm.differential import observed
from tests.fakeslurm.differential.driver import Cluster
from tests.fakeslurm.differential.observed import Observation
from tests.fakeslurm.differential.workload import JobRecord, Workload

SCRIPTS, RECORDS = Path(__file__).parent / "scripts", Path(__file__).parent / "records"
PATIENCE_S = 60
MAY_START = ("None", "Priority", "Resources", "BeginTime", "Dependency", "JobArrayTaskLimit", "RequeueDelay")
# Says how it was called, and keeps the environment that it saw.
STAND_IN = """\
#!/bin/bash
env -0 > "$HOME/job/env.${SLURM_RESTART_COUNT:-0}.${SLURM_STEP_ID:-batch}.${SLURM_PROCID:-0}.${0##*/}"
[ "${0##*/} $*" = "hostname --ip-address" ] && echo 192.0.2.1 || echo "${0##*/} $*"
"""
PROGRAMS = "accelerate conda dcgmi hostname module python python3 ray torchrun uv".split()
# A site's own: modules, and what a login shell finds on PATH.
PROFILE = 'PATH="$HOME/programs:$PATH"\n'


def play(scripts: Sequence[Path], environ: dict[str, str], root: Path) -> dict[str, Observation]:
    """What became of each script, by its name; one after the other, else they would get other GPUs."""
    cluster = Cluster(environ)
    return {script.stem: Play(cluster, script, root / script.stem).run() for script in scripts}


class Play:
    """One script on its way, in a folder in a home of its own."""

    def __init__(self, cluster: Cluster, script: Path, home: Path):
        self.cluster, self.script = cluster, script
        self.home, self.folder = home, home / "job"

    def run(self) -> Observation:
        self._write_files()
        done = self._call("sbatch", "--parsable", f"{self.script.stem}.sh", "one", "two words")
        job = done.stdout.strip()
        said = {self.script.stem: [f"sbatch: {done.returncode} {done.stderr}" if done.returncode else "sbatch: an id"]}
        if done.returncode == 0:
            self._until_over(job, said[self.script.stem])
        workload = Workload([JobRecord(self.script.stem, [], [], "")])
        ids = {self.script.stem: job} if done.returncode == 0 else {}
        seen = observed.observe(self._call, workload, self.folder, ids, said)
        for environ in seen["env"].values():
            environ.pop("SLURM_SUBMIT_HOST", None)
        return seen

    def _write_files(self) -> None:
        programs = self.home / "programs"
        programs.mkdir(parents=True)
        self.folder.mkdir()
        shutil.copy(self.script, self.folder / f"{self.script.stem}.sh")
        (self.home / ".bash_profile").write_text(PROFILE)
        for name in PROGRAMS:
            (programs / name).write_text(STAND_IN)
            (programs / name).chmod(0o755)

    def _call(self, *words: str) -> Any:
        cluster = self.cluster
        environ = {"HOME": str(self.home), "PATH": f"{self.home}/programs:{cluster.environ['PATH']}"}
        return cluster.call(*words, cwd=self.folder, **environ)

    def _until_over(self, job: str, said: list[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            rows = [(state, reason) for i, state, reason in self.cluster.queue() if re.split("[_+]", i)[0] == job]
            if rows and all(JobState(state).final for state, _ in rows):
                return
            if any(reason == "BeginTime" for _, reason in rows):  # it was requeued, and would wait for two minutes
                self._call("scontrol", "update", "StartTime=now", f"JobId={job}")
            if any(state == "PENDING" and reason not in MAY_START for state, reason in rows):
                said.append(f"waits for ever: {rows}")
                self._call("scancel", job)
            if time.monotonic() > deadline:
                said.append(f"did not end: {rows}")
                self._call("scancel", job)
                return
            time.sleep(0.1)
