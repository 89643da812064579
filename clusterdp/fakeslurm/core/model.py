"""The cluster as data: nodes, partitions, jobs, steps. No clock, no processes, no files."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

from clusterdp.fakeslurm.core.faults import Faults
from clusterdp.fakeslurm.core.job_desc import JobDesc
from clusterdp.fakeslurm.core.ranges import index_text
from clusterdp.fakeslurm.core.shape import Shape, SlurmConf, gres
from clusterdp.fakeslurm.core.task_usage import Usage
from clusterdp.slurm.state import JobState

BATCH = "batch"  # the id of the step that is the batch script
WAITING = (JobState.PENDING, JobState.SPECIAL_EXIT, JobState.REQUEUE_HOLD)
BASE_32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # as Crockford chose them
NOT_AN_ARRAY_INDEX = 4294967294  # what Slurm writes for %a outside of arrays


@dataclass
class Node:
    name: str
    cpus: int
    gpus: int
    memory_mb: int
    features: list[str]
    down: bool = False
    drain: bool = False
    responding: bool = True
    reason: str = ""
    reason_time: float = 0
    returns_at: float | None = None  # when a node that was set DOWN, but is well, comes back by itself
    fails_at: float | None = None  # when it is noticed that the node failed
    slurmd_killed: bool = False  # no task can be launched there, and the controller does not know it
    boot_time: float = 0
    busy_time: float = 0
    gpu_type: str = ""

    def gres_of(self, gpus: int) -> str:
        """`gpu:a100:2`, for some or all of its GPUs; empty if it has none."""
        return gres(self.gpu_type, gpus) if self.gpus else ""

    @property
    def usable(self) -> bool:
        return not self.down and not self.drain


@dataclass
class Partition:
    name: str
    nodes: list[str]
    default: bool
    max_minutes: int | None
    tier: int
    preempt: str
    grace_s: float
    up: bool = True


@dataclass(slots=True)  # there are thousands of these, and a dict each would be most of the daemon's memory
class Share:
    """The share of a job in one node."""

    node: str
    cpus: int
    tasks: int
    gpus: list[int] = field(default_factory=list)
    cpu_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    id: str  # a number, or BATCH
    name: str
    nodes: list[str]
    tasks_per_node: list[int]
    cpus: dict[str, int]  # what it uses on each node
    gpus: dict[str, list[int]]
    state: JobState = JobState.RUNNING
    status: int = 0  # a wait status: the worst of its tasks
    start: float = 0
    end: float | None = None
    lingers: bool = False  # the batch script has ended, but not all that it started
    cancelled_by: int | None = None  # a uid
    overlap: bool = False
    minutes: int | None = None
    timed_out: bool = False
    restart: int = 0  # the attempt of the job that it belongs to
    stepd_pid: int = 0  # pid
    stepd_start_time: str = ""
    begun: bool = False  # its slurmstepd has reported
    pids: list[int] = field(default_factory=list)  # of its tasks
    cyclic: bool = True
    runs_in: int = 0  # the component whose slurmstepd runs it, if it is another one's
    host_pid: int = 0  # of srun
    cpus_per_step: str = ""
    tres_per_node: str = ""
    tres_per_task: str = ""
    tres_bind: str = ""
    usage: Usage | None = None  # once it has ended

    @property
    def tasks(self) -> int:
        return sum(self.tasks_per_node)

    @property
    def live(self) -> bool:
        return self.end is None

    @property
    def number_of_cpus(self) -> int:
        return sum(self.cpus.values())


@dataclass(slots=True)
class Array:
    id: int
    indexes: list[int]  # that still wait; of an element that started: its own
    count: int
    low: int
    high: int
    step: int
    throttle: int = 0
    text: str = ""  # as submitted
    split: bool = False  # a record of one element
    accounted_as: str = (
        ""  # its name in accounting, which stays as it was when accounting first heard of the array, ...
    )
    accounted_at: float = 0  # ... at this time
    emptied: bool = False  # all its elements were cancelled one by one


@dataclass(slots=True)
class Het:
    """A component's place in a heterogeneous job."""

    leader: int  # the id of its first component, which is the id of the whole job
    offset: int
    size: int


