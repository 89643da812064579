"""NodeGroup: equal nodes of a partition, as sinfo shows them in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

SINFO_FORMAT = "%P|%a|%T|%D|%c|%m|%G|%f|%l|%s"
ROW = re.compile(
    r"([^|*]+)(\*?)\|([^|]*)\|([^|]+)\|(\d{1,9})\|(\d{1,9})\+?\|(\d{1,12})\+?\|" + r"\|".join(4 * [r"([^|]*)"])
)
GPUS = re.compile(r"(?:^|,)gpu(?::([^:,()]+))??:([0-9]{1,6})(?=[(,]|$)")  # `gpu:a100:8(S:0-1)`


class NodeGroup(NamedTuple):
    partition: str
    is_default: bool  # the partition is the default of jobs that name none
    up: bool
    state: str  # sinfo's word, such as `idle`, `mixed` or `down*`
    nodes: int
    cpus: int  # CPUs of each node; memory_mb and gpus are also for each node
    memory_mb: int
    gpus: int
    gpu_type: str  # empty if Slurm knows no type
    features: tuple[str, ...]
    time_limit: str  # limit of the partition as sinfo prints it: `1-00:00:00` or `infinite`
    most_nodes: str  # largest number of nodes of a job in the partition, as sinfo prints it
    gpus_by_type: tuple[tuple[str, int], ...] = ()  # such as (("a100", 7),); only if all GPUs have types


def read_sinfo(lines: Iterable[str]) -> list[NodeGroup]:
    """Returns a NodeGroup for each line of sinfo in SINFO_FORMAT, in the same order. Lines in another format are left
    out."""
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
    """Returns the number of GPUs of each type; empty if a GPU has no type."""
    found: dict[str, int] = {}
    for kind, count in gpus:
        found[kind] = found.get(kind, 0) + int(count)
    return () if "" in found else tuple(found.items())
