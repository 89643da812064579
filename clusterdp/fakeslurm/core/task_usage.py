"""The CPU time and memory that a step's tasks used, as the kernel reports them when a process ends (wait4(2))."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from typing import NamedTuple

from .step_plan import TaskPlan

KB = 1024 if sys.platform == "darwin" else 1  # ru_maxrss is in bytes on macOS, in KB elsewhere


class TaskUsage(NamedTuple):
    """The CPU time and memory of a process and of all descendants that the process has waited for."""

    user_s: float
    system_s: float
    rss_kb: int  # resident memory of the largest of these processes

    @classmethod
    def of(cls, used: resource.struct_rusage) -> TaskUsage:
        return cls(used.ru_utime, used.ru_stime, used.ru_maxrss // KB)

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


class Usage(NamedTuple):
    """The usage of a step. Usage is a small tuple, because the journal and accounting have one for each step that ever
    ran."""

    user_s: float
    system_s: float
    max_rss_kb: int
    max_rss_task: int
    max_rss_node: str
    ave_rss_kb: int
    min_cpu_s: float
    min_cpu_task: int
    min_cpu_node: str
    ave_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s

    @classmethod
    def over(cls, tasks: Sequence[tuple[TaskPlan, TaskUsage]]) -> Usage | None:
        """Returns the usage of a step with these tasks, or None if there are no tasks."""
        if not tasks:
            return None
        largest, most = max(tasks, key=lambda pair: pair[1].rss_kb)
        quickest, least = min(tasks, key=lambda pair: pair[1].cpu_s)
        used = [used for _, used in tasks]
        return cls(
            user_s=sum(one.user_s for one in used),
            system_s=sum(one.system_s for one in used),
            max_rss_kb=most.rss_kb,
            max_rss_task=largest.number,
            max_rss_node=largest.node,
            ave_rss_kb=sum(one.rss_kb for one in used) // len(used),
            min_cpu_s=least.cpu_s,
            min_cpu_task=quickest.number,
            min_cpu_node=quickest.node,
            ave_cpu_s=sum(one.cpu_s for one in used) / len(used),
        )
