"""The rows of sacct: one row for each attempt of a job, with its steps. Changes reach a row some seconds later."""

from __future__ import annotations

import os
from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..core.model import BATCH, WAITING, JobRecord, Model, Step
from ..core.state import JobState
from ..core.task_usage import Usage

# States with the exit code 0:0, even if processes of the job returned another exit code.
BLAMELESS = frozenset("CANCELLED TIMEOUT NODE_FAIL PREEMPTED REQUEUED PENDING RUNNING RESIZING".split())

OF_PARTITION = -1  # the time limit of a job that has not started, and asked for none


@dataclass(frozen=True, slots=True)
class AccountingStep:
    id: str
    name: str
    state: str
    status: int
    nodes: tuple[str, ...]
    tasks: int
    cpus: int
    start: float
    end: float | None
    cancelled_by: int | None
    batch: bool
    usage: Usage | None = None  # set when the step has ended
    submit_line: str = ""


@dataclass(frozen=True, slots=True)
class AccountingJob:
    """The row that accounting has for one attempt of a job."""

    job: int
    created: int  # the row's position among all rows
    id_text: str
    array_id: int | None
    index: int | None
    name: str
    partition: str
    account: str
    state: str
    status: int
    derived: int
    nodes: tuple[str, ...]
    asked_nodes: int
    cpus: int
    asked_cpus: int
    asked_mem: int  # MB
    tasks: int | None
    submit: float
    eligible: float | None
    start: float | None
    end: float | None
    minutes: int | None
    folder: str
    submit_line: str
    priority: int
    qos: str
    reason: str
    comment: str
    restarts: int
    cancelled_by: int | None
    steps: tuple[AccountingStep, ...] = ()
    het_id: int | None = None  # for a component: id of the whole heterogeneous job
    het_offset: int = 0
    stdout: str = ""  # as --output has it, below the working directory
    stderr: str = ""


