"""StepPlan: what a slurmstepd is told about the step that it is to run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clusterdp.fakeslurm.core.release import VERSIONS, Release


@dataclass(frozen=True)
class TaskPlan:
    rank: int
    node: str
    node_index: int  # within the component
    environ: dict[str, str]  # on top of the component's
    argv: tuple[str, ...] = ()  # if it differs from the component's
    component: int = 0
    number: int = 0  # its rank within the component


@dataclass(frozen=True)
class StreamTarget:
    """The target of a stream of the tasks.

    kind: `srun` (over the connection), `file` (one for all, or by pattern one each), `null`, `one` (that of task
    `rank` over the connection, the others' nowhere).
    """

    kind: str = "srun"
    pattern: str = ""
    append: bool = False
    rank: int = 0


@dataclass(frozen=True)
class ComponentPlan:
    """The plan that the tasks on one component of the job share. Most jobs have only one."""

    job: int
    argv: tuple[str, ...]
    environ: dict[str, str]
    folder: str  # where tasks start
    stdin: StreamTarget
    stdout: StreamTarget
    stderr: StreamTarget | None  # None: the same as stdout
    patterns: dict[str, object] = field(default_factory=dict)  # letters for file names


@dataclass(frozen=True)
class StepPlan:
    job: int
    step: str
    restart: int
    name: str
    nodes: tuple[str, ...]
    tasks: tuple[TaskPlan, ...]
    components: tuple[ComponentPlan, ...]
    umask: int
    label: bool = False
    unbuffered: bool = False
    quit_on_interrupt: bool = False
    kill_on_bad_exit: bool = False
    memory_mb: dict[str, int] = field(default_factory=dict)  # by node, where it is limited
    wait_s: float = 0
    kill_wait_s: float = 5
    slurm_version: str = VERSIONS["22.05"]
    socket: str = ""  # of the daemon
    cluster: str = ""  # its folder
    node_local: bool = False
    shared: tuple[str, ...] = ()
    file_traps: str = ""

    @property
    def batch(self) -> bool:
        return self.step == "batch"

    @property
    def full_name(self) -> str:
        return f"{self.job}.{self.step}"

    @property
    def release(self) -> Release:
        return Release(self.slurm_version)

    def component_of(self, task: TaskPlan) -> ComponentPlan:
        return self.components[task.component]

    def records(self, statuses: dict[int, int], forced: bool = False) -> dict[int, int]:
        """From the wait statuses by rank to the status of the step's record in each component: that of its worst node.

        On a node the first task that a signal killed counts, else the worst; where last_task_counts, the last one. In a
        step that was ended by force, the worst task counts.
        """
        of_nodes: dict[tuple[int, str], int] = {}
        for task in self.tasks:
            key, status = (self.component_of(task).job, task.node), statuses.get(task.rank, 0)
            before = of_nodes.get(key, 0)
            if forced:
                status = max(before, status)
            elif before & 0x7F:
                status = before
            elif not self.release.last_task_counts and not status & 0x7F:
                status = max(before, status)
            of_nodes[key] = status
        found: dict[int, int] = {}
        for (job, _), status in of_nodes.items():
            found[job] = max(found.get(job, 0), status)
        return found


def plan_from(data: dict[str, Any]) -> StepPlan:
    """The plan from its fields in JSON."""
    tasks = tuple(TaskPlan(**{**task, "argv": tuple(task["argv"])}) for task in data["tasks"])
    components = tuple(_component_from(component) for component in data["components"])
    lists = {name: tuple(data[name]) for name in ("nodes", "shared")}
    return StepPlan(**{**data, **lists, "tasks": tasks, "components": components})


def _component_from(data: dict[str, Any]) -> ComponentPlan:
    streams = {name: StreamTarget(**data[name]) if data[name] else None for name in ("stdin", "stdout", "stderr")}
    return ComponentPlan(**{**data, **streams, "argv": tuple(data["argv"])})
