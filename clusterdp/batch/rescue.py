"""Rescue: a keeper's node requeues a --no-kill job that has lost the node of its batch script (see keeper.py)."""

import os
import re
import time

from . import keeper, slurm
from .attempt import ThisAttempt
from .attempts import newest_life
from .slurm import Look
from .texts import read, warn, warn_of_fault

FRESH_S = 3600  # seconds in which one rescue acts alone: it may wait for the controller, and for room on the disk
# sbatch would hand on the variables of the keepers' step to the next job.
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
DECISIONS = re.compile('"event":"(requeued|restarted|failed|finished|cancelled)"')


def rescue(attempt: ThisAttempt, lost: str) -> bool:
    """Requeues the job, or ends it if the run is over. Returns whether either is done; False if the script is alive,
    another rescue acts, or Slurm does not answer. lost: the node of the script."""
    look = attempt.slurm.glance()
    left = attempt.slurm.expand(look.nodes)
    if look.state not in (slurm.RUNNING, slurm.PREEMPTED) or not left or lost in left:
        return False
    if lost not in attempt.slurm.expand(attempt.job.nodes):
        return False
    path, claim = attempt.job.file("rescue"), "{} {}\n".format(attempt.job.host, os.getpid())
    if not _has_claimed(path, claim):
        return False
    is_done = False
    try:
        is_done = _act(attempt, lost, look)
    finally:
        if not is_done and read(path) == claim:
            os.unlink(path)
    return is_done


def _has_claimed(path: str, claim: str) -> bool:
    """Returns whether this rescue acts alone. A rescue whose node is lost, too, is replaced after FRESH_S."""
    try:
        if time.time() - os.stat(path).st_mtime > FRESH_S:
            os.rename(path, "{}.{}".format(path, claim.strip().replace(" ", ".")))  # only one of several succeeds
    except FileNotFoundError:
        pass
    try:
        with open(path, "x") as file:
            file.write(claim)
    except FileExistsError:
        return False
    return True


def _act(attempt: ThisAttempt, lost: str, look: Look) -> bool:
    output = os.open(attempt.job.output(attempt.job.log_id), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):  # srun ended with the script
        os.dup2(output, stream)
    for name in map(os.fsdecode, list(attempt.children.environ)):
        if name == keeper.KEY or (name.startswith(("SLURM", "SRUN_")) and name not in KEPT):
            attempt.children.export(**{name: None})
    job = attempt.job._replace(life=newest_life(attempt.job))
    if os.path.exists(job.file("cause")):  # the script was lost just after the end of an attempt
        events = DECISIONS.findall(read(os.path.join(job.run, "events", job.attempt + "-batch.jsonl")))
        if events[-1:] == ["requeued"]:
            return attempt.slurm.end_by_limit()
        if events[-1:] != ["restarted"]:
            return attempt.slurm.cancel(job.id)
        job = job._replace(life=job.life + 1)
    return _end(ThisAttempt(job, attempt.rules, attempt.children), lost, look)


def _end(attempt: ThisAttempt, lost: str, look: Look) -> bool:
    ending = attempt.ending
    try:
        warn("node {}, on which the batch script ran, is lost; {} acts for it.".format(lost, attempt.job.host))
        state = attempt.lost_script(lost, look)
    except SystemExit:
        state = ""  # the run is over
    except Exception as error:
        warn_of_fault(error, "The keeper of another node tries.")
        return False
    if ending.is_resubmitted:  # after a scancel, the next job would not start
        return attempt.slurm.end_by_limit()
    if ending.requeued or state == slurm.REQUEUED:
        return True
    return state != slurm.UNKNOWN and attempt.slurm.cancel(attempt.job.id)
