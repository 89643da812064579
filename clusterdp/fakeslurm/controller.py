"""slurmctld: what becomes of jobs. Knows the model, the books and the clock; processes are the runner's."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from clusterdp.slurm.state import JobState

from . import refusals, scheduler
from .accounting import Books
from .journal import Journal
from .model import BATCH, Array, Job, JobSpec, Model, Share, Step
from .placing import all_free, place
from .refusals import ControllerError
from .shape import Shape, User

FIRST_PRIORITY = 4294901759
TERM, CONT, KILL = int(signal.SIGTERM), int(signal.SIGCONT), int(signal.SIGKILL)


class Runner(Protocol):
    """Whoever has the supervisors of steps."""

    def start_batch(self, job: Job, step: Step) -> None: ...

    def order(self, job: Job, step: Step, **order: Any) -> None:
        """Pass an order on to the step's supervisor."""

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it then."""

    def end_of(self, job: Job) -> None:
        """The job is over or waits again: tell whoever waits for that."""


class Controller:
    def __init__(self, shape: Shape, folder: Path, model: Model, books: Books, journal: Journal, user: User):
        self.shape, self.folder, self.model, self.books, self.user = shape, folder, model, books, user
        self.settings = shape.settings
        self.runner: Runner
        self.clock: Callable[[], float] = time.time
        self._journal = journal
        self._wanted = False

    # -- bookkeeping --

    def changed(self, job: Job, word: str | None = None) -> None:
        """To be called after every change of a job, before anybody is told of it."""
        self._journal.write("job", job.id, job)
        entry = self.books.note(self.model, job, self.clock() + self.settings.accounting_lag_s, word)
        if entry:
            self._journal.write("row", *entry)

    def wake(self) -> None:
        """Something happened that may let a job start."""
        self._wanted = True

    def settle(self) -> None:
        """Do what came up, and have it on disk. Called before each answer."""
        while self._wanted:
            self._wanted = False
            self.schedule()
        self.flush()

    def flush(self) -> None:
        self._journal.flush()

    def write_node(self, name: str) -> None:
        self._journal.write("node", name, self.model.nodes[name])

    def write_partition(self, name: str) -> None:
        self._journal.write("partition", name, self.model.partitions[name])

    def conf_path(self) -> Path:
        return self.folder / "slurm.conf"

    def spool(self, job: Job) -> Path:
        return self.folder / "spool" / f"job{job.id:05}"

    # -- submission --

    def check(self, spec: JobSpec) -> None:
        """Refuse what slurmctld refuses at once; what can merely never run is accepted (EnforcePartLimits=NO)."""
        known = self.model.nodes
        if not set([*spec.nodelist, *spec.exclude]) <= set(known):
            raise ControllerError(refusals.INVALID_NODE)
        if spec.features and not any(scheduler.has_features(spec.features, node.features) for node in known.values()):
            raise ControllerError(refusals.INVALID_FEATURE)
        partition = self.model.partitions[spec.partition]
        if set(partition.nodes) <= set(spec.exclude):
            raise ControllerError(refusals.NODE_CONFIG)
        most = max((node.gpus for node in known.values()), default=0)
        all_gpus = sum(node.gpus for node in known.values())
        gpus = spec.gpus
        if (gpus.per_node or 0) > most or (gpus.per_task or 0) > most or (gpus.per_job or 0) > all_gpus:
            raise ControllerError(refusals.NODE_CONFIG)
        if (spec.mem_per_node or 0) > max(node.memory_mb for node in known.values()):
            raise ControllerError("Memory required by task is not available")
        if spec.dependency:
            from .dependencies import parse

            parse(spec.dependency)

    def submit(self, spec: JobSpec, array: Array | None, script: bytes, environ: dict[str, str]) -> Job:
        try:
            self.check(spec)
        except ControllerError as error:
            if str(error) in (refusals.INVALID_NODE, refusals.INVALID_FEATURE, refusals.NODE_CONFIG):
                self.model.new_id()  # these are found only when the job has its number
            raise
        now = self.clock()
        number = self.model.new_id()
        self._journal.write("next_id", 0, self.model.next_id)
        priority = max(FIRST_PRIORITY - number + self.settings.first_job_id - spec.nice, 1)
        job = Job(number, spec, priority, now, array=array, begin=spec.begin or 0)
        if array:
            array.id = number
        if spec.hold:
            job.held = job.reason = "JobHeldUser"
        job.minutes = self.limit(spec)
        self._mark_eligible(job, now)
        folder = self.spool(job)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "slurm_script").write_bytes(script)
        os.chmod(folder / "slurm_script", 0o700)
        names = "\0".join(f"{name}={value}" for name, value in environ.items())
        (folder / "environment").write_bytes(names.encode("utf-8", "surrogateescape"))
        self.model.jobs[number] = job
        self.changed(job)
        self.wake()
        return job

    def limit(self, spec: JobSpec) -> int | None:
        """Minutes, or None."""
        if spec.minutes is None:
            return self.model.partitions[spec.partition].max_minutes
        return spec.minutes or None

    def _mark_eligible(self, job: Job, now: float) -> None:
        if job.eligible_time is None and not job.held and job.begin <= now and not job.spec.dependency:
            job.eligible_time = now

    def would_run(self, spec: JobSpec) -> list[Share] | None:
        """Where it would run if the cluster were empty (for --test-only)."""
        partition = self.model.partitions[spec.partition]
        free = all_free(self.model)
        return place(spec, [free[name] for name in partition.nodes if name not in spec.exclude])

    # -- the scheduler's decisions --

    def schedule(self) -> None:
        now = self.clock()
        for decision in scheduler.schedule(self.model, now):
            job = self.model.jobs[decision.job]
            job.last_sched = now
            if isinstance(decision, scheduler.Start):
                self._start(job, list(decision.shares), decision.index, now)
            elif isinstance(decision, scheduler.Preempt):
                self.preempt(job)
            elif isinstance(decision, scheduler.Invalid):
                self.cancel(job)
            elif decision.reason != job.reason or (job.eligible_time is None and not job.held):
                self._wait(job, decision.reason, now)

    def _wait(self, job: Job, reason: str, now: float) -> None:
        before = (job.reason, job.eligible_time)
        job.reason = reason
        if job.eligible_time is None and not job.held and reason not in ("Dependency", "DependencyNeverSatisfied", "BeginTime"):
            job.eligible_time = now
        if before != (job.reason, job.eligible_time):
            self.changed(job)

    def split(self, job: Job, index: int) -> Job:
        """One element of a waiting array on its own; the last one keeps the array's id."""
        array = job.array
        assert array and index in array.indexes
        if array.split:
            return job
        if len(array.indexes) == 1:
            array.split = True
            return job
        from copy import deepcopy

        element = deepcopy(job)
        element.id = self.model.new_id()
        self._journal.write("next_id", 0, self.model.next_id)
        assert element.array
        element.array.indexes, element.array.split = [index], True
        array.indexes.remove(index)
        self.model.jobs[element.id] = element
        self.spool(element).mkdir(parents=True, exist_ok=True)
        for name in ("slurm_script", "environment"):
            os.link(self.spool(job) / name, self.spool(element) / name)
        self.changed(job)
        return element

    def _start(self, job: Job, shares: list[Share], index: int | None, now: float) -> None:
        if index is not None:
            job = self.split(job, index)
        job.state, job.reason, job.shares = JobState.RUNNING, "None", shares
        job.past = []
        job.start, job.end, job.status, job.derived_at_end = now, None, 0, None
        job.eligible_time = job.eligible_time or now
        job.minutes = self.limit(job.spec)
        job.warned, job.preempt_time, job.preempt_end = False, None, None
        job.cancelled_by = job.outcome = None
        for share in shares:
            self.model.nodes[share.node].busy_time = now
        if job.spec.batch:
            first = shares[0]
            step = Step(BATCH, BATCH, [first.node], [1], {first.node: first.cpus}, {first.node: first.gpus}, start=now,
                restart=job.restarts)
            job.steps.append(step)
            self.changed(job)
            self.runner.start_batch(job, step)
        self.changed(job)

    # -- ends --

    def step_ended(self, job: Job, step: Step, report: dict[str, Any]) -> None:
        """A supervisor says that all is over on its side."""
        if not step.live:
            return
        now = self.clock()
        step.end, step.status = now, report["status"]
        step.timed_out = step.timed_out or report.get("timed_out", False)
        if report.get("killer") is not None:
            step.cancelled_by = report["killer"]
        step.state = _state_of_step(step)
        if step.id != BATCH and not report.get("lost_srun"):
            job.derived = max(job.derived, step.status)
        if step.id == BATCH or (not job.spec.batch and not any(other.live for other in job.steps)):
            self._script_ended(job, step)
        self.changed(job)
        if job.completing and not any(other.live for other in job.steps):
            if now - (job.end or now) >= self.settings.kill_wait_s - 0.1:
                # Who had to be killed is looked after by slurmd with growing pauses.
                self.runner.later(self.settings.kill_notice_s, lambda: self._finish_late(job))
            else:
                self.finish(job)
        self.wake()

    def _finish_late(self, job: Job) -> None:
        if job.completing and not any(step.live for step in job.steps):
            self.finish(job)

    def _script_ended(self, job: Job, step: Step) -> None:
        """The end of the batch script, or of the one step of an srun outside of jobs, is the end of the job."""
        if job.completing:
            job.status = job.status or step.status
            return
        job.status = step.status
        if not step.status:
            state, reason, why = JobState.COMPLETED, "None", ""
        else:
            killed = bool(step.status & 0x7F)
            state, reason = JobState.FAILED, "JobLaunchFailure" if killed else "NonZeroExitCode"
            why = "FAILED (non-zero exit code or other failure mode)"
        job.preempt_time = None
        self._wind_up(job, state, reason, why, abort=True)

    def _wind_up(self, job: Job, outcome: JobState, reason: str, why: str, abort: bool = True, kill: bool = False) -> None:
        """End all of its processes; `finish` follows when they are gone."""
        job.completing, job.outcome, job.reason = True, outcome, reason
        job.state = outcome
        job.end, job.derived_at_end = self.clock(), job.derived
        self.changed(job)
        live = [step for step in job.steps if step.live]
        # The steps hear of it before the batch shell does, whose srun would otherwise be told to kill them. What is deaf
        # is killed in the other order: the script must not go on because srun is dead.
        for step in sorted(live, key=lambda step: step.id == BATCH):
            kill_after = self.settings.kill_wait_s - (0.1 if step.id == BATCH else 0)
            self.runner.order(
                job,
                step,
                op="terminate",
                why=why,
                abort=abort and step.id != BATCH,
                signals=[KILL] if kill else [CONT, TERM],
                kill_after=None if kill else kill_after,
            )
        if not live:
            self.finish(job)

    def finish(self, job: Job) -> None:
        """All its processes are gone: the nodes are free again."""
        now = self.clock()
        job.completing = False
        for share in job.shares:
            self.model.nodes[share.node].busy_time = now
        if job.state in (JobState.PENDING, JobState.SPECIAL_EXIT):
            self._begin_again(job, now)
        else:
            job.past, job.shares = job.shares, []
            self.changed(job)
        self.runner.end_of(job)
        self.wake()

    def _begin_again(self, job: Job, now: float) -> None:
        """The next attempt: the same job, later."""
        self.changed(job, job.next_word)
        failed_node = job.next_word == "NODE_FAIL"
        job.shares, job.past, job.steps, job.next_step = [], [], [], 0
        job.status = 0
        job.start = job.end = job.derived_at_end = None
        job.preempt_time = job.preempt_end = None
        job.cancelled_by = job.outcome = None
        job.submit_time = now
        job.begin = now + self.settings.requeue_delay_s
        job.reason = job.requeue_hold or "BeginTime"
        job.held = job.requeue_hold
        job.eligible_time = None if failed_node else now
        job.requeue_hold = None
        self.changed(job)

    # -- what people and events do to jobs --

    def cancel(self, job: Job, uid: int | None = None) -> None:
        if job.over or (job.completing and job.state is not JobState.PENDING):
            return
        job.cancelled_by = self.user.uid if uid is None else uid
        if job.waits:
            job.state, job.end = JobState.CANCELLED, self.clock()
            job.start = job.end
            job.eligible_time = job.eligible_time or job.end
            self.changed(job)
            self.runner.end_of(job)
            self.wake()
        elif job.completing:  # it was to be requeued
            job.state = job.outcome = JobState.CANCELLED
            self.changed(job)
        else:
            self._wind_up(job, JobState.CANCELLED, "None", "")

    def requeue(self, job: Job, word: str = "REQUEUED", why: str = "DUE TO JOB REQUEUE", hold: str | None = None) -> None:
        """Raises ControllerError if it may not be."""
        if job.state in (JobState.PENDING, JobState.SPECIAL_EXIT):
            raise ControllerError(refusals.PENDING)
        if not job.spec.requeue or not job.spec.batch:
            raise ControllerError(refusals.DISABLED)
        self._restart(job, word, why, hold)

    def _restart(self, job: Job, word: str, why: str, hold: str | None = None, state: JobState = JobState.PENDING) -> None:
        job.next_word = word
        job.restarts += 1
        job.requeue_hold = hold
        if hold == "special":
            job.requeue_hold, state = "job requeued in held state", JobState.SPECIAL_EXIT
        if job.completing:
            job.state = job.outcome = state
            self.changed(job, word)
        elif job.over:
            job.state = state
            job.next_word = "COMPLETED"
            self._revive(job)
        else:
            self._wind_up(job, state, "None", why)

    def _revive(self, job: Job) -> None:
        """A job that is over already waits again; its attempt stays in the books as it is."""
        now = self.clock()
        job.steps, job.next_step, job.past = [], 0, []
        job.status = 0
        job.start = job.end = job.derived_at_end = None
        job.cancelled_by = job.outcome = None
        job.submit_time, job.eligible_time = now, now
        job.begin = now + self.settings.requeue_delay_s
        job.reason = job.requeue_hold or "BeginTime"
        job.held, job.requeue_hold = job.requeue_hold, None
        self.changed(job)
        self.wake()

    def preempt(self, job: Job, grace_s: float | None = None) -> None:
        """Push a running job out: with a grace time its tasks get TERM first, without one it goes at once."""
        if not job.running or job.preempt_time is not None:
            return
        grace = self.model.partitions[job.spec.partition].grace_s if grace_s is None else grace_s
        job.preempt_time = self.clock()
        job.preempt_end = job.preempt_time + grace
        if grace <= 0:
            self.end_of_grace(job)
            return
        self.changed(job)
        for step in job.steps:
            if step.live and step.id != BATCH:
                self.runner.order(job, step, op="warn", why="", signals=[CONT, TERM])

    def end_of_grace(self, job: Job) -> None:
        if job.spec.requeue and job.spec.batch:
            self._restart(job, "PREEMPTED", "DUE TO PREEMPTION")
        else:
            self._wind_up(job, JobState.PREEMPTED, "None", "DUE TO PREEMPTION")

    def time_out(self, job: Job) -> None:
        self._wind_up(job, JobState.TIMEOUT, "TimeLimit", "DUE TO TIME LIMIT")

    def lose_node(self, job: Job, node: str) -> None:
        """The job had processes on a node that is no more."""
        if job.completing or not job.shares:
            return
        for step in job.steps:
            if step.live and node in step.nodes and step.id != BATCH:
                self.runner.order(job, step, op="say", text=f"srun: error: Node failure on {node}")
        why = "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"
        if job.spec.requeue and job.spec.batch:
            self._restart(job, "NODE_FAIL", why)
        else:
            self._wind_up(job, JobState.NODE_FAIL, "NodeDown", why)

    def hold(self, job: Job, reason: str) -> None:
        job.held = reason
        job.reason = reason
        self.changed(job)

    def release(self, job: Job) -> None:
        job.held = None
        if job.state is JobState.SPECIAL_EXIT:
            job.state = JobState.PENDING
        if job.reason.startswith(("JobHeld", "job requeued")):
            job.reason = "None"
        self.changed(job)
        self.wake()

    # -- nodes --

    def set_node(self, name: str, state: str, reason: str) -> None:
        """`scontrol update NodeName=... State=...`; raises ControllerError."""
        node, now = self.model.nodes[name], self.clock()
        if reason:
            node.reason, node.reason_time = reason, now
        if state in ("DOWN", "FAIL"):
            node.down = True
            node.returns_at = now + self.settings.node_return_s if node.responding else None
        elif state == "DRAIN":
            node.drain = True
        elif state in ("RESUME", "UNDRAIN", "IDLE"):
            if not node.down and not node.drain:
                raise ControllerError("Invalid node state specified")
            node.drain = False
            if state != "UNDRAIN":
                node.down = not node.responding
                node.returns_at = None
            if not node.down:
                node.reason = ""
        elif state:
            raise ControllerError("Invalid node state specified")
        self.write_node(name)
        if node.down:
            self.node_lost(name)
        self.wake()

    def node_lost(self, name: str) -> None:
        for job in list(self.model.holding()):
            if any(share.node == name for share in job.shares):
                self.lose_node(job, name)

    def fail_node(self, name: str) -> None:
        """Its processes are dead from now on; that it does not respond is noticed later."""
        node = self.model.nodes[name]
        node.fails_at = self.clock() + self.settings.node_timeout_s
        self.write_node(name)
        for job in self.model.holding():
            for step in job.steps:
                if step.live and name in step.nodes:
                    self.runner.order(job, step, op="fail-node", node=name)

    def restore_node(self, name: str) -> None:
        node = self.model.nodes[name]
        node.fails_at, node.responding, node.down = None, True, False
        node.reason = ""
        self.write_node(name)
        self.wake()

    def notice_dead_node(self, name: str) -> None:
        node = self.model.nodes[name]
        node.fails_at, node.responding, node.down = None, False, True
        node.reason, node.reason_time = "Not responding", self.clock()
        self.write_node(name)
        self.node_lost(name)

    def signal(self, job: Job, number: int, *, script: bool = False, full: bool = False) -> None:
        """`scancel --signal`: to the tasks, to the batch shell, or to everything."""
        for step in job.steps:
            if not step.live:
                continue
            if step.id == BATCH and script:
                self.runner.order(job, step, op="signal-script", signal=number)
            elif full or (step.id != BATCH and not script):
                self.runner.order(job, step, op="signal", signal=number)

    def cancel_step(self, job: Job, step: Step) -> None:
        if step.live:
            self.runner.order(
                job, step, op="terminate", why="", abort=True, signals=[KILL], kill_after=None, killer=self.user.uid
            )


def _state_of_step(step: Step) -> JobState:
    if step.timed_out:
        return JobState.TIMEOUT
    if step.status >> 8:
        return JobState.FAILED
    return JobState.CANCELLED if step.status else JobState.COMPLETED