def sluid(job: JobRecord) -> str:
    """The id of a job that no other cluster gives out either: s and thirteen digits of base 32."""
    number, text = int(job.submit_time * 1000) << 22 | job.id << 10, ""
    for _ in range(13):
        number, digit = divmod(number, 32)
        text = BASE_32[digit] + text
    return "s" + text


@dataclass(slots=True)
class JobRecord:
    """A job, or one element of an array, or the elements of an array that still wait."""

    id: int
    desc: JobDesc
    priority: int
    submit_time: float
    array: Array | None = None
    state: JobState = JobState.PENDING
    completing: bool = False
    reason: str = "None"
    restarts: int = 0
    held: str | None = None  # the reason to show, if it is held
    begin: float = 0
    eligible_time: float | None = None
    start: float | None = None
    end: float | None = None
    shares: list[Share] = field(default_factory=list)
    past: list[Share] = field(default_factory=list)  # what it had when it ended, for commands that ask then
    lost: list[Share] = field(default_factory=list)  # of nodes that failed, and are not free before the job ends
    status: int = 0
    derived: int = 0  # the highest status of its steps, over all attempts
    derived_at_end: int | None = None  # the one that accounting has
    steps: list[Step] = field(default_factory=list)
    next_step: int = 0
    preempt_time: float | None = None
    preempt_end: float | None = None  # when the grace time is over; the next check ends it
    in_grace: bool = False  # a grace time began; newer releases of Slurm forget that late
    batch_flag: int = 1  # one more for each requeue that Slurm did because of the grace time
    warned: bool = False
    minutes: int | None = None  # the limit in force; None is not a limit
    cancelled_by: int | None = None
    outcome: JobState | None = None  # its state once all its processes are gone
    requeue_hold: str | None = None  # after the requeue: stay held, with this reason
    next_word: str = ""  # what accounting calls the attempt that is being requeued
    dependency_met: bool = False
    accounted: bool = True  # accounting knows of it
    last_sched: float = 0
    considered_from: float = 0  # the scheduler ignores it before
    suspended_at: float = 0
    suspended_s: float = 0  # in all; a time limit does not run meanwhile
    resizes: int = 0  # nodes lost while it went on (--no-kill)
    resized_at: float = 0
    het: Het | None = None
    planned_start: float | None = None  # of a job that waits for nodes, if it can be known
    planned_nodes: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        return [share.node for share in self.held_shares]

    @property
    def held_shares(self) -> list[Share]:
        return self.shares or self.past  # what it has, or had when it ended

    @property
    def occupied(self) -> list[Share]:
        return [*self.shares, *self.lost]  # what nobody else can have

    @property
    def cpus(self) -> int:
        return sum(share.cpus for share in self.held_shares)

    @property
    def shown_state(self) -> JobState:
        return JobState.COMPLETING if self.completing else self.state

    @property
    def running(self) -> bool:
        return self.state is JobState.RUNNING and not self.completing

    @property
    def waits(self) -> bool:
        return self.state in WAITING and not self.completing

    @property
    def over(self) -> bool:
        return self.state.final and not self.completing

    @property
    def empty(self) -> bool:
        """Whether none of its processes is left."""
        return not any(step.live or step.lingers for step in self.steps)

    @property
    def name_of_id(self) -> str:
        """12, 12_3, 12_[4-7%2], or 12+1 as squeue writes it."""
        if self.het:
            return f"{self.het.leader}+{self.het.offset}"
        if not self.array or self.array.emptied:
            return str(self.id)
        if self.array.split:
            return f"{self.array.id}_{self.array.indexes[0]}"
        return f"{self.array.id}_[{index_text(self.array.indexes, self.array.throttle)}]"

    def element(self, index: int, number: int) -> JobRecord:
        """An element of a waiting array as a job of its own, which shares nothing with the array that may change."""
        assert self.array
        desc = replace(self.desc, gpus=replace(self.desc.gpus))
        for entry in fields(desc):
            value = getattr(desc, entry.name)
            if isinstance(value, (list, dict)):
                setattr(desc, entry.name, value.copy())
        array = replace(self.array, indexes=[index], split=True)
        return replace(self, id=number, desc=desc, array=array, shares=[], past=[], lost=[], steps=[], planned_nodes=[])

    def step(self, step_id: str) -> Step | None:
        return next((step for step in self.steps if step.id == step_id), None)

    @property
    def has_script(self) -> bool:
        """Whether a batch script runs in it: in a heterogeneous job, only in the first component."""
        return self.desc.batch and not (self.het and self.het.offset)

    @property
    def made_by_srun(self) -> bool:
        """Whether an srun outside of jobs has made it."""
        return not self.desc.batch and not self.desc.is_allocation

    @property
    def batch_host(self) -> str | None:
        batch = self.step(BATCH)
        return batch.nodes[0] if batch and self.nodes else self.nodes[0] if self.nodes else None


