"""Rescue: a keeper's node requeues a --no-kill job that has lost the node of its batch script (see keeper.py)."""

import os
import re
import time

from .act.ending import wait_for_room
from .attempt import ThisAttempt
from .decide.attempts import newest_life, read_attempts
from .decide.decisions import End
from .decide.end import by_slurm, by_the_ranks
from .decide.history import history_of
from .files.texts import number, read, warn, warn_of_fault, words
from .nodes import keeper
from .processes import slurm
from .processes.slurm import Look

FRESH_S = 3600  # seconds in which one rescue acts alone: it may wait for the controller, and for room on the disk
# sbatch would hand on the variables of the keepers' step to the next job.
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
DECISIONS = re.compile('"event":"(requeued|restarted|failed|finished|cancelled)"')


def rescue(attempt: ThisAttempt, lost: str) -> int:
    """Requeues the job, or ends it if the run is over. Returns 0 if either is done, keeper.NEEDLESS if the job still
    has its script's node, and 1 if another rescue acts, or Slurm does not answer. lost: the node of the script."""
    look = attempt.slurm.glance()
    left = attempt.slurm.expand(look.nodes)
    if look.state not in (slurm.RUNNING, slurm.PREEMPTED) or not left:
        return 1
    if lost in left:
        return keeper.NEEDLESS
    if lost not in attempt.slurm.expand(attempt.job.nodes):
        return 1
    path, claim = attempt.job.file("rescue"), "{} {}\n".format(attempt.job.host, os.getpid())
    if not _has_claimed(path, claim):
        return 1
    is_done = False
    try:
        is_done = _act(attempt, lost, look)
    finally:
        if not is_done and read(path) == claim:
            os.unlink(path)
    return 0 if is_done else 1


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
        if events[-1:] == ["requeued"]:  # by a new job, because Slurm shows this one as never requeued
            return attempt.slurm.end_by_limit()
        if events[-1:] != ["restarted"]:
            return attempt.slurm.cancel(job.id)
        job = job._replace(life=job.life + 1)
    return _end(ThisAttempt(job, attempt.rules, attempt.children), lost, look)


def _end(attempt: ThisAttempt, lost: str, look: Look) -> bool:
    """Ends the attempt whose script is lost, and the job if the run is over."""
    warn("node {}, on which the batch script ran, is lost; {} acts for it.".format(lost, attempt.job.host))
    try:
        state = _requeue(attempt, lost, look)
    except SystemExit:
        state = ""
        if not attempt.ending.requeued:  # the run is over
            return attempt.slurm.cancel(attempt.job.id)
    except Exception as error:
        warn_of_fault(error, "The keeper of another node tries.")
        return False
    if attempt.ending.is_resubmitted:  # after a scancel, the next job would not start
        return attempt.slurm.end_by_limit()
    return not state  # a job that is over ends its keepers, and a suspended one is tried again


def _requeue(attempt: ThisAttempt, lost: str, look: Look) -> str:
    """Returns "" if the job is requeued, or the state that forbids it; exits if the run is over."""
    job, ending = attempt.job, attempt.ending
    wait_for_room(ending)
    code = number("".join(words(job.file("exit"))[:1]))
    if code is None:
        began, now = number("".join(words(job.file("began"))[:1])), int(time.time())
        attempt.record.note("exit", "- {} {}".format(now - began if began else 0, now))
    history = history_of(read_attempts(job, attempt.rules, attempt.record, attempt.slurm), job.id)
    if isinstance(history, End):
        ending.over(history)
    ending.history = history
    ended = attempt.ended(1 if code is None else code)
    for decision in by_the_ranks(ended) + by_slurm(ended, look.state, history, attempt.rules):
        if isinstance(decision, End):
            ending.over(decision)
    ending.avoid("node-lost", [lost])
    return ending.requeue("node-lost", look)
