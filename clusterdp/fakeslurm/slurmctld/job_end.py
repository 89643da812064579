"""The end of a job's attempt (by itself, by scancel, at its time limit), and the actions after its last process has
ended.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from ..core.model import BATCH, WAITING, JobRecord, Step
from ..core.orders import Terminate
from ..core.reports import Ended
from ..core.state import JobState
from ..slurmstepd.memory_limit import OUT_OF_MEMORY

if TYPE_CHECKING:
    from .controller import Controller

BOOKING = 0.3  # fraction of the accounting lag after which accounting has confirmed a new array to the controller


def step_ended(controller: Controller, job: JobRecord, step: Step, report: Ended) -> None:
    """Handles the report of a slurmstepd that the step has ended."""
    if not step.live:
        return
    now = controller.clock()
    status = report.statuses.get(job.id, report.status)
    step.end, step.status, step.lingers = now, status, report.lingers
    step.usage = report.usages.get(job.id)
    step.timed_out = step.timed_out or report.timed_out
    if report.killer is not None:
        step.cancelled_by = report.killer
    headless = step.id == BATCH and step.nodes[0] not in job.nodes  # a --no-kill job lost its first node
    step.state = JobState.CANCELLED if headless else _state_of_step(step)
    step.status = 0 if headless else step.status
    if step.id != BATCH and (not report.lost_srun or controller.settings.release.derived_counts_all):
        job.derived = max(job.derived, step.status)
    end_mirrors(controller, job, step, report)
    if headless:
        pass
    elif step.id == BATCH or (job.made_by_srun and not any(other.live for other in job.steps)):
        if job.made_by_srun and (report.interrupted or report.lost_srun):
            job.cancelled_by, step.state = controller.user.uid, JobState.CANCELLED
            terminate_job(controller, job, JobState.CANCELLED, "None", "")
        else:
            _script_ended(controller, job, report.status)
    controller.changed(job)
    _finish_if_empty(controller, job)
    controller.wake()


def end_mirrors(controller: Controller, job: JobRecord, step: Step, report: Ended) -> None:
    """Ends the step's records in other components, because a step over several components has a record in each
    component."""
    for other in controller.model.components(job):
        mirror = other.step(step.id)
        if mirror and mirror.runs_in == job.id and mirror.live:
            step_ended(controller, other, mirror, report)


def step_never_started(controller: Controller, job: JobRecord, step: Step) -> None:
    """Handles a step that was recorded but never started, because the daemon or the fork server was killed."""
    if step.id == BATCH and not job.completing:
        controller.start_batch_when_recorded(job, step)
        return
    mirror = step.id, job.id
    for other in controller.model.components(job):
        other.steps = [each for each in other.steps if each is not step and (each.id, each.runs_in) != mirror]
    controller.changed(job)
    _finish_if_empty(controller, job)
    controller.wake()


def srun_gave_up(controller: Controller, job: JobRecord, step: Step | None, own_job: bool) -> None:
    """Ends the step of an srun that ended before its step began, and the job that srun made for the step."""
    if step and job.step(step.id) is step:
        step_never_started(controller, job, step)
    if own_job:
        relinquish(controller, job, 1 << 8)
    controller.settle()


def script_gone(controller: Controller, job: JobRecord, step: Step) -> None:
    """Handles the report that all processes of the batch script have ended."""
    step.lingers = False
    controller.changed(job)
    _finish_if_empty(controller, job)


def _finish_if_empty(controller: Controller, job: JobRecord) -> None:
    if not job.completing or not job.empty:
        return
    if controller.clock() - (job.end or 0) >= controller.settings.kill_wait_s - 0.2:
        # slurmd notices the end of killed processes late, because it looks at growing intervals.
        controller.runner.later(controller.settings.kill_notice_s, lambda: _finish_late(controller, job))
    else:
        finish(controller, job)


def _finish_late(controller: Controller, job: JobRecord) -> None:
    if job.completing and job.empty:
        finish(controller, job)


def _script_ended(controller: Controller, job: JobRecord, status: int) -> None:
    """Ends the job with its batch script, or with the only step of an srun outside of jobs."""
    if job.completing:
        job.status = job.status or status
    else:
        relinquish(controller, job, status)


def relinquish(controller: Controller, job: JobRecord, status: int) -> None:
    """Ends a job because its script, program or step has ended with this wait status."""
    if not job.running and job.state is not JobState.SUSPENDED:
        return
    if job.in_grace:
        controller.ended_in_grace(job)
        return
    job.status, details = status, ""
    if not status:
        state, reason, why = JobState.COMPLETED, job.held or "None", ""
    else:
        number = status & 0x7F
        state, reason = JobState.FAILED, "JobLaunchFailure" if number else "NonZeroExitCode"
        if number and number != OUT_OF_MEMORY and controller.settings.release.signal_in_reason:
            reason = details = f"RaisedSignal:{number}({signal.strsignal(number)})"
        why = "FAILED (non-zero exit code or other failure mode)"
    if status == OUT_OF_MEMORY or any(step.state is JobState.OUT_OF_MEMORY for step in job.steps):
        state, reason, job.status = JobState.OUT_OF_MEMORY, "OutOfMemory", OUT_OF_MEMORY
    job.preempt_time = None
    for other in controller.model.components(job) if job.has_script or job.desc.is_allocation else [job]:
        if other.running:
            other.status = job.status
            terminate_job(controller, other, state, reason, why, abort=True, details=details)


def terminate_job(
    controller: Controller,
    job: JobRecord,
    outcome: JobState,
    reason: str,
    why: str,
    abort: bool = True,
    kill: bool = False,
    details: str = "",
) -> None:
    """Ends all processes of the job. `finish` is called when all processes have ended."""
    job.completing, job.outcome, job.reason = True, outcome, reason
    job.state = outcome
    job.end = controller.clock()
    job.derived_at_end = None if controller.settings.release.derived_counts_all else job.derived
    controller.changed(job)
    live = [step for step in job.steps if step.live and not _ends_elsewhere(controller, step, job)]
    # Steps get the order before the batch shell, because otherwise the shell's srun would kill them. Processes that
    # ignore TERM are killed in the reverse order, because the script must not continue after the death of its srun.
    for step in sorted(live, key=lambda step: step.id == BATCH):
        kill_after = controller.settings.kill_wait_s - (0.1 if step.id == BATCH else 0)
        said = abort and step.id != BATCH
        if kill:
            order = Terminate((signal.SIGKILL,), kill_after=None, why=why, abort=said, details=details)
        else:
            order = Terminate((signal.SIGCONT, signal.SIGTERM), kill_after, why, said, details=details)
        controller.runner.order(job, step, order)
    if job.empty:
        finish(controller, job)


def _ends_elsewhere(controller: Controller, step: Step, job: JobRecord) -> bool:
    """Whether the step's slurmstepd belongs to another component that also ends: that component sends the order."""
    home = controller.model.jobs.get(step.runs_in)
    return bool(home and (home.completing or not home.running)) and home is not job


