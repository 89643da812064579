"""JobDesc: the request of a job (job_desc_msg_t in Slurm)."""

from __future__ import annotations

from dataclasses import dataclass, field

from .times import minutes


@dataclass(slots=True)
class Gpus:
    """The GPUs that a job asks for: one number for each option that asks for GPUs."""

    per_job: int | None = None  # --gpus
    per_node: int | None = None  # --gpus-per-node, --gres=gpu:N
    per_task: int | None = None  # --gpus-per-task
    per_socket: int | None = None
    gres: str | None = None  # --gres, as the user wrote it
    kind: str = ""  # type of the GPUs, like a100 in `a100:2`; empty: any type

    def __bool__(self) -> bool:
        return bool(self.per_job or self.per_node or self.per_task or self.per_socket)


@dataclass(slots=True)
class JobDesc:
    """All that a job asks for at its submission."""

    name: str
    partition: str  # all partitions that the job asks for; once the job has started, the one in which it runs
    asked_partitions: str = ""  # the value of `partition` for the job's next attempt
    min_nodes: int = 1
    max_nodes: int | None = None
    nodes_asked: bool = False
    node_counts: list[int] = field(default_factory=list)  # of a list like --nodes=1-2,4
    tasks: int | None = None
    tasks_asked: bool = True  # whether --ntasks is given; else `tasks` follows from --ntasks-per-node
    kept_tasks: int = 0  # the tasks of the last attempt's nodes, if the release has the next one wait for as many
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    gpus: Gpus = field(default_factory=Gpus)
    gpus_per_node_option: str | None = None
    gpus_option: str | None = None
    gpus_per_task_option: str | None = None
    gpu_bind: str | None = None  # single:1, ...
    cpus_per_gpu: int | None = None
    tasks_per_gpu: int | None = None
    min_cpus: int | None = None  # per node
    mem_per_node: int | None = None  # MB
    mem_per_cpu: int | None = None
    mem_per_gpu: int | None = None
    minutes: int | None = None  # the time limit; None: not asked for; 0: no limit
    exclusive: bool = False
    overcommit: bool = False
    nodelist: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    features: str | None = None
    prefer: str | None = None
    batch_features: str | None = None  # --batch
    reservation: str | None = None
    licenses: str | None = None
    hint: str | None = None
    deadline: float | None = None
    dependency: str | None = None
    kill_on_invalid_dep: bool = False
    begin: float | None = None
    hold: bool = False
    nice: int = 0
    priority: int | None = None
    requeue: bool = True
    no_kill: bool = False
    signal: int | None = None
    signal_s: int = 60
    signal_batch: bool = False
    account: str = ""
    qos: str = "normal"
    comment: str | None = None
    distribution: str | None = None
    output: str | None = None
    error: str | None = None
    input: str | None = None
    open_mode: str | None = None
    folder: str = "/"
    command: str | None = None  # the command that scontrol shows
    arguments: list[str] = field(default_factory=list)
    submit_line: str = ""
    umask: int = 0o022
    host: str = ""
    alloc_pid: int = 0
    batch: bool = True
    is_allocation: bool = False  # a job of salloc, which does not end with its last step
    token: str = ""  # id of the request, because a repeated request must not make a second job
    shown: dict[str, str] = field(default_factory=dict)  # options that scontrol shows, but that have no effect here

    @property
    def least_minutes(self) -> int:
        """The time limit that the job must still have before its deadline: --time-min, or else --time."""
        return minutes(self.shown["time-min"]) if "time-min" in self.shown else self.minutes or 0

    @property
    def partitions(self) -> list[str]:
        return [name for name in self.partition.split(",") if name]

    @property
    def asked_cpus(self) -> int:
        """The number of CPUs that the whole job asks for, before its nodes are known."""
        if self.tasks is None and self.max_nodes not in (None, self.min_nodes):
            return self.cpus_per_task or 1
        tasks = self.tasks if self.tasks is not None else self.min_nodes * (self.tasks_per_node or 1)
        nodes, gpus = self.min_nodes, self.gpus.per_job or (self.gpus.per_node or 0) * self.min_nodes
        return max(tasks * (self.cpus_per_task or 1), nodes * (self.min_cpus or 0), gpus * (self.cpus_per_gpu or 0))

    @property
    def asked_gpus(self) -> int:
        gpus = self.gpus
        return gpus.per_job or (gpus.per_node or 0) * self.min_nodes or (gpus.per_task or 0) * (self.tasks or 1)

    @property
    def cpus_of_a_node(self) -> int:
        """The number of CPUs that each node of the job must have (pn_min_cpus in slurmctld)."""
        return max((self.tasks_per_node or 1) * (self.cpus_per_task or 1), self.min_cpus or 0)
