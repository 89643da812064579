"""The timers of the controller: time limits, warning signals, ends of grace times, returns and failures of nodes."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from ..core.model import BATCH, JobRecord
from ..core.orders import Terminate
from . import job_end, nodes, requeue
from .controller import Controller


def check_limits(controller: Controller) -> None:
    """Checks time limits and grace times. slurmctld checks every 30 s: warnings come up to 30 s early, ends up to 30 s
    late.
    """
    now = controller.clock()
    for job in list(controller.model.live_jobs()):
        if job.desc.deadline is not None and job.desc.deadline <= now and not job.over:
            job_end.miss_deadline(controller, job)
        if not job.running or job.start is None:
            continue
        if job.preempt_end is not None:
            if job.preempt_end <= now:
                requeue.end_of_grace(controller, job)
            continue
        _check_steps(controller, job, now)
        if not job.minutes:
            continue
        end = job.start + job.suspended_s + job.minutes * controller.settings.minute_s
        if end <= now:
            job_end.time_out(controller, job)
        elif job.desc.signal and not job.warned:
            _warn(controller, job, end - now)


def _warn(controller: Controller, job: JobRecord, left: float) -> None:
    settings, desc = controller.settings, job.desc
    assert desc.signal is not None
    if left > desc.signal_s * settings.minute_s / 60 + settings.look_s:
        return
    job.warned = True
    for number in (signal.SIGCONT, desc.signal):
        controller.signal(job, number, script=desc.signal_batch)
    controller.changed(job)


def _check_steps(controller: Controller, job: JobRecord, now: float) -> None:
    """Checks the time limits of steps (srun --time)."""
    for step in job.steps:
        if not step.live or step.runs_in or not step.minutes or step.timed_out or step.id == BATCH:
            continue
        if step.start + step.minutes * controller.settings.minute_s <= now:
            step.timed_out = True
            controller.runner.order(
                job,
                step,
                Terminate(
                    (signal.SIGCONT, signal.SIGTERM),
                    controller.settings.kill_wait_s,
                    why="DUE TO TIME LIMIT",
                    timed_out=True,
                ),
            )
            controller.changed(job)


def check_nodes(controller: Controller) -> None:
    """Brings back healthy nodes that were set DOWN, and marks failed nodes."""
    now = controller.clock()
    for node in controller.model.nodes.values():
        if node.fails_at is not None and node.fails_at <= now:
            nodes.notice_dead_node(controller, node.name)
            controller.wake()
        if node.returns_at is not None and node.returns_at <= now:
            node.down, node.returns_at = False, None
            if not node.drain:
                node.reason = ""
            controller.records.node(node.name)
            controller.wake()


def forget(controller: Controller) -> None:
    """Deletes jobs that ended more than MinJobAge ago. Only sacct still shows these jobs."""
    oldest = controller.clock() - controller.settings.min_job_age_s
    for job in controller.model.jobs.over_before(oldest):
        controller.forget(job)


def advance(controller: Controller, seconds: float) -> None:
    """Moves the cluster's clock forward. Time limits, warnings, ends of grace times, begin times, delays and node
    failures take effect in their order. Processes of jobs get no time to run: to see how a job reacts to a warning,
    advance to the warning, wait for the reaction, then advance again. KillWait still passes in real seconds.
    """
    goal = controller.clock() + controller.settings.lasting(seconds)
    while due := min(_moments(controller), default=None):
        if due > goal:
            break
        _advance_to(controller, due)
    _advance_to(controller, goal)


def _advance_to(controller: Controller, moment: float) -> None:
    controller.model.ahead_s += max(moment - controller.clock(), 0)
    controller.records.ahead()
    check_limits(controller)
    check_nodes(controller)
    forget(controller)
    controller.wake()
    controller.settle()


def _moments(controller: Controller) -> Iterator[float]:
    """Yields the future moments at which a timer is due."""
    now = controller.clock()
    for job in controller.model.live_jobs():
        yield from (moment for moment in _of(controller, job) if moment > now)
    for node in controller.model.nodes.values():
        yield from (moment for moment in (node.fails_at, node.returns_at) if moment is not None and moment > now)


def _of(controller: Controller, job: JobRecord) -> Iterator[float]:
    lasting = controller.settings.lasting
    if job.waits and job.begin:
        yield job.begin
    if job.desc.deadline is not None and not job.over:
        least_s = lasting(job.desc.least_minutes * 60) if job.waits else 0
        yield job.desc.deadline - least_s
    if not job.running or job.start is None:
        return
    if job.preempt_end is not None:
        yield job.preempt_end
        return
    if job.minutes:
        end = job.start + job.suspended_s + lasting(job.minutes * 60)
        yield end
        if job.desc.signal and not job.warned:
            yield end - lasting(job.desc.signal_s)
    for step in job.steps:
        if step.live and step.minutes and not step.timed_out:
            yield step.start + lasting(step.minutes * 60)
