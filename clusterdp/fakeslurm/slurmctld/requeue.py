"""Events after which a job waits again or continues: requeue, preemption, suspend, lost nodes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from ..core import error_texts
from ..core.error_texts import ControllerError
from ..core.model import BATCH, WAITING, JobRecord
from ..core.orders import FailNode, OutliveSrun, Say, Signal, Terminate, Warn
from ..core.state import JobState
from . import job_end

if TYPE_CHECKING:
    from .controller import Controller


MAX_BATCH_REQUEUE = 5  # Slurm's default
TOO_OFTEN = "launch failure limit exceeded requeued held"


def requeue(
    controller: Controller,
    job: JobRecord,
    word: str = "REQUEUED",
    why: str = "DUE TO JOB REQUEUE",
    hold: str | None = None,
) -> None:
    """Requeues a job, like `scontrol requeue`. Raises ControllerError if the job may not be requeued."""
    if job.state in WAITING:
        raise ControllerError(error_texts.PENDING)
    if job.het and job.het.offset:
        raise ControllerError(error_texts.NOT_LEADER)
    if not job.desc.requeue or not job.desc.batch:
        raise ControllerError(error_texts.DISABLED)
    restart(controller, job, word, why, hold)


def restart(
    controller: Controller,
    job: JobRecord,
    word: str,
    why: str,
    hold: str | None = None,
    state: JobState = JobState.PENDING,
) -> None:
    for component in controller.model.components(job):
        if not component.waits:
            _restart(controller, component, word, why, hold, state)


def _restart(controller: Controller, job: JobRecord, word: str, why: str, hold: str | None, state: JobState) -> None:
    job.next_word = word
    job.restarts += 1
    job.requeue_hold = hold
    job.in_grace = job.in_grace and controller.settings.release.remembers_grace
    if hold == "special":
        job.requeue_hold, state = "job requeued in held state", JobState.SPECIAL_EXIT
    if job.completing:
        job.next_word = job.state.value if _keeps_word(controller, job) else word
        job.state = job.outcome = state
        controller.changed(job, job.next_word)
    elif job.over:
        if controller.settings.release.requeue_renames_attempt:
            controller.changed(job, word)
        job.state = state
        job.next_word = "COMPLETED"
        _requeue_finished(controller, job)
    else:
        job_end.terminate_job(controller, job, state, "None", why)


def _keeps_word(controller: Controller, job: JobRecord) -> bool:
    """Whether accounting keeps the state of the ending attempt, instead of showing it as REQUEUED."""
    return job.state.final and not controller.settings.release.requeue_renames_attempt


def _requeue_finished(controller: Controller, job: JobRecord) -> None:
    """Makes a job that is over wait again. Accounting keeps the job's last attempt."""
    controller.records.flush()
    now = controller.clock()
    job.steps, job.next_step, job.past = [], 0, []
    job.status = 0
    job.start = job.end = job.derived_at_end = None
    job.cancelled_by = job.outcome = None
    job.desc.partition = job.desc.asked_partitions
    job.submit_time = now
    job.begin = now + controller.settings.requeue_delay_s
    job.reason = job.requeue_hold or "BeginTime"
    job.held, job.requeue_hold = job.requeue_hold, None
    job.eligible_time = job.begin
    controller.changed(job)
    controller.wake()


def suspend(controller: Controller, job: JobRecord) -> None:
    """Stops the processes of a job, which keeps its nodes. Raises ControllerError for a waiting job."""
    if job.waits:
        raise ControllerError(error_texts.PENDING)
    if job.state is JobState.SUSPENDED:
        return
    job.state, job.suspended_at = JobState.SUSPENDED, controller.clock()
    _signal_all(controller, job, signal.SIGSTOP)


def resume(controller: Controller, job: JobRecord) -> None:
    """Continues the processes of a suspended job. Raises ControllerError if the job is not suspended."""
    if job.state is not JobState.SUSPENDED or job.completing:
        raise ControllerError("Job is not suspended")
    job.state = JobState.RUNNING
    job.suspended_s += controller.clock() - job.suspended_at
    _signal_all(controller, job, signal.SIGCONT)


def _signal_all(controller: Controller, job: JobRecord, number: int) -> None:
    for step in job.steps:
        if step.live and not step.runs_in:
            controller.runner.order(job, step, Signal(number))
    controller.changed(job)


def preempt(controller: Controller, job: JobRecord, grace_s: float | None = None) -> None:
    """Preempts a running job. With a grace time, the job's tasks first get TERM. Without a grace time, the job ends at
    once."""
    if not job.running or job.preempt_time is not None:
        return
    grace = controller.model.partitions[job.desc.partition].grace_s if grace_s is None else grace_s
    job.preempt_time = controller.clock()
    job.preempt_end = job.preempt_time + controller.settings.lasting(grace)
    if grace <= 0:
        end_of_grace(controller, job)
        return
    job.in_grace = controller.settings.release.requeues_after_grace
    controller.changed(job)
    for step in job.steps:
        if step.live and step.id != BATCH:
            controller.runner.order(job, step, Warn((signal.SIGCONT, signal.SIGTERM)))


