"""Moving the cluster's clock forward: what would have happened on the way happens, each thing at its moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clusterdp.fakeslurm.core.model import JobRecord
from clusterdp.fakeslurm.slurmctld import timers

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.controller import Controller


def advance(controller: Controller, seconds: float) -> None:
    """As if so many of the cluster's seconds had passed for its controller: limits, warnings, ends of grace times,
    begin times, delays, nodes that are missed. Processes get no time meanwhile: to see a job answer a warning, advance
    as far as the warning, wait for what the job does, then go on. KillWait passes in real seconds.
    """
    goal = controller.clock() + controller.settings.lasting(seconds)
    while due := min(_moments(controller), default=None):
        if due > goal:
            break
        _look_at(controller, due)
    _look_at(controller, goal)


def _look_at(controller: Controller, moment: float) -> None:
    controller.model.ahead_s += max(moment - controller.clock(), 0)
    controller.records.ahead()
    timers.check_limits(controller)
    timers.check_nodes(controller)
    timers.forget(controller)
    controller.wake()
    controller.settle()


def _moments(controller: Controller) -> Iterator[float]:
    """All that lie ahead at which something is to be done."""
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
        yield job.desc.deadline
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
