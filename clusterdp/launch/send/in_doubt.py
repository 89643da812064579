"""A submission whose result is unknown: sbatch timed out, was killed, or printed something that is no job id.

The controller may have accepted the job, or may still accept it. So the job is looked for in the queue. Slurm knows the
script of each job, and the script lies in the run folder.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from clusterdp.errors import SlurmError, SubmitInDoubt
from clusterdp.rundir import RunDir, read_events
from clusterdp.slurm import commands

PAUSES_S = (0, 1, 2, 4, 8, 15)  # a controller that is too busy to answer is not done with the request either


def known_jobs(run: RunDir) -> set[str]:
    """The jobs of this run that were there before."""
    begun = {attempt.name.partition(".")[0] for attempt in run.attempts()}
    return begun | {str(event["job"]) for event in read_events(run) if event.get("job")}


def find_job(run: RunDir, name: str, known: Collection[str], doubt: SubmitInDoubt, again: str = "") -> str:
    """The one job of this folder that is new. If none comes up, or several: SubmitInDoubt that says what to do.

    again: the command that submits it once more.
    """
    found: list[str] = []
    try:
        for pause in PAUSES_S:
            time.sleep(pause)
            try:
                found = [job for job in commands.jobs_of_scripts_in(run.path) if job not in known]
            except SlurmError:
                continue  # as busy as for sbatch
            if found:
                break
    except KeyboardInterrupt:
        pass
    if len(found) == 1:
        return found[0]
    said = f"{str(doubt).rstrip('.')}."
    if found:
        raise SubmitInDoubt(
            f"{said} {run.path}: it has several new jobs: {', '.join(found)}. `scancel` all but one."
        ) from None
    raise SubmitInDoubt(
        f"{said} The job may have been accepted all the same, so {run.path} is kept. Look with `squeue --me`, where "
        f"it is called {name}: if it is there, leave it, or end it with `scancel`; if not, submit it again with "
        f"`{again or f'clusterdp resume {run.path}'}`."
    ) from None
