"""NodeGroup: nodes of a partition as sinfo shows them, equal ones in one line."""

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
    """`state`: `idle`, `mixed`, `down*`. cpus, memory_mb and gpus are those of each node; gpu_type is empty if Slurm
    has none. The partition's limits are as sinfo gives them: `1-00:00:00` or `infinite`."""

    partition: str
    is_default: bool  # the partition of a job that names none
    up: bool
    state: str
    nodes: int
    cpus: int
    memory_mb: int
    gpus: int
    gpu_type: str
    features: tuple[str, ...]
    time_limit: str
    most_nodes: str
    gpus_by_type: tuple[tuple[str, int], ...] = ()  # where they have types: (("a100", 7), ("1g.5gb", 7))


def read_sinfo(lines: Iterable[str]) -> list[NodeGroup]:
    """The rows of lines in SINFO_FORMAT, in their order; other lines are left out."""
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
    """Empty if some of them have no type."""
    found: dict[str, int] = {}
    for kind, count in gpus:
        found[kind] = found.get(kind, 0) + int(count)
    return () if "" in found else tuple(found.items())