def end_of_grace(controller: Controller, job: JobRecord) -> None:
    if job.desc.requeue and job.desc.batch and _is_requeued(controller, job):
        restart(controller, job, "PREEMPTED", "DUE TO PREEMPTION")
    else:
        _end_all(controller, job, JobState.PREEMPTED, "None", "DUE TO PREEMPTION")


def ended_in_grace(controller: Controller, job: JobRecord) -> None:
    """Requeues a job that ended by itself in its grace time. If the job may not be requeued, its state becomes
    PREEMPTED."""
    job.in_grace, job.status = False, 0
    if not (job.desc.requeue and job.desc.batch and _is_requeued(controller, job)):
        _end_all(controller, job, JobState.PREEMPTED, "None", "")
        return
    job.batch_flag += 1
    if job.batch_flag > MAX_BATCH_REQUEUE:
        job.batch_flag = 1
        restart(controller, job, "PREEMPTED", "", hold=TOO_OFTEN, state=JobState.REQUEUE_HOLD)
    else:
        restart(controller, job, "PREEMPTED", "")


def _is_requeued(controller: Controller, job: JobRecord) -> bool:
    return controller.model.partitions[job.desc.partition].preempt != "CANCEL"


def lose_node(controller: Controller, job: JobRecord, node: str) -> None:
    """Handles the loss of one of the job's nodes: the job is requeued, fails, or continues (--no-kill)."""
    if job.completing or not job.shares:
        return
    if job.desc.no_kill and len(job.shares) > 1:
        _go_on_without(controller, job, node)
        return
    for step in job.steps:
        if step.live and node in step.nodes and step.id != BATCH:
            controller.runner.order(job, step, Say(f"srun: error: Node failure on {node}"))
    why = "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"
    if job.desc.requeue and job.desc.batch:
        restart(controller, job, "NODE_FAIL", why)
    else:
        job.status = controller.settings.release.status_of_node_fail or job.status
        _end_all(controller, job, JobState.NODE_FAIL, "NodeDown", why)


def _end_all(controller: Controller, job: JobRecord, outcome: JobState, reason: str, why: str) -> None:
    """Ends all components of a heterogeneous job, because the end of one component ends the whole job."""
    for component in controller.model.components(job):
        if component.running:
            job_end.terminate_job(controller, component, outcome, reason, why)


def shrink(controller: Controller, job: JobRecord, size: int) -> None:
    """Takes all but the first `size` nodes from a running job, like `scontrol update NumNodes=`. Steps there end."""
    _end_row(controller, job)
    kept = [share.node for share in job.shares[:size]]
    for step in job.steps:
        if step.live and not set(step.nodes) <= {*kept}:
            controller.runner.order(job, step, Terminate((signal.SIGKILL,), kill_after=None, why=None))
    _resize(controller, job, kept)
    controller.wake()


def _end_row(controller: Controller, job: JobRecord) -> None:
    """Ends the row that accounting has for the job with its present nodes."""
    job.end = controller.clock()
    controller.changed(job, "RESIZING")
    job.end = None


def _resize(controller: Controller, job: JobRecord, kept: list[str]) -> None:
    job.shares = [share for share in job.shares if share.node in kept]
    job.resizes += 1
    job.resized_at = controller.clock()
    controller.changed(job)


def _go_on_without(controller: Controller, job: JobRecord, node: str) -> None:
    """Takes a lost node from a job with --no-kill. The job continues without the node and without the steps on it,
    except steps with --no-kill. If the job's batch script ran on the node, all other steps end, and the job continues
    without a script, or fails.
    """
    batch = job.step(BATCH)
    headless = batch is not None and batch.live and node in batch.nodes
    if batch and headless:
        batch.state, batch.end = JobState.CANCELLED, controller.clock()
    _end_row(controller, job)
    if batch and headless:
        batch.end = None  # its slurmstepd has not reported the end yet
    code = controller.settings.release.srun_code_of_node_fail or 0
    lost = Terminate((signal.SIGKILL,), kill_after=None, why=None, srun_code=code)
    live = [step for step in job.steps if step.live]
    for step in live if headless else []:
        if step.id != BATCH:
            controller.runner.order(job, step, OutliveSrun())
    for step in sorted(live, key=lambda step: step.id != BATCH):
        if step.no_kill:
            controller.runner.order(job, step, FailNode(node))
        elif node in step.nodes or headless:
            controller.runner.order(job, step, Say(f"srun: error: Node failure on {node}"))
            controller.runner.order(job, step, lost)
    if controller.settings.release.no_kill_keeps_node and not controller.model.nodes[node].responding:
        job.lost += [share for share in job.shares if share.node == node]
    _resize(controller, job, [share.node for share in job.shares if share.node != node])
    if controller.settings.release.asks_for_nodes_left:
        job.left = len(job.shares), job.cpus
    else:
        job.last_size = len(job.shares)
    # The slurmd of a node that was set DOWN still reports the end of the script.
    if headless and controller.model.nodes[node].responding and controller.settings.release.fails_without_batch_host:
        job_end.relinquish(controller, job, signal.SIGKILL)
