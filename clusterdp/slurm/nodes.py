"""NodeGroup: equal nodes of a partition, as sinfo shows them in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

SINFO_FORMAT = "%P|%a|%T|%D|%c|%m|%G|%f|%l|%s"
ROW = re.compile(
    r"([^|*]+)(\*?)\|([^|]*)\|([^|]+)\|(\d{1,9})\|(\d{1,9})\+?\|(\d{1,12})\+?\|" + r"\|".join(4 * [r"([^|]*)"])
)
GPUS = re.compile(r"(?:^|,)gpu(?::([^:,()]+))??:([0-9]{1,6})(?=[(,]|$)")  # `gpu:a100:8(S:0-1)`


@dataclass(frozen=True)
class NodeGroup:
    partition: str
    is_default: bool  # the partition of a job that names none
    up: bool
    state: str  # `idle`, `mixed`, `down*`
    nodes: int
    cpus: int  # of each node, as memory_mb and gpus
    memory_mb: int
    gpus: int
    gpu_type: str  # empty if Slurm has none
    features: tuple[str, ...]
    time_limit: str  # of the partition, as sinfo prints it: `1-00:00:00` or `infinite`
    most_nodes: str  # of the partition, as sinfo prints it
    gpus_by_type: tuple[tuple[str, int], ...] = ()  # if all GPUs have types: (("a100", 7), ("1g.5gb", 7))


def read_sinfo(lines: Iterable[str]) -> list[NodeGroup]:
    """Returns the rows of lines in SINFO_FORMAT, in their order. Other lines are left out."""
    groups = []
    for match in filter(None, map(ROW.fullmatch, map(str.strip, lines))):
        name, star, up, state, nodes, cpus, memory, gres, features, limit, sizes = match.groups()
        gpus = GPUS.findall(gres)
        groups.append(
            NodeGroup(
                partition=name,
                is_default=bool(star),
                up=up == "up",
                state=state,
                nodes=int(nodes),
                cpus=int(cpus),
                memory_mb=int(memory),
                gpus=sum(int(count) for _, count in gpus),
                gpu_type=gpus[0][0] if len({kind for kind, _ in gpus}) == 1 else "",
                features=tuple(features.split(",")) if features != "(null)" else (),
                time_limit=limit,
                most_nodes=sizes.rpartition("-")[2],
                gpus_by_type=_by_type(gpus),
            )
        )
    return groups


def _by_type(gpus: Iterable[tuple[str, str]]) -> tuple[tuple[str, int], ...]:
    """Returns the number of GPUs of each type; empty if some GPUs have no type."""
    found: dict[str, int] = {}
    for kind, count in gpus:
        found[kind] = found.get(kind, 0) + int(count)
    return () if "" in found else tuple(found.items())
