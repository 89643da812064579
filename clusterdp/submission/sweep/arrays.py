"""Submits the job arrays of a sweep one after the other. If sbatch refuses an array, the earlier arrays are cancelled
or kept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterdp.errors import SubmitError, SubmitInDoubt
from clusterdp.plainfile import read_plain
from clusterdp.rundir import Ledger, RunDir, SweepDir, mark_cancelled, mark_told, read_events
from clusterdp.slurm import commands
from clusterdp.slurm.jobid import Submitted, asking, home_of
from clusterdp.submission.job import Job
from clusterdp.submission.plan import after_record
from clusterdp.submission.render.script_spec import ArraySpec
from clusterdp.submission.send.answers import find_job, known_jobs, with_key
from clusterdp.submission.send.lock import RunLock
from clusterdp.wording import ranges

if TYPE_CHECKING:
    from clusterdp.submission.sweep.plan import SweepPlan

ABOUT = ("name", "entry", "backend", "dir", "after")


@dataclass(frozen=True)
class SentSweep:
    """A submitted sweep: its arrays and its jobs."""

    folder: SweepDir
    arrays: Sequence[str]
    jobs: Sequence[Job]  # a Job for each element, in the order of the elements
    refused: str = ""  # sbatch's message, if an array was refused and sweep.on_refusal is keep

    def _repr_html_(self) -> str:
        """Returns the table of the elements, best first, for a notebook."""
        from clusterdp.operate.notebook import sweep_html

        return sweep_html(self.folder)


def submit_arrays(plan: SweepPlan, lock: RunLock) -> SentSweep:
    """Submits the arrays of a sweep. Raises SubmitError with sbatch's text if sbatch refuses an array, SubmitInDoubt if
    sbatch's answer is unclear."""
    arrays: list[str] = []
    jobs: list[Job] = []
    clusters = plan.spec.clusters or os.environ.get("SLURM_CLUSTERS", "")
    with asking(clusters):
        options = plan.after_options()
    for array, _ in plan.scripts:
        # Each array waits for the previous array, because the limit of an array (`%N`) counts only its own elements.
        after = [f"--dependency=afterany:{arrays[-1]}"] if arrays and array.parallel else options
        try:
            with asking(clusters):
                sent = _submit(plan, array, after, lock)
        except SubmitInDoubt:
            raise
        except SubmitError as error:
            error = with_key(error, plan.spec.config)
            if not arrays:
                raise error from None
            said = f"elements {array.offset} and on were not submitted: {error}"
            if plan.sweep.settings.on_refusal == "keep":
                return SentSweep(plan.folder, arrays, jobs, said)
            with asking(clusters):
                raise _undo(plan, arrays, jobs, said) from None
        arrays.append(sent.job)
        if plan.spec.config.after:
            from clusterdp.operate.queue.dependency import note_follower

            note_follower(plan.spec.config.after, sent.job, plan.folder.files)
        clusters = sent.cluster or clusters  # all arrays are on one cluster, because they may depend on each other
        numbers = range(array.offset, array.offset + array.size)
        jobs += note_submitted(plan.folder, sent, numbers, array.offset, _about(plan))
    return SentSweep(plan.folder, arrays, jobs)


def note_submitted(
    folder: SweepDir, sent: Submitted, numbers: Sequence[int], offset: int, about: Mapping[str, Any]
) -> Iterator[Job]:
    """Records the submission in the ledgers of the sweep and of each element. Yields the Job of each element."""
    array, about = sent.job, {**about, "cluster": home_of(sent.cluster)}
    try:
        Ledger(folder.files, f"submit-{array}", "submit").write(
            "submitted", job=array, offset=offset, size=len(numbers), **about
        )
        for number in numbers:
            run, job = folder.element(number), f"{array}_{number - offset}"
            where = str(run.path.absolute())
            Ledger(run, f"submit-{job}", "submit").write("submitted", job=job, folder=where, **about)
            yield Job(job, run, cluster=sent.cluster)
    except OSError as error:
        raise SubmitInDoubt(
            f"{folder.path}: array {array} is submitted, but that cannot be written down: {error.strerror}. "
            f"Make room, or end the array: `scancel {array}`."
        ) from None


def _submit(plan: SweepPlan, array: ArraySpec, options: Sequence[str], lock: RunLock) -> Submitted:
    files, name = plan.folder.files, plan.spec.config.name
    known = known_jobs(files)
    lock.check()
    try:
        return commands.submit(plan.folder.script(array.offset), plan.spec.submit_dir, *options)
    except SubmitInDoubt as doubt:
        try:
            return find_job(files, name, known, doubt, f"clusterdp sweep {files.path} --retry unsubmitted")
        except SubmitInDoubt:
            with suppress(OSError):
                Ledger(files, "submit-unknown", "submit").write("submit-in-doubt", **_about(plan))
            raise


def _about(plan: SweepPlan) -> dict[str, Any]:
    config = plan.spec.config
    return {
        "name": config.name,
        "entry": config.entry,
        "backend": config.backend,
        "dir": str(plan.spec.submit_dir),
        "cluster": home_of(plan.spec.clusters),
        "from_step": config.restart.from_step,
        **after_record(config),
    }


def _undo(plan: SweepPlan, arrays: Sequence[str], jobs: Sequence[Job], said: str) -> SubmitError:
    """Cancels the jobs of the earlier arrays. The sweep's folder stays, because elements that have begun still write to
    it until they end."""
    for job in jobs:
        mark_cancelled(job.run, job.id, durably=False)
    commands.cancel(*arrays)
    for job in jobs:
        mark_told(job.run, job.id)
    return SubmitError(
        f"{said} The {len(jobs)} before them are cancelled; sweep.on_refusal=keep would let them run. "
        f"What there is of them is in {plan.folder.path}."
    )


def submit_again(folder: SweepDir, numbers: Sequence[int], lock: RunLock) -> Iterator[Job]:
    """Submits elements again, in one array for each of the sweep's scripts, which stay unchanged. `numbers` are
    elements whose last job is over. `lock` is the lock of the sweep's folder. Raises SubmitError if sbatch refuses an
    array."""
    by_offset: dict[int, list[int]] = {}
    offsets = folder.offsets()
    for number in sorted(numbers):
        offset = max(each for each in offsets if each <= number)
        by_offset.setdefault(offset, []).append(number)
    for offset, members in by_offset.items():
        about = _as_submitted(folder.element(members[0]))
        script = folder.script(offset)
        limit = re.search(rb"^#SBATCH --array=[0-9,-]+(%[0-9]+)$", read_plain(script), re.MULTILINE)
        indices = ",".join(ranges(number - offset for number in members)) + (limit[1].decode() if limit else "")
        known = known_jobs(folder.files)
        lock.check()
        try:
            sent = commands.submit(script, about["dir"], f"--array={indices}")
        except SubmitInDoubt as doubt:
            sent = find_job(folder.files, about["name"], known, doubt, f"clusterdp sweep {folder.path} --retry failed")
        yield from note_submitted(folder, sent, members, offset, about)


def _as_submitted(run: RunDir) -> dict[str, Any]:
    """Returns the record of the element's last submission, without the cluster, which the next job may not have."""
    told = [event for event in read_events(run) if event.get("event") == "submitted" and event.get("dir")]
    about = {name: told[-1].get(name) for name in ABOUT} if told else {"name": run.path.parent.name, "dir": os.getcwd()}
    return {**about, "from_step": None}
