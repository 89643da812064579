"""The shape of a cluster: nodes, partitions, slurm.conf.

The default settings are those of the cluster in tests/slurm_facts/records.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .hostlist import compress
from .release import Release, version_of

VERSION = version_of("24.11")  # the release that most clusters run


@dataclass(frozen=True)
class NodeShape:
    name: str
    cpus: int = 8
    gpus: int = 2
    memory_mb: int = 16000
    features: tuple[str, ...] = ()
    gpu_type: str = ""  # type of all GPUs of the node, like a100 in `Gres=gpu:a100:2`


@dataclass(frozen=True)
class PartitionShape:
    name: str
    default: bool = False
    max_minutes: int | None = None
    tier: int = 10
    preempt: str = "OFF"  # PreemptMode: OFF, REQUEUE or CANCEL
    grace_s: float = 0  # GraceTime in the cluster's seconds, which are shorter than real seconds under a time scale
    nodes: tuple[str, ...] = ()  # nodes of the partition; empty: all nodes


@dataclass(frozen=True)
class SlurmConf:
    """The settings of a controller, as in slurm.conf. All seconds are real seconds, to which a time scale is already
    applied."""

    kill_wait_s: float = 5
    look_s: float = 30  # interval between checks of time limits and grace times
    requeue_delay_s: float = 120  # time between the requeue of a job and its earliest start
    accounting_lag_s: float = 1  # delay until sacct shows a change
    minute_s: float = 60  # length of a minute of a time limit; shorter under --time-scale
    kill_notice_s: float = 1.5  # time until the controller notices the end of a job that had to be killed
    tick_s: float = 1  # interval between runs of the scheduler without an event
    min_job_age_s: float = 3600
    node_return_s: float = 15  # time until a healthy node that was set DOWN comes back (ReturnToService=2)
    node_timeout_s: float = 30  # time until the controller notices a failed node
    message_timeout_s: float = 10  # time that commands wait for a controller that does not answer
    max_array: int = 1001
    first_job_id: int = 10000
    reservations: tuple[str, ...] = ()  # reservations that --reservation accepts; they hold no nodes
    licenses: tuple[str, ...] = ()  # licenses that --licenses accepts; they never run out
    enforce_memory: bool = False  # whether jobs that use more memory than they asked for are ended: see memory_limit.py
    node_local: bool = False  # whether each node has its own /tmp, /var/tmp and /dev/shm: see node_folders.py
    shared: tuple[str, ...] = ()  # folders below the node-local folders that all nodes share
    file_traps: str = ""  # the socket to which tasks send their file traps' descriptor: see file_traps.py
    slurm_version: str = VERSION  # the release that the cluster imitates: see release.py

    @property
    def release(self) -> Release:
        return Release(self.slurm_version)

    def lasting(self, seconds: float) -> float:
        """Converts the cluster's seconds to real seconds, which are fewer under a time scale."""
        return seconds * self.minute_s / 60

    def scaled(self, time_scale: float) -> SlurmConf:
        """Returns the settings under a time scale. `time_scale` divides time limits, times before the limit (warnings),
        grace times, intervals of checks and delays of the controller. KillWait, MinJobAge and the time that clients
        wait for an answer stay unchanged.
        """
        if time_scale == 1:
            return self
        return replace(
            self,
            minute_s=self.minute_s / time_scale,
            look_s=max(self.look_s / time_scale, 0.1),
            requeue_delay_s=self.requeue_delay_s / time_scale,
            node_return_s=self.node_return_s / time_scale,
            node_timeout_s=self.node_timeout_s / time_scale,
            tick_s=max(min(self.tick_s, self.requeue_delay_s / time_scale), 0.1),
        )


# Settings of a controller that reacts within a second.
QUICK: dict[str, float] = {
    "look_s": 1,
    "requeue_delay_s": 1,
    "accounting_lag_s": 0.2,
    "kill_notice_s": 0,
    "tick_s": 0.5,
    "node_return_s": 5,
    "node_timeout_s": 1,
}