@dataclass
class Accounting:
    rows: dict[str, AccountingJob] = field(default_factory=dict)  # by attempt
    _coming: deque[tuple[float, str, AccountingJob]] = field(default_factory=deque)
    _numbers: dict[str, int] = field(default_factory=dict)
    # attempts by the id of their job, array or heterogeneous job
    _attempts: dict[int, dict[str, None]] = field(default_factory=dict)
    _first: dict[int, int] = field(default_factory=dict)  # by array: position of the array's first row

    def note(
        self, model: Model, job: JobRecord, due: float, word: str | None = None
    ) -> tuple[str, AccountingJob] | None:
        """Enters the job's present state, which sacct shows from the time `due` on. `word`: the state that sacct
        shows instead of the job's."""
        if not job.accounted and word is None:
            return None
        if word is None and job.completing and job.state in WAITING:
            word = job.next_word
        key = f"{job.id}.{job.submit_time}.{job.resizes}"
        number = self._numbers.setdefault(key, len(self._numbers))
        row = _row(model, job, number, word)
        self._expect(due, key, row)
        return key, row

    def note_part(self, model: Model, job: JobRecord, due: float) -> tuple[str, AccountingJob] | None:
        """Enters the states of steps into the job's previous row, which ended when the job lost a node."""
        if not job.resizes or model.settings.release.steps_resize:
            return None
        key = f"{job.id}.{job.submit_time}.{job.resizes - 1}"
        before = next((row for _, other, row in reversed(self._coming) if other == key), self.rows.get(key))
        if before is None:
            return None
        named = {step.id for step in before.steps}
        steps = tuple(_step_row(step) for step in _in_order(job.steps) if step.id in named)
        row = replace(before, steps=steps, derived=job.derived)
        if row == before:
            return None
        self._expect(due, key, row)
        return key, row

    def restore(self, key: str, row: AccountingJob) -> None:
        self._numbers.setdefault(key, row.created)
        self._enter(key, row)

    def _expect(self, due: float, key: str, row: AccountingJob) -> None:
        """Queues a row, sorted by the time when it becomes visible. Rows of one job keep their order."""
        if self._coming and due < self._coming[-1][0]:
            due = max([due, *(time for time, _, other in self._coming if other.job == row.job)])
            insort(self._coming, (due, key, row), key=lambda each: each[0])
        else:
            self._coming.append((due, key, row))

    def settle(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            _, key, row = self._coming.popleft()
            self._enter(key, row)

    def _enter(self, key: str, row: AccountingJob) -> None:
        if key not in self.rows:
            for number in {row.job, row.array_id, row.het_id} - {None}:
                self._attempts.setdefault(number, {})[key] = None  # type: ignore[arg-type]
        self.rows[key] = row
        if row.array_id is not None and not row.restarts:
            self._first[row.array_id] = min(row.created, self._first.get(row.array_id, row.created))

    def listed(self, now: float, numbers: Iterable[int] | None = None) -> list[AccountingJob]:
        """Returns the rows in sacct's order: all rows, or the rows of jobs, arrays and heterogeneous jobs with these
        ids."""
        self.settle(now)
        rows: Iterable[AccountingJob] = self.rows.values()
        if numbers is not None:
            keys = dict.fromkeys(key for number in numbers for key in self._attempts.get(number, ()))
            rows = [self.rows[key] for key in keys]
        return sorted(rows, key=self._place)

    def _place(self, row: AccountingJob) -> tuple[int, int]:
        if row.array_id is None or row.restarts:
            return row.created, 0
        return self._first[row.array_id], 1 << 30 if row.index is None else row.index


def _row(model: Model, job: JobRecord, created: int, word: str | None) -> AccountingJob:
    state = word or job.state.value
    if word is None and job.completing and job.outcome:
        state = job.outcome.value
    mine = [step for step in job.steps if step.start >= job.resized_at]
    steps = tuple(_step_row(step) for step in _in_order(mine))
    if state == "RESIZING" and model.settings.release.steps_resize:
        steps = tuple(replace(step, state=state, end=job.end) if step.state == "RUNNING" else step for step in steps)
    array, desc = job.array, job.desc
    memory = min((node.memory_mb for node in model.nodes.values()), default=0)
    asked_nodes = desc.min_nodes
    id_text = job.name_of_id
    some_ran = array and not array.split and len(array.indexes) < array.count
    if array and array.accounted_as:
        id_text = array.accounted_as
    elif (
        array and some_ran and array.throttle and state == "CANCELLED" and not model.settings.release.accounts_held_jobs
    ):
        id_text = str(job.id)
    return AccountingJob(
        job=job.id,
        created=created,
        id_text=id_text,
        array_id=array.id if array else None,
        index=array.indexes[0] if array and array.split else None,
        name=desc.name,
        partition=desc.partition,
        account=desc.account,
        state=state,
        status=_status(model, job, state),
        derived=job.derived if job.derived_at_end is None else job.derived_at_end,
        nodes=tuple(job.nodes),
        asked_nodes=asked_nodes,
        cpus=job.cpus or (job_cpus(job) if job.start is None else 0),
        asked_cpus=desc.asked_cpus,
        asked_mem=asked_memory(job, memory),
        tasks=desc.tasks,
        submit=job.submit_time,
        eligible=job.eligible_time,
        start=job.start,
        end=job.end,
        minutes=job.minutes if job.start is not None or desc.minutes is not None else OF_PARTITION,
        folder=desc.folder,
        submit_line=desc.submit_line,
        priority=job.priority,
        qos=desc.qos,
        reason=job.reason,
        comment=desc.comment or "",
        # The row of an attempt that is requeued keeps the number that the attempt had.
        restarts=job.restarts - (word not in (None, "RESIZING")),
        cancelled_by=job.cancelled_by,
        steps=steps,
        het_id=job.het.leader if job.het else None,
        het_offset=job.het.offset if job.het else 0,
        stdout=os.path.join(desc.folder, desc.output or f"slurm-{'%A_%a' if array else '%j'}.out")
        if desc.batch
        else "",
        stderr=os.path.join(desc.folder, desc.error) if desc.error else "",
    )


def _in_order(steps: list[Step]) -> list[Step]:
    return sorted(steps, key=lambda step: (step.id != BATCH, len(step.id), step.id))


def _status(model: Model, job: JobRecord, state: str) -> int:
    if state == "NODE_FAIL":
        return (model.settings.release.status_of_node_fail or 0) << 8
    if state == "DEADLINE" and not job.nodes:
        return job.status << 8  # of a job that waited, sacct shows 1:0, and scontrol 0:1
    return 0 if state in BLAMELESS else job.status


def job_cpus(job: JobRecord) -> int:
    return 0 if job.state is JobState.CANCELLED else job.desc.asked_cpus


def asked_memory(job: JobRecord, node_memory: int) -> int:
    """Returns the memory that the job asked for, in MB."""
    desc = job.desc
    if desc.mem_per_cpu is not None:
        return desc.mem_per_cpu * desc.asked_cpus
    if desc.mem_per_gpu is not None:
        return desc.mem_per_gpu * desc.asked_gpus
    return (desc.mem_per_node or node_memory) * desc.min_nodes


def size(megabytes: int) -> str:
    """Writes a size like 62.50G or 16000M. Multiples of 512 MB from 1 GB on are written in G or T."""
    if megabytes % 512 or megabytes < 1024:
        return f"{megabytes}M"
    number, unit = (megabytes / 1024, "G") if megabytes < 1024**2 else (megabytes / 1024**2, "T")
    return f"{number:g}{unit}" if number.is_integer() else f"{number:.2f}{unit}"


def _step_row(step: Step) -> AccountingStep:
    return AccountingStep(
        id=step.id,
        name=step.name,
        state=step.state.value,
        status=step.status,
        nodes=tuple(step.nodes),
        tasks=step.tasks,
        cpus=step.number_of_cpus,
        start=step.start,
        end=step.end,
        cancelled_by=step.cancelled_by,
        batch=step.id == BATCH,
        usage=step.usage,
        submit_line=step.submit_line,
    )
