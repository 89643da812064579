"""What a pending job asks for, when Slurm expects to start it, and which smaller request would fit now.

What is said of a smaller request is what sinfo says of the partition's nodes at this moment, and no more: jobs of
higher priority may take them first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterdp.errors import SlurmError
from clusterdp.slurm.quantities import megabytes_of
from clusterdp.wording import counted

if TYPE_CHECKING:
    from clusterdp.slurm.nodes import NodeGroup

NODES_MAY_DO = frozenset({"Resources", "Priority", "PartitionNodeLimit", "PartitionConfig", "ReqNodeNotAvail"})


@dataclass(frozen=True)
class Request:
    """What the job asks for. CPUs, memory and GPUs are those of all nodes together."""

    partition: str = ""
    nodes: int = 0
    cpus: int = 0
    memory_mb: float = 0.0
    gpus: int = 0
    time: str = ""
    features: str = ""
    tied: bool = False  # to named nodes, or to a reservation
    start: float | None = None  # Slurm's estimate, or the earliest time

    @classmethod
    def read(cls, job: Mapping[str, str]) -> Request:
        """Of `scontrol show job`; what it lacks is empty."""
        tres = dict(each.split("=", 1) for each in job.get("ReqTRES", job.get("TRES", "")).split(",") if "=" in each)
        features = job.get("Features", "(null)")
        none = ("(null)", "")
        return cls(
            partition=job.get("Partition", ""),
            nodes=_number(tres.get("node", job.get("NumNodes", "").partition("-")[0])),
            cpus=_number(tres.get("cpu", job.get("NumCPUs", ""))),
            memory_mb=megabytes_of(tres.get("mem", "")) or 0.0,
            gpus=_number(tres.get("gres/gpu", "")),
            time=job.get("TimeLimit", ""),
            features="" if features in none else features,
            tied=any(job.get(key, "(null)") not in none for key in ("ReqNodeList", "Reservation")),
            start=_time(job.get("StartTime", "")),
        )

    def in_words(self) -> str:
        """`4 nodes, 32 CPUs, 32 GPUs, 4:00:00`."""
        words = [counted(self.nodes, "node"), counted(self.cpus, "CPU")]
        words += [counted(self.gpus, "GPU")] if self.gpus else []
        return ", ".join([*words, *([f"{self.time} of time"] if self.time else [])])

    def fits(self, group: NodeGroup) -> bool:
        """Whether a node of the group has what the job asks of each of its nodes."""
        each = self.nodes or 1
        return (
            group.cpus * each >= self.cpus
            and group.memory_mb * each >= self.memory_mb
            and group.gpus * each >= self.gpus
            and (not self.features or self.features in group.features)
        )


def read_request(job: str) -> Request | None:
    """None if scontrol does not know the job, or does not answer."""
    from clusterdp.slurm import commands

    try:
        return Request.read(commands.show_job(job))
    except SlurmError:
        return None


def smaller(request: Request, reason: str) -> str:
    """Which smaller request would fit, by sinfo; empty if none is known to."""
    from clusterdp.slurm import commands

    key = reason.split(",")[0].strip("()")
    if "," in request.partition or not request.partition or request.tied:
        return ""
    try:
        groups = commands.node_groups(request.partition)
    except SlurmError:
        return ""
    if key == "PartitionTimeLimit" and groups:
        return f"{request.partition} allows {groups[0].time_limit}: resources.time={groups[0].time_limit}"
    return _fewer_nodes(request, groups, key) if key in NODES_MAY_DO else ""


def _fewer_nodes(request: Request, groups: Sequence[NodeGroup], key: str) -> str:
    partition = request.partition
    most = min((int(each.most_nodes) for each in groups if each.most_nodes.isdecimal()), default=None)
    all_there = sum(group.nodes for group in groups)
    if most is not None and request.nodes > most:
        return f"{partition} allows {counted(most, 'node')} a job: resources.nodes={most}"
    if request.nodes > all_there > 0:
        return f"{partition} has {counted(all_there, 'node')} in all"
    idle = sum(group.nodes for group in groups if group.state == "idle" and request.fits(group))
    if not 0 < idle < request.nodes:
        return ""
    first = " if no job comes before it" if key == "Priority" else ""
    has = "is" if idle == 1 else "are"
    return f"{idle} of {request.nodes} {has} idle in {partition}: resources.nodes={idle} could start now{first}"


def _number(word: str) -> int:
    return int(word) if word.isdecimal() and len(word) < 12 else 0


def _time(stamp: str) -> float | None:
    try:
        return time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
