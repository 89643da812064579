"""Handles the cases in which sbatch prints no job id. Either sbatch refuses a key of the config, or the outcome is
unknown, because sbatch timed out, was killed, or printed something else.

After an unknown outcome the controller may have accepted the job, or may still accept it. Therefore submit looks for
the job in the queue: Slurm knows the script of each job, and the script is in the run folder."""

from __future__ import annotations

import re
import time
from collections.abc import Collection

from clusterdp.config import Config
from clusterdp.errors import SlurmError, SubmitError, SubmitInDoubt
from clusterdp.rundir import RunDir, read_events
from clusterdp.slurm import commands
from clusterdp.slurm.jobid import Submitted

PAUSES_S = (0, 1, 2, 4, 8, 15)  # pauses between looks: a busy controller may accept the job later
# Text of sbatch -> the keys that the text may mean. The first key that the config sets is reported, or else the first
# key.
REFUSALS = {
    "group not permitted to use this partition|partition name|invalid partition|system default partition": "partition",
    "account or account/partition": "account partition",
    "qos specification|permitted to use.*qos": "qos",
    "requested time limit": "time",
    "feature specification": "constraint",
    r"generic resource|\bgres\b": "gpus_per_node gpus_per_task gres",
    "node name": "nodelist exclude",
    "reservation": "reservation",
    "memory specification": "mem",
    "cpu count|processors requested": "cpus_per_task",
    "node count": "nodes",
}
CHECK = "`clusterdp check` names what is allowed"


def known_jobs(run: RunDir) -> set[str]:
    """Returns the jobs that the run's records contain."""
    begun = {attempt.name.partition(".")[0] for attempt in run.attempts()}
    return begun | {str(event["job"]) for event in read_events(run) if event.get("job")}


def find_job(run: RunDir, name: str, known: Collection[str], doubt: SubmitInDoubt, again: str = "") -> Submitted:
    """Looks in the queue for the one new job of this folder, and returns it. Raises SubmitInDoubt, with a remedy,
    if the queue has no new job of the folder, or several.

    again: the command that submits the job once more, for the error's message.
    """
    found: dict[str, commands.SqueueRow] = {}
    try:
        for pause in PAUSES_S:
            time.sleep(pause)
            try:
                rows = commands.jobs_of_scripts_in(run.path)
                found = {job: row for job, row in rows.items() if job not in known}
            except SlurmError:
                continue  # the controller is still too busy to answer
            if found:
                break
    except KeyboardInterrupt:
        pass
    for job, row in found.items() if len(found) == 1 else ():
        return Submitted(job, row.cluster)
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


def with_key(error: SubmitError, config: Config) -> SubmitError:
    """Returns the error, extended by the key of the config that sbatch refuses. sbatch itself names only an option, or
    the mistake in a value."""
    said = str(error)
    for option, value in config.resources.extra.items():
        if re.search(rf"--{re.escape(option)}(?![\w-])", said):
            key = f"resources.extra.{option}: {value!r}"
            return SubmitError(f"{key} is refused by sbatch. Correct it or leave it out. {error}")
    for pattern, keys in REFUSALS.items():
        if re.search(pattern, said, re.IGNORECASE):
            names = keys.split()
            name = next((name for name in names if getattr(config.resources, name) is not None), names[0])
            value = getattr(config.resources, name)
            what = f"{value!r} is refused by sbatch" if value is not None else "is not given, and sbatch refuses that"
            return SubmitError(f"resources.{name}: {what}. Correct it: {CHECK}. {error}")
    if "dependency problem" in said and config.after:
        return SubmitError(f"after: Slurm no longer knows a job that this run would follow. See its status. {error}")
    if "node configuration" in said:
        return SubmitError(f"resources: no node of the partition has all that is asked for. {CHECK}. {error}")
    if re.search("accounting/QOS policy|submit limit", said):
        return SubmitError(f"resources: more is asked for than account or QOS allow. {CHECK}. {error}")
    return error
