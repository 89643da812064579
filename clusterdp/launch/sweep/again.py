"""Elements of a sweep that are over, submitted again: as arrays of the same scripts, each from its checkpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from clusterdp.errors import SubmitInDoubt
from clusterdp.launch.job import Job
from clusterdp.launch.send.in_doubt import find_job, known_jobs
from clusterdp.launch.send.lock import RunLock
from clusterdp.launch.sweep.arrays import note_submitted
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir, SweepDir, read_events
from clusterdp.slurm import commands

ABOUT = ("name", "entry", "backend", "dir")


def submit_again(folder: SweepDir, numbers: Sequence[int], lock: RunLock) -> Iterator[Job]:
    """One array for each of the sweep's scripts. `numbers`: of elements whose last job is over; their scripts are as
    submit wrote them. `lock`: of the sweep's folder. SubmitError if sbatch refuses."""
    by_offset: dict[int, list[int]] = {}
    offsets = folder.offsets()
    for number in sorted(numbers):
        offset = max(each for each in offsets if each <= number)
        by_offset.setdefault(offset, []).append(number)
    for offset, members in by_offset.items():
        about = _about(folder.element(members[0]))
        script = folder.script(offset)
        limit = re.search(rb"^#SBATCH --array=[0-9,-]+(%[0-9]+)$", read_plain(script), re.MULTILINE)
        indices = ranges([number - offset for number in members]) + (limit[1].decode() if limit else "")
        known = known_jobs(folder.files)
        lock.check()
        try:
            array = commands.submit(script, about["dir"], f"--array={indices}")
        except SubmitInDoubt as doubt:
            array = find_job(folder.files, about["name"], known, doubt, f"clusterdp sweep {folder.path} --retry failed")
        yield from note_submitted(folder, array, members, offset, about)


def _about(run: RunDir) -> dict[str, Any]:
    """What was noted at the first submission, for the cluster that is here now."""
    told = [event for event in read_events(run) if event.get("event") == "submitted" and event.get("dir")]
    about = {name: told[-1].get(name) for name in ABOUT} if told else {"name": run.path.parent.name, "dir": os.getcwd()}
    return {**about, "cluster": os.environ.get("SLURM_CONF", ""), "from_step": None}


def ranges(numbers: Sequence[int]) -> str:
    """`1-3,7`, of numbers in order."""
    pairs: list[list[int]] = []
    for number in numbers:
        if pairs and number == pairs[-1][1] + 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in pairs)