class JobTable(dict[int, JobRecord]):
    """All known jobs by id. `note` must be called after a change of a job: it keeps the indexes right."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, JobRecord] = {}  # those that are not over, and perhaps some more
        self._groups: dict[int, dict[int, JobRecord]] = {}  # by id of an array or heterogeneous job: its records
        self._ends: list[tuple[float, int]] = []  # a heap: end and id of the jobs that are over

    def __setitem__(self, number: int, job: JobRecord) -> None:
        super().__setitem__(number, job)
        self.live[number] = job
        self.note(job)

    def __delitem__(self, number: int) -> None:
        group = self._group_of(self[number])
        super().__delitem__(number)
        self.live.pop(number, None)
        if group in self._groups:
            self._groups[group].pop(number, None)
            if not self._groups[group]:
                del self._groups[group]

    def note(self, job: JobRecord) -> None:
        group = self._group_of(job)
        if group:
            self._groups.setdefault(group, {})[job.id] = job
        if not job.over:
            self.live[job.id] = job
        elif self.live.pop(job.id, None):
            heapq.heappush(self._ends, (job.end or 0, job.id))

    def members(self, number: int) -> list[JobRecord]:
        """The records of this array, or the components of this heterogeneous job; [] for any other number."""
        return list(self._groups.get(number, {}).values())

    def named(self, number: int) -> list[JobRecord]:
        """The jobs that this number means: a job, all records of an array, all components."""
        found = {job.id: job for job in self.members(number)}
        if number in self:
            found[number] = self[number]
        return [found[each] for each in sorted(found)]

    def over_before(self, moment: float) -> Iterator[JobRecord]:
        """The jobs that ended before then, each once; the caller drops them."""
        while self._ends and self._ends[0][0] < moment:
            end, number = heapq.heappop(self._ends)
            job = self.get(number)
            if job and job.over and (job.end or 0) == end:
                yield job

    @staticmethod
    def _group_of(job: JobRecord) -> int:
        return job.array.id if job.array else job.het.leader if job.het else 0


@dataclass
class Model:
    settings: SlurmConf
    nodes: dict[str, Node]
    partitions: dict[str, Partition]
    jobs: JobTable = field(default_factory=JobTable)
    next_id: int = 0
    epoch: float = 0  # what the machine's clock showed when its monotonic one began (clock.py)
    ahead_s: float = 0  # how far the cluster's clock was moved
    faults: Faults = field(default_factory=Faults)

    @classmethod
    def of(cls, shape: Shape, now: float) -> Model:
        nodes = {
            node.name: Node(
                node.name,
                node.cpus,
                node.gpus,
                node.memory_mb,
                list(node.features),
                boot_time=now,
                busy_time=now,
                gpu_type=node.gpu_type,
            )
            for node in shape.nodes
        }
        partitions = {
            part.name: Partition(
                part.name,
                list(part.nodes or nodes),
                part.default,
                part.max_minutes,
                part.tier,
                part.preempt,
                part.grace_s,
            )
            for part in shape.partitions
        }
        return cls(shape.settings, nodes, partitions, next_id=shape.settings.first_job_id)

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    @property
    def default_partition(self) -> Partition:
        return next((p for p in self.partitions.values() if p.default), next(iter(self.partitions.values())))

    def holding(self) -> Iterator[JobRecord]:
        """The jobs that have nodes."""
        return (job for job in self.jobs.live.values() if job.shares)

    def live_jobs(self) -> Iterator[JobRecord]:
        return (job for job in self.jobs.live.values() if not job.over)

    def components(self, job: JobRecord) -> list[JobRecord]:
        """All components of a heterogeneous job, in order; any other job alone."""
        if not job.het:
            return [job]
        return sorted(self.jobs.members(job.het.leader), key=lambda other: other.id)

    def elements(self, array_id: int) -> list[JobRecord]:
        return [job for job in self.jobs.members(array_id) if job.array]
