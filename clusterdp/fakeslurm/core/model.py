"""The cluster as data: nodes, partitions, jobs, steps.

The module reads no clock, starts no processes and writes no files.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

from .faults import Faults
from .job_desc import JobDesc
from .ranges import index_text
from .shape import Shape, SlurmConf, gres
from .state import JobState
from .task_usage import Usage

BATCH = "batch"  # id of the batch script's step
WAITING = (JobState.PENDING, JobState.SPECIAL_EXIT, JobState.REQUEUE_HOLD)
BASE_32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
NOT_AN_ARRAY_INDEX = 4294967294  # Slurm's value of %a outside arrays


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
    returns_at: float | None = None  # time when the controller brings back a healthy node that was set DOWN
    fails_at: float | None = None  # time when the controller notices that the node failed
    slurmd_killed: bool = False  # whether no task can start on the node, unnoticed by the controller
    boot_time: float = 0
    busy_time: float = 0
    gpu_type: str = ""

    def gres_of(self, gpus: int) -> str:
        """Returns this number of GPUs as `gpu:a100:2`, or "" for a node without GPUs."""
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


@dataclass(slots=True)  # slots, because thousands of shares with a dict each would take most of the daemon's memory
class Share:
    """The part of one node that a job has."""

    node: str
    cpus: int
    tasks: int
    gpus: list[int] = field(default_factory=list)
    cpu_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    id: str  # the step's number, or BATCH
    name: str
    nodes: list[str]
    tasks_per_node: list[int]
    cpus: dict[str, int]  # number of CPUs, by node
    gpus: dict[str, list[int]]
    state: JobState = JobState.RUNNING
    status: int = 0  # the worst wait status of the step's tasks
    start: float = 0
    end: float | None = None
    lingers: bool = False  # whether the batch script has ended, but processes that it started still run
    cancelled_by: int | None = None  # a uid
    overlap: bool = False
    no_kill: bool = False  # whether the step outlives the loss of one of its nodes (srun --no-kill)
    minutes: int | None = None
    timed_out: bool = False
    restart: int = 0  # number of the job's attempt to which the step belongs
    stepd_pid: int = 0
    stepd_start_time: str = ""
    begun: bool = False  # whether the step's slurmstepd has reported
    pids: list[int] = field(default_factory=list)  # pids of the step's tasks
    distribution: str = "cyclic"
    hosts: list[str] = field(default_factory=list)  # the node of each task, with --distribution=arbitrary
    runs_in: int = 0  # id of the component whose slurmstepd runs the step; 0: this component
    host_pid: int = 0  # pid of srun
    submit_line: str = ""  # the words of srun
    cpus_per_step: str = ""
    tres_per_node: str = ""
    tres_per_task: str = ""
    tres_bind: str = ""
    usage: Usage | None = None  # CPU time and memory of the tasks, set when the step has ended

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
    indexes: list[int]  # indexes of the elements that still wait; for an element that started, its own index
    count: int
    low: int
    high: int
    step: int
    throttle: int = 0
    text: str = ""  # as submitted
    split: bool = False  # whether the record is for one element
    accounted_as: str = ""  # the id that accounting shows, kept from the first entry on
    accounted_at: float = 0  # time of the first entry in accounting
    emptied: bool = False  # whether all elements were cancelled one by one


@dataclass(slots=True)
class Het:
    """A component's place in a heterogeneous job."""

    leader: int  # id of the first component, which is also the id of the whole job
    offset: int
    size: int


def sluid(job: JobRecord) -> str:
    """Returns the job's SLUID, an id that is unique over all clusters: s and thirteen digits of base 32."""
    number, text = int(job.submit_time * 1000) << 22 | job.id << 10, ""
    for _ in range(13):
        number, digit = divmod(number, 32)
        text = BASE_32[digit] + text
    return "s" + text


