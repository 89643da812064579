"""backend: sbatch. The script in the run folder is handed to sbatch as it is."""

from __future__ import annotations

from clusterdp.launch.job import Job
from clusterdp.launch.render.script import Script
from clusterdp.launch.render.script_spec import ScriptSpec
from clusterdp.rundir import RunDir
from clusterdp.slurm import commands


def send(spec: ScriptSpec, script: Script, run: RunDir) -> Job:
    """SubmitError, with sbatch's own text, if it refuses."""
    return Job(commands.submit(run.script, cwd=spec.submit_dir), run)


def adopt(job: str, run: RunDir) -> Job:
    """The job that sbatch has not named, and that was found."""
    return Job(job, run)
