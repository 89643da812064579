"""The controller, which decides which job starts, waits or ends.

Controller has the model, the records and the clock. Runner has the processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ..core import error_texts
from ..core.error_texts import ControllerError
from ..core.job_desc import JobDesc
from ..core.model import BATCH, WAITING, Array, Het, JobRecord, Model, Share, Step
from ..core.orders import Order, Signal, SignalScript
from ..core.shape import Shape, User
from ..core.state import JobState
from ..slurmdbd.accounting import Accounting
from . import job_end, requeue, scheduler, submit_checks
from .dependencies import dependency_state
from .journal import Journal, Records
from .node_selection import all_free, place
from .spool import Spool

FIRST_PRIORITY = 4294901759
SCHEDULING_DELAY_S = 0.1
TOLERATED_S = 1.0


class Runner(Protocol):
    """The part of the daemon that the controller uses to start slurmstepds and send orders to them."""

    def start_batch(self, job: JobRecord, step: Step) -> None: ...

    def order(self, job: JobRecord, step: Step, order: Order) -> None:
        """Sends an order to the slurmstepd of the step."""

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Calls `action` after this many seconds."""

    def job_changed(self) -> None:
        """Wakes all coroutines that wait for a change of a job."""


class Controller:
    def __init__(self, shape: Shape, folder: Path, model: Model, accounting: Accounting, journal: Journal, user: User):
        self.shape, self.folder, self.model, self.user = shape, folder, model, user
        self.settings = shape.settings
        self.runner: Runner
        self.clock = Clock(model)
        self.spool = Spool(folder)
        self.records = Records(model, accounting, journal, folder, self.clock)
        self._schedule_wanted = False
        self._to_start: list[tuple[JobRecord, Step]] = []
        self._complained = False
        recent = [job for job in model.jobs.values() if job.desc.token and job.restarts == 0]
        self._tokens = {job.desc.token: job.array.id if job.array else job.id for job in recent}

    # -- changes --

    def changed(self, job: JobRecord, word: str | None = None) -> None:
        """Records a change of a job. Call `changed` after each change of the job's fields."""
        self.records.job(job, word)
        self.runner.job_changed()

    def forget(self, job: JobRecord) -> None:
        """Deletes a job that ended long ago. Accounting keeps the job."""
        self.records.forget(job)
        del self.model.jobs[job.id]
        self._tokens.pop(job.desc.token, None)

    def wake(self) -> None:
        """Makes the scheduler run at the next `settle`, because of an event that may let a job start."""
        self._schedule_wanted = True

    def set_clock(self) -> None:
        """If the machine's clock was changed, sets the cluster's clock to it. Call `set_clock` only when no job runs or
        waits."""
        if self.clock.wrong:
            self.clock.set()
            self.records.clock()

    def settle(self) -> None:
        """Schedules jobs if needed, writes all changes to disk, and starts steps whose start is now on disk. The daemon
        calls `settle` before each answer to a command.
        """
        while self._schedule_wanted and self.records.flush() and self.spool.room:
            self._schedule_wanted = False
            self.schedule()
        if self.records.flush():
            begun, self._to_start = self._to_start, []
            for job, step in begun:
                if job.completing:  # the job was cancelled while the disk was full or descriptors were short
                    job_end.step_never_started(self, job, step)
                else:
                    self._start_batch(job, step)
            self._complained = self._complained and bool(self._to_start)

    def _start_batch(self, job: JobRecord, step: Step) -> None:
        try:
            self.runner.start_batch(job, step)
        except OSError as error:  # the step stays in the queue, because a later attempt may succeed
            self.start_batch_when_recorded(job, step)
            if not self._complained:
                print(f"job {job.id} cannot start: {error.strerror}. It is tried again.", file=sys.stderr, flush=True)
            self._complained = True

    def start_batch_when_recorded(self, job: JobRecord, step: Step) -> None:
        """Starts the batch script of a job as soon as the job's start is on disk."""
        self._to_start.append((job, step))

    def conf_path(self) -> Path:
        return self.folder / "slurm.conf"

    # -- submission --

    def submit(self, desc: JobDesc, array: Array | None, script: bytes, environ: dict[str, str]) -> JobRecord:
        return self.submit_together([desc], array, script, environ)

    def submit_together(
        self, descs: list[JobDesc], array: Array | None, script: bytes, environ: dict[str, str]
    ) -> JobRecord:
        """Submits a job, or all components of a heterogeneous job. Returns the first job. Raises ControllerError."""
        first = descs[0]
        if first.token and first.token in self._tokens:
            return self.model.jobs[self._tokens[first.token]]
        if array and len(descs) > 1:
            raise ControllerError(error_texts.INVALID_ARRAY)
        for desc in descs:
            try:
                submit_checks.check(self.model, desc, self.clock())
            except ControllerError as error:
                if error.numbered:
                    self.model.new_id()
                raise
        jobs = [self._enter(desc, array) for desc in descs]
        if len(jobs) > 1:
            named = {node for desc in descs for node in desc.nodelist}
            for offset, job in enumerate(jobs):
                job.het = Het(jobs[0].id, offset, len(jobs))
                job.desc.exclude += sorted(named - {*job.desc.nodelist, *job.desc.exclude})
        try:
            self.spool.write(jobs[0], script, environ)
        except OSError as error:
            for job in jobs:
                del self.model.jobs[job.id]
            said = f"{self.folder}: {error.strerror}. Make room there."
            raise ControllerError(error_texts.WRITING, said=said) from None
        for job in jobs:
            self.changed(job)
        self._tokens[first.token] = jobs[0].id
        if first.batch or len(jobs) > 1:
            self.runner.later(SCHEDULING_DELAY_S, self.wake)  # sbatch gets its answer before the job starts
        else:
            self.wake()
        return jobs[0]

    def _enter(self, desc: JobDesc, array: Array | None) -> JobRecord:
        now = self.clock()
        number = self.records.number()
        priority = max(FIRST_PRIORITY - number + self.settings.first_job_id - desc.nice, 1)
        if desc.priority is not None:
            priority = desc.priority
        job = JobRecord(number, desc, priority, now, array=array, begin=desc.begin or 0)
        if array:
            array.id = number
            # Elements get ids when they start, a moment later. Jobs submitted in a row therefore have consecutive ids.
            job.considered_from = now + self.settings.tick_s
            self.runner.later(self.settings.tick_s, self.wake)
        if desc.hold:
            job.held = job.reason = "JobHeldUser"
        late = array and not desc.hold if self.settings.release.accounts_held_jobs else desc.hold or array
        if late:
            job.accounted = False
            self.runner.later(3 * self.settings.accounting_lag_s, lambda: self._account_late(job))
        job.minutes = self.limit(desc)
        if not job.held and not desc.dependency:
            job.eligible_time = max(job.begin, now)
        self.model.jobs[number] = job
        if not job.held and desc.dependency:
            impossible = dependency_state(self.model, job, now).impossible and not desc.kill_on_invalid_dep
            job.reason = "DependencyNeverSatisfied" if impossible else "Dependency"
        return job

    def _account_late(self, job: JobRecord) -> None:
        """Enters a held job, or a waiting array, into accounting, some seconds after its submission."""
        # A job that was refused after its submission, because the disk was full, is not in the table.
        if not job.accounted and not job.over and job.id in self.model.jobs:
            job.accounted = True
            self.changed(job)

    def limit(self, desc: JobDesc) -> int | None:
        """Returns the time limit of a job in minutes, or None if the job has no limit."""
        if desc.minutes is None:
            return self.model.partitions_of(desc)[-1].max_minutes
        return desc.minutes or None

    def would_run(self, desc: JobDesc) -> tuple[str, list[Share] | None]:
        """Returns the partition and the shares that the job would get on an empty cluster (for --test-only)."""
        free = all_free(self.model)
        for partition in self.model.partitions_of(desc):
            candidates = [free[name] for name in partition.nodes if name not in desc.exclude]
            if self.settings.release.test_only_spreads and not desc.nodes_asked and desc.tasks:
                desc = replace(desc, min_nodes=min(desc.tasks, len(candidates)))
            if shares := place(desc, candidates, self.settings.release):
                return partition.name, shares
        return "", None

    # -- decisions of the scheduler --

    def schedule(self) -> None:
        now = self.clock()
        for job in list(self.model.jobs.live.values()):
            if job.waits and submit_checks.misses_deadline(self.model, job.desc, now):
                job_end.miss_deadline(self, job)
            if job.array and job.waits and "aftercorr" in (job.desc.dependency or "") and job.considered_from <= now:
                for index in list(job.array.indexes):  # each element of an array has its own dependency
                    self.split(job, index)
        for decision in scheduler.schedule(self.model, now):
            job = self.model.jobs[decision.job]
            job.last_sched = now
            if isinstance(decision, scheduler.StartJob):
                self._start(job, decision, now)
            elif isinstance(decision, scheduler.PreemptJob):
                requeue.preempt(self, job)
            elif isinstance(decision, scheduler.CancelInvalid):
                job.reason = "DependencyNeverSatisfied"
                job_end.cancel(self, job)
                job.cancelled_by = None
                self.changed(job)
            elif _differs(decision, job) or (job.eligible_time is None and not job.held):
                self._wait(job, decision, now)

    def _wait(self, job: JobRecord, decision: scheduler.KeepPending, now: float) -> None:
        before, reason = (job.reason, job.eligible_time, job.planned_start), decision.reason
        job.reason, job.planned_start, job.planned_nodes = reason, decision.start, list(decision.nodes)
        if job.eligible_time is None and not job.held and reason not in ("Dependency", "DependencyNeverSatisfied"):
            job.eligible_time = max(job.begin, now)
        if before != (job.reason, job.eligible_time, job.planned_start):
            self.changed(job)

    def split(self, job: JobRecord, index: int) -> JobRecord:
        """Makes one element of a waiting array a job of its own. The last element keeps the array's job id."""
        array = job.array
        assert array
        assert index in array.indexes
        if array.split:
            return job
        if len(array.indexes) == 1:
            array.split = True
            return job
        element = job.element(index, self.records.number())
        array.indexes.remove(index)
        job.accounted = job.accounted or not job.held
        self.model.jobs[element.id] = element
        self.spool.share(job, element)
        self.changed(job)
        return element

    def _start(self, job: JobRecord, decision: scheduler.StartJob, now: float) -> None:
        """Gives the job its nodes. The job's batch script starts when this change is on disk."""
        if decision.index is not None:
            job = self.split(job, decision.index)
        shares, asked = list(decision.shares), self.model.partitions_of(job.desc)
        # Slurm sorts the partitions of a job that was requeued.
        job.desc.asked_partitions = ",".join(partition.name for partition in asked)
        job.desc.partition = decision.partition
        job.state, job.reason, job.shares = JobState.RUNNING, "None", shares
        job.accounted = job.dependency_met = True
        job.past, job.last_size = [], len(shares)
        if self.settings.release.keeps_given_tasks:
            job.desc.kept_tasks = job.tasks or 0
        job.start, job.end, job.status, job.derived_at_end = now, None, 0, None
        job.eligible_time = job.eligible_time or now
        job.minutes = self.limit(job.desc)
        if job.desc.deadline is not None and "time-min" in job.desc.shown:
            left = int((int(job.desc.deadline) - int(now)) / self.settings.minute_s)
            job.minutes = min(job.minutes or left, left)
        job.warned, job.preempt_time, job.preempt_end = False, None, None
        job.cancelled_by = job.outcome = None
        for share in shares:
            self.model.nodes[share.node].busy_time = now
        if job.has_script:
            first = shares[0]
            step = Step(
                BATCH,
                BATCH,
                [first.node],
                [1],
                {first.node: first.cpus},
                {first.node: first.gpus},
                start=now,
                restart=job.restarts,
            )
            job.steps.append(step)
            self.start_batch_when_recorded(job, step)
        self.changed(job)

    def ended_in_grace(self, job: JobRecord) -> None:
        requeue.ended_in_grace(self, job)

    # -- hold and release --

    def hold(self, job: JobRecord, reason: str) -> None:
        job.held = job.reason = reason
        self.changed(job)

    def release(self, job: JobRecord) -> None:
        job.held, job.accounted = None, True
        if job.state in WAITING:
            job.state = JobState.PENDING
        if job.reason.startswith(("JobHeld", "job requeued", "launch failure")):
            job.reason = "None"
        self.changed(job)
        self.wake()

    def move_to_top(self, job: JobRecord) -> None:
        """Gives the job a higher priority than all other waiting jobs. Raises ControllerError."""
        if job.held:
            raise ControllerError("Job is in held state, pending scheduler release")
        if not job.waits:
            raise ControllerError(error_texts.NOT_PENDING)
        job.priority = max(other.priority for other, _ in scheduler.waiting(self.model)) + 1
        self.changed(job)
        self.wake()

    # -- signals --

    def signal(self, job: JobRecord, number: int, *, script: bool = False, full: bool = False) -> None:
        """Sends a signal to a job, like `scancel --signal`: to its tasks, its batch shell, or all its processes."""
        for step in job.steps:
            if not step.live or step.runs_in:
                continue
            if step.id == BATCH and script:
                self.runner.order(job, step, SignalScript(number))
            elif full and step.id != BATCH and job.desc.batch:
                pass  # the srun in the script gets the signal, and passes it on or kills its step
            elif full or (step.id != BATCH and not script):
                self.runner.order(job, step, Signal(number))


def _differs(decision: scheduler.KeepPending, job: JobRecord) -> bool:
    return decision.reason != job.reason or decision.start != job.planned_start


class Clock:
    def __init__(self, model: Model):
        self._model = model
        if not model.epoch:
            self.set()

    def __call__(self) -> float:
        """Returns the seconds since 1970 on the cluster's clock."""
        return time.monotonic() + self._model.epoch + self._model.ahead_s

    @property
    def wrong(self) -> bool:
        """Whether the cluster's clock is wrong, because the machine's clock was set, or the machine has slept."""
        return abs(_epoch() - self._model.epoch) > TOLERATED_S

    def set(self) -> None:
        """Sets the cluster's clock to the machine's time. Call `set` only when no job waits or runs, because the jump
        would change a job's times."""
        self._model.epoch = _epoch()


def _epoch() -> float:
    """Returns the machine's time at which its monotonic clock was zero."""
    return time.time() - time.monotonic()
