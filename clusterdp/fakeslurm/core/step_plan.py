"""StepPlan: the plan of a step, which slurmctld sends to the slurmstepd that runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .release import VERSIONS, Release


@dataclass(frozen=True)
class TaskPlan:
    rank: int
    node: str
    node_index: int  # index of the node within the component
    environ: dict[str, str]  # variables in addition to the component's variables
    argv: tuple[str, ...] = ()  # the task's command, if it differs from the component's command
    component: int = 0
    number: int = 0  # the task's rank within the component


@dataclass(frozen=True)
class StreamTarget:
    """The target of stdin, stdout or stderr of a step's tasks."""

    # srun: the connection to srun. file: one file for all tasks, or a file for each task if the pattern has %t.
    # null: no target. one: srun for the task `rank`, and no target for other tasks.
    kind: str = "srun"
    pattern: str = ""
    append: bool = False
    rank: int = 0


@dataclass(frozen=True)
class ComponentPlan:
    """The plan that the tasks on one component of the job share. Most jobs have one component."""

    job: int
    argv: tuple[str, ...]
    environ: dict[str, str]
    folder: str  # working directory of the tasks
    stdin: StreamTarget
    stdout: StreamTarget
    stderr: StreamTarget | None  # None: the same target as stdout
    patterns: dict[str, object] = field(default_factory=dict)  # values of the letters in file names, like %j


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
    memory_mb: dict[str, int] = field(default_factory=dict)  # memory limit in MB, by node; empty: no limit
    wait_s: float = 0
    kill_wait_s: float = 5
    slurm_version: str = VERSIONS["22.05"]
    socket: str = ""  # socket of slurmctld
    cluster: str = ""  # folder of the cluster
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
        """Returns the step's status in each component, by the component's job id: the worst status of the component's
        nodes.

        A node has the status of its first task that a signal killed. If no signal killed a task, the node has the
        status of its worst task, or with Release.last_task_counts of its last task. In a step that was ended by force,
        each node has the status of its worst task.
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
    """Returns the plan that was written as JSON."""
    tasks = tuple(TaskPlan(**{**task, "argv": tuple(task["argv"])}) for task in data["tasks"])
    components = tuple(_component_from(component) for component in data["components"])
    lists = {name: tuple(data[name]) for name in ("nodes", "shared")}
    return StepPlan(**{**data, **lists, "tasks": tasks, "components": components})


def _component_from(data: dict[str, Any]) -> ComponentPlan:
    streams = {name: StreamTarget(**data[name]) if data[name] else None for name in ("stdin", "stdout", "stderr")}
    return ComponentPlan(**{**data, **streams, "argv": tuple(data["argv"])})
