"""Predecessors: whether the runs that this run follows (`after:`) are where it waits for them, by their records and
Slurm.

Slurm's dependency alone does not decide. A job that is over may have a successor (restart.how: resubmit), and Slurm
takes a job that it has forgotten for one that went well.
"""

import json
import os
import re
from typing import Dict, List, NamedTuple, Sequence, Tuple

from ..files.causes import CAUSES, NOT_BEGUN
from ..files.job import Job
from ..files.texts import lines, words
from ..processes.slurm import Slurm
from .attempts import names_in_order

FOLLOWER = re.compile(r"follower-([0-9]+)-submit\.jsonl")
JOBS = 3  # the newest jobs of a run that are looked for in the queue


class Verdict(NamedTuple):
    """never: why this run cannot start any more. goes_on: the jobs to wait for, as sbatch's --dependency has them.
    is_unclear: whether a record may be late, as on a shared file system."""

    never: str = ""
    goes_on: str = ""
    is_unclear: bool = False


def judge(runs: Sequence[Dict[str, str]], job: Job, slurm: Slurm) -> Verdict:
    """Returns whether this run may start; an empty Verdict if it may."""
    found = [_judged(each["state"], folder, slurm) for each in runs for folder in _folders(each, job)]
    never = [each for each in found if each.never]
    jobs = ",".join(each.goes_on for each in found if each.goes_on)
    return never[0]._replace(is_unclear=all(each.is_unclear for each in never)) if never else Verdict(goes_on=jobs)


def _folders(each: Dict[str, str], job: Job) -> List[str]:
    """Returns the folder of the run, or those of all elements of a sweep, or of the element with our number."""
    run = each["run"]
    if each["state"] == "each":
        return [os.path.join(run, os.path.basename(job.run))]
    if not os.path.exists(os.path.join(run, "sweep.json")):
        return [run]
    return [os.path.join(run, name) for name in sorted(_names(run)) if name.isdigit()]


def _judged(state: str, folder: str, slurm: Slurm) -> Verdict:
    causes = [(name, "".join(words(os.path.join(folder, "attempts", name, "cause"))[:1])) for name in _attempts(folder)]
    causes = [(name, cause) for name, cause in causes if cause != "overtaken"]
    last = causes[-1][1] if causes else ""
    if last == "done" or (state == "started" and any(cause not in NOT_BEGUN for _, cause in causes)):
        return Verdict()
    alive = [each for each in _jobs(folder, causes)[:JOBS] if slurm.is_in_queue(each)]
    if alive:
        return Verdict(goes_on=("after:" if state == "started" else "afterany:") + alive[0])
    if state == "any":
        return Verdict()
    how = CAUSES.get(last, last) if last else "has left no record of its end" if os.path.isdir(folder) else "is gone"
    is_unclear = last in ("", "requeued", "preempted", "timeout")
    return Verdict(never="after {} ({})".format(folder, how), is_unclear=is_unclear)


def _attempts(folder: str) -> List[str]:
    return names_in_order(_names(os.path.join(folder, "attempts")))


def _jobs(folder: str, causes: Sequence[Tuple[str, str]]) -> List[str]:
    """Returns the jobs of a run, the newest first, by its records of submits and its attempts."""
    events = []
    for name in _names(os.path.join(folder, "events")):
        if re.match(r"submit-.*-submit\.jsonl$|.*-batch\.jsonl$", name):
            events += [_event(line) for line in lines(os.path.join(folder, "events", name)) if '"job":"' in line]
    told = sorted((each for each in events if each[0]), reverse=True)
    begun = [name.partition(".")[0] for name, _ in reversed(causes)]
    return list(dict.fromkeys([*(job for _, job in told), *begun]))


def _event(line: str) -> Tuple[float, str]:
    try:
        event = json.loads(line)
        is_job = re.match("[0-9]+(_[0-9]+)?$", event["job"]) and event["event"] in ("submitted", "linked")
        return (float(event["time"]), event["job"]) if is_job else (0.0, "")
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0.0, ""


def follower_jobs(run: str) -> List[str]:
    """Returns the jobs that follow the run, by the names of the records of their submits; of an element, also those
    that follow its sweep."""
    above = os.path.dirname(run)
    folders = [run, above] if os.path.exists(os.path.join(above, "sweep.json")) else [run]
    names = [name for folder in folders for name in _names(os.path.join(folder, "events"))]
    return [found.group(1) for found in map(FOLLOWER.match, names) if found]


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
