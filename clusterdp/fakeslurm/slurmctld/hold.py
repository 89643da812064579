"""Jobs that are held, let go, and moved to the front."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterdp.fakeslurm.core import error_texts
from clusterdp.fakeslurm.core.error_texts import ControllerError
from clusterdp.fakeslurm.core.model import JobRecord
from clusterdp.fakeslurm.slurmctld import scheduler
from clusterdp.slurm.state import JobState

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.controller import Controller


def hold(controller: Controller, job: JobRecord, reason: str) -> None:
    job.held = job.reason = reason
    controller.changed(job)


def release(controller: Controller, job: JobRecord) -> None:
    job.held, job.accounted = None, True
    if job.state is JobState.SPECIAL_EXIT:
        job.state = JobState.PENDING
    if job.reason.startswith(("JobHeld", "job requeued")):
        job.reason = "None"
    controller.changed(job)
    controller.wake()


def to_the_top(controller: Controller, job: JobRecord) -> None:
    """Before all others that wait; raises ControllerError."""
    if job.held:
        raise ControllerError("Job is in held state, pending scheduler release")
    if not job.waits:
        raise ControllerError(error_texts.NOT_PENDING)
    job.priority = max(other.priority for other in scheduler.waiting(controller.model)) + 1
    controller.changed(job)
    controller.wake()
