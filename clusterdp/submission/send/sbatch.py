"""The backend `sbatch`: sbatch gets the script in the run folder unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from clusterdp.rundir import RunDir
from clusterdp.slurm import commands
from clusterdp.slurm.jobid import Submitted
from clusterdp.submission.job import Job
from clusterdp.submission.render.script import Script
from clusterdp.submission.render.script_spec import ScriptSpec


def send(spec: ScriptSpec, script: Script, run: RunDir, options: Sequence[str]) -> Job:
    """Submits the run's script with sbatch, and with `options` of sbatch. Raises SubmitError, with sbatch's own text,
    if sbatch refuses the script."""
    return adopt(commands.submit(run.script, spec.submit_dir, *options), run)


def adopt(sent: Submitted, run: RunDir) -> Job:
    """Returns the Job for an answer of sbatch, or for a job that was found in the queue, because sbatch did not print
    its id."""
    return Job(sent.job, run, cluster=sent.cluster)