@dataclass(slots=True)
class JobRecord:
    """A job, one element of an array, or all elements of an array that still wait."""

    id: int
    desc: JobDesc
    priority: int
    submit_time: float
    array: Array | None = None
    state: JobState = JobState.PENDING
    completing: bool = False
    reason: str = "None"
    restarts: int = 0
    held: str | None = None  # the reason that is shown for a held job; None: the job is not held
    begin: float = 0
    eligible_time: float | None = None
    start: float | None = None
    end: float | None = None
    shares: list[Share] = field(default_factory=list)
    past: list[Share] = field(default_factory=list)  # the shares that the job had when it ended, shown after its end
    lost: list[Share] = field(default_factory=list)  # shares of failed nodes, which stay occupied until the job ends
    status: int = 0
    derived: int = 0  # the highest status of the job's steps, over all attempts
    derived_at_end: int | None = None  # the value of `derived` that accounting has
    steps: list[Step] = field(default_factory=list)
    next_step: int = 0
    preempt_time: float | None = None
    preempt_end: float | None = None  # end of the grace time; the next check of limits ends the job
    in_grace: bool = False  # whether a grace time began; kept over requeues if Release.remembers_grace
    batch_flag: int = 1  # Slurm adds 1 for each requeue at the end of a grace time
    warned: bool = False
    minutes: int | None = None  # the time limit in force; None: no limit
    cancelled_by: int | None = None
    outcome: JobState | None = None  # the state that the job gets when all its processes have ended
    requeue_hold: str | None = None  # the reason with which the job is held after its requeue
    next_word: str = ""  # the state that accounting shows for the attempt that is being requeued
    dependency_met: bool = False
    accounted: bool = True  # whether accounting has the job
    last_sched: float = 0
    considered_from: float = 0  # the scheduler ignores the job before this time
    suspended_at: float = 0
    suspended_s: float = 0  # total seconds of suspension, which do not count for the time limit
    resizes: int = 0  # how often the job has got smaller while it ran: by a lost node (--no-kill), or by scontrol
    resized_at: float = 0
    last_size: int = 0  # number of nodes with which the last attempt started, shown until the scheduler looks again
    left: tuple[int, int] | None = None  # nodes and CPUs after the loss of a node, shown as those it asks for
    het: Het | None = None
    planned_start: float | None = None  # expected start of a job that waits for nodes, if known
    planned_nodes: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        return [share.node for share in self.held_shares]

    @property
    def held_shares(self) -> list[Share]:
        return self.shares or self.past  # the shares that the job has, or after its end the shares that it had

    @property
    def occupied(self) -> list[Share]:
        return [*self.shares, *self.lost]  # all shares that other jobs cannot get

    @property
    def cpus(self) -> int:
        return sum(share.cpus for share in self.held_shares)

    @property
    def tasks(self) -> int | None:
        """The number of tasks in the environment of the job. With a range of nodes and --ntasks-per-node, it follows
        from the nodes that the job got, unlike the number that scontrol shows."""
        each = self.desc.tasks_per_node
        return len(self.shares) * each if each and self.shares and not self.desc.tasks_asked else self.desc.tasks

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
        """Whether all processes of the job have ended."""
        return not any(step.live or step.lingers for step in self.steps)

    @property
    def name_of_id(self) -> str:
        """The job's id as squeue writes it: 12, 12_3, 12_[4-7%2] or 12+1."""
        if self.het:
            return f"{self.het.leader}+{self.het.offset}"
        if not self.array or self.array.emptied:
            return str(self.id)
        if self.array.split:
            return f"{self.array.id}_{self.array.indexes[0]}"
        return f"{self.array.id}_[{index_text(self.array.indexes, self.array.throttle)}]"

    def element(self, index: int, number: int) -> JobRecord:
        """Returns one element of a waiting array as a job of its own, which shares no mutable object with the array."""
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
        """Whether the job runs a batch script. In a heterogeneous job, only the first component runs the script."""
        return self.desc.batch and not (self.het and self.het.offset)

    @property
    def made_by_srun(self) -> bool:
        """Whether an srun outside of jobs made the job."""
        return not self.desc.batch and not self.desc.is_allocation

    @property
    def batch_host(self) -> str | None:
        batch = self.step(BATCH)
        return batch.nodes[0] if batch and self.nodes else self.nodes[0] if self.nodes else None


class JobTable(dict[int, JobRecord]):
    """All known jobs by id. Call `note` after each change of a job, to update the table's indexes."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, JobRecord] = {}  # all jobs that are not over, and some whose end was not noted yet
        self._groups: dict[int, dict[int, JobRecord]] = {}  # records by id, by array or heterogeneous job
        self._ends: list[tuple[float, int]] = []  # a heap: (end, id) of each job that is over

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
        """Returns the records of the array, or the components of the heterogeneous job, with this id. Returns [] for
        any other number."""
        return list(self._groups.get(number, {}).values())

    def named(self, number: int) -> list[JobRecord]:
        """Returns the jobs that this number names: a job, all records of an array, or all components."""
        found = {job.id: job for job in self.members(number)}
        if number in self:
            found[number] = self[number]
        return [found[each] for each in sorted(found)]

    def over_before(self, moment: float) -> Iterator[JobRecord]:
        """Yields each job that ended before `moment`, once. The caller must delete the job."""
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
    epoch: float = 0  # the machine's time when its monotonic clock was 0 (Clock in controller.py)
    ahead_s: float = 0  # seconds by which the cluster's clock was moved forward
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

    def partitions_of(self, desc: JobDesc) -> list[Partition]:
        """Returns the partitions in which the job may start, in the order in which the scheduler tries them. A job that
        has started has one."""
        return sorted([self.partitions[name] for name in desc.partitions], key=lambda part: -part.tier)

    def holding(self) -> Iterator[JobRecord]:
        """Yields the jobs that have nodes."""
        return (job for job in self.jobs.live.values() if job.shares)

    def live_jobs(self) -> Iterator[JobRecord]:
        return (job for job in self.jobs.live.values() if not job.over)

    def components(self, job: JobRecord) -> list[JobRecord]:
        """Returns all components of a heterogeneous job, in the order of their ids. Returns [job] for a job without
        components."""
        if not job.het:
            return [job]
        return sorted(self.jobs.members(job.het.leader), key=lambda other: other.id)

    def elements(self, array_id: int) -> list[JobRecord]:
        return [job for job in self.jobs.members(array_id) if job.array]