def finish(controller: Controller, job: JobRecord) -> None:
    """Frees the nodes of a job whose processes have all ended."""
    now = controller.clock()
    job.completing = False
    for share in job.shares:
        controller.model.nodes[share.node].busy_time = now
    if job.state in WAITING:
        wait_again(controller, job, now)
    else:
        job.past, job.shares, job.lost = job.shares, [], []
        controller.changed(job)
    controller.wake()


def wait_again(controller: Controller, job: JobRecord, now: float) -> None:
    """Makes a requeued job wait for its next attempt."""
    controller.changed(job, job.next_word)
    failed_node = job.next_word == "NODE_FAIL"
    job.shares, job.past, job.lost, job.steps, job.next_step = [], [], [], [], 0
    job.status = 0
    job.start = job.end = job.derived_at_end = None
    job.preempt_time = job.preempt_end = None
    job.cancelled_by = job.outcome = None
    job.desc.partition = job.desc.asked_partitions
    job.submit_time = now
    job.begin = now + controller.settings.requeue_delay_s
    job.reason = job.requeue_hold or "BeginTime"
    job.held = job.requeue_hold
    job.eligible_time = job.begin
    job.accounted = not failed_node or controller.settings.release.accounts_after_node_fail
    job.requeue_hold = None
    controller.changed(job)


def cancel(controller: Controller, job: JobRecord, uid: int | None = None) -> None:
    if job.over or (job.completing and job.state is not JobState.PENDING):
        return
    job.cancelled_by = controller.user.uid if uid is None else uid
    if job.waits:
        job.accounted = True
        if job.array and controller.clock() - job.array.accounted_at < BOOKING * controller.settings.accounting_lag_s:
            job.array.accounted_as = ""  # accounting does not have a row for the array yet
        job.state, job.end = JobState.CANCELLED, controller.clock()
        job.start = job.end
        controller.changed(job)
        controller.wake()
    elif job.completing:  # the job was completing because of a requeue
        job.state = job.outcome = JobState.CANCELLED
        controller.changed(job)
    else:
        terminate_job(controller, job, JobState.CANCELLED, "None", "")


def cancel_step(controller: Controller, job: JobRecord, step: Step, by_name: bool = False) -> None:
    """Ends a step. With `by_name` (scancel --signal=KILL), accounting does not get the user's uid."""
    if step.live:
        killer = None if by_name else controller.user.uid
        order = Terminate((signal.SIGKILL,), kill_after=None, abort=True, killer=killer)
        controller.runner.order(job, step, order)


def time_out(controller: Controller, job: JobRecord) -> None:
    terminate_job(controller, job, JobState.TIMEOUT, "TimeLimit", "DUE TO TIME LIMIT")


def miss_deadline(controller: Controller, job: JobRecord) -> None:
    """Ends a running or waiting job because its --deadline has passed."""
    if job.running:
        terminate_job(controller, job, JobState.DEADLINE, "DeadLine", "DUE TO DEADLINE")
    elif job.waits:
        job.state, job.reason, job.end, job.status = JobState.DEADLINE, "DeadLine", controller.clock(), 1
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
