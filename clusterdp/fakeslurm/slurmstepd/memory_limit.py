"""Keeps a step within the memory of its job. Real Slurm uses cgroups. In the fake, slurmstepd checks the memory of its
tasks from time to time.

The limit is off unless SlurmConf.enforce_memory is set, because the recorded Slurm does not limit memory. The behaviour
at the limit follows Slurm's documentation and is not recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..core import processes
from ..core.step_plan import StepPlan, TaskPlan

LOOK_S = 0.2
OUT_OF_MEMORY = 125  # the "signal" that ends a task over the memory limit; Slurm shows 0:125


class MemoryLimit:
    def __init__(self, plan: StepPlan, below: Callable[[int], Iterable[int]] = processes.descendants):
        self._limits, self._below = plan.memory_mb, below

    @property
    def needed(self) -> bool:
        return bool(self._limits)

    def excess(self, tasks: Mapping[int, TaskPlan]) -> list[int]:
        """Returns the pids of all tasks on nodes where the tasks together use more memory than the job may use."""
        on_node: dict[str, list[int]] = {}
        for pid, task in tasks.items():
            on_node.setdefault(task.node, []).append(pid)
        found = []
        for node, pids in on_node.items():
            everything = [one for pid in pids for one in (pid, *self._below(pid))]
            resident = sum(size for size, _ in processes.sizes(everything).values())
            if node in self._limits and resident > self._limits[node] << 20:
                found += pids
        return found
