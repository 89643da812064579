"""backend: sbatch. sbatch gets the script in the run folder unchanged."""

from __future__ import annotations

from clusterdp.launch.job import Job
from clusterdp.launch.render.script import Script
from clusterdp.launch.render.script_spec import ScriptSpec
from clusterdp.rundir import RunDir
from clusterdp.slurm import commands


def send(spec: ScriptSpec, script: Script, run: RunDir) -> Job:
    """Submits the script. Raises SubmitError, with sbatch's own text, if sbatch refuses."""
    return Job(commands.submit(run.script, cwd=spec.submit_dir), run)


def adopt(job: str, run: RunDir) -> Job:
    """Returns a job whose id sbatch has not printed, and that was found in the queue."""
    return Job(job, run)
