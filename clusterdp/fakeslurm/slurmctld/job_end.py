"""How attempts end: by themselves, by scancel, by the time limit; and what is done when the last process is gone."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from clusterdp.fakeslurm.core.model import BATCH, JobRecord, Step
from clusterdp.fakeslurm.core.orders import Terminate
from clusterdp.fakeslurm.core.reports import Ended
from clusterdp.fakeslurm.slurmstepd.memory_limit import OUT_OF_MEMORY
from clusterdp.slurm.state import JobState

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.controller import Controller

BOOKING = 0.3  # of the books' lag: until they have answered the controller that they know of an array


def step_ended(controller: Controller, job: JobRecord, step: Step, report: Ended) -> None:
    """A supervisor says that all is over on its side."""
    if not step.live:
        return
    now = controller.clock()
    status = report.statuses.get(job.id, report.status)
    step.end, step.status, step.lingers = now, status, report.lingers
    step.usage = report.usages.get(job.id)
    step.timed_out = step.timed_out or report.timed_out
    if report.killer is not None:
        step.cancelled_by = report.killer
    step.state = _state_of_step(step)
    if step.id != BATCH and not report.lost_srun:
        job.derived = max(job.derived, step.status)
    end_mirrors(controller, job, step, report)
    alone = not job.desc.batch and not job.desc.is_allocation  # of an srun outside of jobs
    if step.id == BATCH or (alone and not any(other.live for other in job.steps)):
        if alone and (report.interrupted or report.lost_srun):
            job.cancelled_by, step.state = controller.user.uid, JobState.CANCELLED
            terminate_job(controller, job, JobState.CANCELLED, "None", "")
        else:
            _script_ended(controller, job, report.status)
    controller.changed(job)
    _finish_if_empty(controller, job)
    controller.wake()


def end_mirrors(controller: Controller, job: JobRecord, step: Step, report: Ended) -> None:
    """A step over several components has a record in each of them, and one supervisor."""
    for other in controller.model.components(job):
        mirror = other.step(step.id)
        if mirror and mirror.runs_in == job.id and mirror.live:
            step_ended(controller, other, mirror, report)


def step_never_started(controller: Controller, job: JobRecord, step: Step) -> None:
    """The daemon was killed after it had written down that the step starts, and before it did; or the nursery was."""
    if step.id == BATCH and not job.completing:
        controller.begins(job, step)
        return
    mirror = step.id, job.id
    for other in controller.model.components(job):
        other.steps = [each for each in other.steps if each is not step and (each.id, each.runs_in) != mirror]
    controller.changed(job)
    _finish_if_empty(controller, job)
    controller.wake()


def srun_gave_up(controller: Controller, job: JobRecord, step: Step | None, own_job: bool) -> None:
    """It ends before its step has begun, and so does the job that it made for it."""
    if step and job.step(step.id) is step:
        step_never_started(controller, job, step)
    if own_job:
        relinquish(controller, job, 1 << 8)
    controller.settle()


def script_gone(controller: Controller, job: JobRecord, step: Step) -> None:
    """Nothing is left of what the batch script started."""
    step.lingers = False
    controller.changed(job)
    _finish_if_empty(controller, job)


def _finish_if_empty(controller: Controller, job: JobRecord) -> None:
    if not job.completing or not job.empty:
        return
    if controller.clock() - (job.end or 0) >= controller.settings.kill_wait_s - 0.2:
        # Who had to be killed is looked after by slurmd with growing pauses.
        controller.runner.later(controller.settings.kill_notice_s, lambda: _finish_late(controller, job))
    else:
        finish(controller, job)


def _finish_late(controller: Controller, job: JobRecord) -> None:
    if job.completing and job.empty:
        finish(controller, job)


def _script_ended(controller: Controller, job: JobRecord, status: int) -> None:
    """The end of the batch script, or of the one step of an srun outside of jobs, is the end of the job."""
    if job.completing:
        job.status = job.status or status
    else:
        relinquish(controller, job, status)


def relinquish(controller: Controller, job: JobRecord, status: int) -> None:
    """What the job was for has ended, with this wait status."""
    if not job.running and job.state is not JobState.SUSPENDED:
        return
    job.status = status
    if not status:
        state, reason, why = JobState.COMPLETED, job.held or "None", ""
    else:
        killed = bool(status & 0x7F)
        state, reason = JobState.FAILED, "JobLaunchFailure" if killed else "NonZeroExitCode"
        why = "FAILED (non-zero exit code or other failure mode)"
    if status == OUT_OF_MEMORY or any(step.state is JobState.OUT_OF_MEMORY for step in job.steps):
        state, reason, job.status = JobState.OUT_OF_MEMORY, "OutOfMemory", OUT_OF_MEMORY
    job.preempt_time = None
    for other in controller.model.components(job) if job.has_script or job.desc.is_allocation else [job]:
        if other.running:
            other.status = job.status
            terminate_job(controller, other, state, reason, why, abort=True)


def terminate_job(
    controller: Controller,
    job: JobRecord,
    outcome: JobState,
    reason: str,
    why: str,
    abort: bool = True,
    kill: bool = False,
) -> None:
    """End all of its processes; `finish` follows when they are gone."""
    job.completing, job.outcome, job.reason = True, outcome, reason
    job.state = outcome
    job.end, job.derived_at_end = controller.clock(), job.derived
    controller.changed(job)
    live = [step for step in job.steps if step.live and not _ends_elsewhere(controller, step, job)]
    # The steps hear of it before the batch shell does, whose srun would otherwise be told to kill them. What is deaf
    # is killed in the other order: the script must not go on because srun is dead.
    for step in sorted(live, key=lambda step: step.id == BATCH):
        kill_after = controller.settings.kill_wait_s - (0.1 if step.id == BATCH else 0)
        said = abort and step.id != BATCH
        if kill:
            order = Terminate((signal.SIGKILL,), kill_after=None, why=why, abort=said)
        else:
            order = Terminate((signal.SIGCONT, signal.SIGTERM), kill_after, why, said)
        controller.runner.order(job, step, order)
    if job.empty:
        finish(controller, job)


def _ends_elsewhere(controller: Controller, step: Step, job: JobRecord) -> bool:
    """Another component, which ends as well, has the supervisor of the step: it must not hear of it twice."""
    home = controller.model.jobs.get(step.runs_in)
    return bool(home and (home.completing or not home.running)) and home is not job


def finish(controller: Controller, job: JobRecord) -> None:
    """All its processes are gone: the nodes are free again."""
    now = controller.clock()
    job.completing = False
    for share in job.shares:
        controller.model.nodes[share.node].busy_time = now
    if job.state in (JobState.PENDING, JobState.SPECIAL_EXIT):
        wait_again(controller, job, now)
    else:
        job.past, job.shares = job.shares, []
        controller.changed(job)
    controller.wake()


def wait_again(controller: Controller, job: JobRecord, now: float) -> None:
    """The next attempt: the same job, later."""
    controller.changed(job, job.next_word)
    failed_node = job.next_word == "NODE_FAIL"
    job.shares, job.past, job.steps, job.next_step = [], [], [], 0
    job.status = 0
    job.start = job.end = job.derived_at_end = None
    job.preempt_time = job.preempt_end = None
    job.cancelled_by = job.outcome = None
    job.submit_time = now
    job.begin = now + controller.settings.requeue_delay_s
    job.reason = job.requeue_hold or "BeginTime"
    job.held = job.requeue_hold
    job.eligible_time, job.accounted = now, not failed_node
    job.requeue_hold = None
    controller.changed(job)


def cancel(controller: Controller, job: JobRecord, uid: int | None = None) -> None:
    if job.over or (job.completing and job.state is not JobState.PENDING):
        return
    job.cancelled_by = controller.user.uid if uid is None else uid
    if job.waits:
        job.accounted = True
        if job.array and controller.clock() - job.array.accounted_at < BOOKING * controller.settings.accounting_lag_s:
            job.array.accounted_as = ""  # the books have not got so far
        job.state, job.end = JobState.CANCELLED, controller.clock()
        job.start = job.end
        controller.changed(job)
        controller.wake()
    elif job.completing:  # it was to be requeued
        job.state = job.outcome = JobState.CANCELLED
        controller.changed(job)
    else:
        terminate_job(controller, job, JobState.CANCELLED, "None", "")


def cancel_step(controller: Controller, job: JobRecord, step: Step, by_name: bool = False) -> None:
    """`by_name`: with --signal=KILL. Then accounting does not learn whose doing it was."""
    if step.live:
        killer = None if by_name else controller.user.uid
        order = Terminate((signal.SIGKILL,), kill_after=None, abort=True, killer=killer)
        controller.runner.order(job, step, order)


def time_out(controller: Controller, job: JobRecord) -> None:
    terminate_job(controller, job, JobState.TIMEOUT, "TimeLimit", "DUE TO TIME LIMIT")


def miss_deadline(controller: Controller, job: JobRecord) -> None:
    """--deadline has passed, whether it runs or waits."""
    if job.running:
        terminate_job(controller, job, JobState.DEADLINE, "DeadLine", "DUE TO DEADLINE")
    elif job.waits:
        job.state, job.reason, job.end = JobState.DEADLINE, "DeadLine", controller.clock()
        job.start = job.end
        controller.changed(job)
        controller.wake()


def _state_of_step(step: Step) -> JobState:
    if step.status == OUT_OF_MEMORY:
        return JobState.OUT_OF_MEMORY
    if step.timed_out:
        return JobState.TIMEOUT
    if step.status >> 8:
        return JobState.FAILED
    return JobState.CANCELLED if step.status else JobState.COMPLETED