@dataclass(frozen=True)
class Shape:
    nodes: tuple[NodeShape, ...]
    partitions: tuple[PartitionShape, ...]
    settings: SlurmConf = field(default_factory=SlurmConf)
    name: str = "fake"

    @classmethod
    def simple(
        cls,
        nodes: int = 4,
        cpus_per_node: int = 8,
        gpus_per_node: int = 2,
        *,
        quick: bool = False,
        time_scale: float = 1.0,
    ) -> Shape:
        """Returns a shape of equal nodes n1.., with partitions main (default), low (preemptible, 10 s of grace) and
        short (1 minute).

        With `quick`, the controller reacts within a second, but time limits, grace times and KillWait stay unchanged.
        `time_scale`: see SlurmConf.scaled. The partition `low` always has a grace time of 10 real seconds (with a
        longer GraceTime), because a program needs this time to save.
        """
        settings = replace(SlurmConf(), **QUICK) if quick else SlurmConf()  # type: ignore[arg-type]
        return cls(
            tuple(NodeShape(f"n{i}", cpus_per_node, gpus_per_node) for i in range(1, nodes + 1)),
            (
                PartitionShape("main", default=True),
                PartitionShape("low", tier=1, preempt="REQUEUE", grace_s=10 * time_scale),
                PartitionShape("short", max_minutes=1),
            ),
            settings.scaled(time_scale),
        )

    def to_json(self) -> dict[str, Any]:
        from dataclasses import asdict

        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Shape:
        nodes = tuple(NodeShape(**{**node, "features": tuple(node["features"])}) for node in data["nodes"])
        partitions = tuple(PartitionShape(**{**part, "nodes": tuple(part["nodes"])}) for part in data["partitions"])
        return cls(nodes, partitions, SlurmConf(**data["settings"]), data["name"])


@dataclass(frozen=True)
class User:
    """The user who runs the cluster: the cluster's only user, with all permissions."""

    name: str
    uid: int
    gid: int
    group: str

    @classmethod
    def me(cls) -> User:
        import grp

        uid, gid = os.getuid(), os.getgid()
        try:
            name = getpass.getuser()
        except (KeyError, OSError):  # in a container, the uid may have no name
            name = str(uid)
        try:
            group = grp.getgrgid(gid).gr_name
        except KeyError:
            group = str(gid)
        return cls(name, uid, gid, group)


def gres(gpu_type: str, gpus: int) -> str:
    """Returns this number of GPUs as `gpu:a100:2`, or as `gpu:2` without a type."""
    return ":".join(filter(None, ("gpu", gpu_type, str(gpus))))


def host_name() -> str:
    return socket.gethostname().split(".")[0]


def conf_text(shape: Shape, folder: Path) -> str:
    """Returns the text of a slurm.conf for people and programs. The fake itself does not read this file."""
    lines = ["# Written by a fake cluster; changing it has no effect.", f"ClusterName={shape.name}"]
    lines += [f"SlurmctldHost={host_name()}(127.0.0.1)", f"StateSaveLocation={folder}/state", "GresTypes=gpu"]
    lines += [f"KillWait={shape.settings.kill_wait_s:g}", "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"]
    for node in shape.nodes:
        more = f" Gres={gres(node.gpu_type, node.gpus)}" if node.gpus else ""
        more += f" Feature={','.join(node.features)}" if node.features else ""
        lines.append(f"NodeName={node.name} NodeAddr=127.0.0.1 CPUs={node.cpus} RealMemory={node.memory_mb}{more}")
    for part in shape.partitions:
        limit = "INFINITE" if part.max_minutes is None else str(part.max_minutes)
        nodes, default = compress(part.nodes) or "ALL", "YES" if part.default else "NO"
        lines.append(
            f"PartitionName={part.name} Nodes={nodes} Default={default} MaxTime={limit} State=UP "
            f"PriorityTier={part.tier} PreemptMode={part.preempt} GraceTime={part.grace_s:g}"
        )
    return "\n".join(lines) + "\n"
