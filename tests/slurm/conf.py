"""The configuration files of the test cluster, as text."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """Where the cluster lives and how large it is. It takes the ports `port` to `port + nodes + 1`, on loopback."""

    folder: Path
    port: int
    nodes: int = 4
    changes: Mapping[str, str] = field(default_factory=dict)  # texts in the files, and what to write instead

    @property
    def slurm_conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge.socket"

    @property
    def mariadb_socket(self) -> Path:
        return self.folder / "mariadb.socket"

    @property
    def cluster(self) -> str:
        return f"test{self.port}"

    @property
    def first_job_id(self) -> int:
        """Five digits, far from those of other test clusters: MASTER_PORT follows from the number of a job, and with
        one number the ranks of two clusters' jobs on one machine would meet. Above the ports, sizes and limits that
        commands print: records have names in the place of job numbers.
        """
        return 40_000 + self.port * 204 % 50_000

    def files(self, has_cgroup_switch: bool) -> dict[str, str]:
        """has_cgroup_switch: the release (23.02 and later) loads cgroups unless it is told not to."""
        cgroups = {"cgroup.conf": "CgroupPlugin=disabled\n"} if has_cgroup_switch else {}
        files = cgroups | {
            "slurm.conf": _slurm_conf(self),
            "slurmdbd.conf": _slurmdbd_conf(self),
            # A pretend GPU needs a device that exists, not one that computes.
            "gres.conf": f"NodeName=n[1-{self.nodes}] Name=gpu File=/dev/null,/dev/zero\n",
        }
        return {name: self.changed(text) for name, text in files.items()}

    def changed(self, text: str) -> str:
        for old, new in self.changes.items():
            text = text.replace(old, new)
        return text


def _slurmdbd_conf(shape: Shape) -> str:
    return f"""\
AuthType=auth/munge
AuthInfo=socket={shape.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={shape.port + 1}
SlurmUser=root
LogFile={shape.folder}/log/slurmdbd.log
PidFile={shape.folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
# "localhost" is the socket that MYSQL_UNIX_PORT names: this database listens on no port.
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""


def _slurm_conf(shape: Shape) -> str:
    host = socket.gethostname().split(".")[0]
    first_node = shape.port + 2
    return f"""\
ClusterName={shape.cluster}
FirstJobId={shape.first_job_id}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={shape.port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={shape.munge_socket}
StateSaveLocation={shape.folder}/state
SlurmdSpoolDir={shape.folder}/spool/%n
SlurmctldPidFile={shape.folder}/slurmctld.pid
SlurmdPidFile={shape.folder}/slurmd.%n.pid
SlurmctldLogFile={shape.folder}/log/slurmctld.log
SlurmdLogFile={shape.folder}/log/slurmd.%n.log

# No cgroups and no binding: several nodes share one machine, which may be a container.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=15

# Start what can start at once; what users wait for on a real cluster says nothing about our code.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,requeue_setup_env_fail
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
MinJobAge=3600
JobRequeue=1

AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={shape.port + 1}
AccountingStoragePass={shape.munge_socket}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1

GresTypes=gpu
NodeName=DEFAULT CPUs=8 RealMemory=16000 Gres=gpu:2
NodeName=n[1-{shape.nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_node}-{first_node + shape.nodes - 1}]
PartitionName=DEFAULT Nodes=ALL State=UP MaxTime=INFINITE
PartitionName=main Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=short MaxTime=1 PriorityTier=10 PreemptMode=OFF
PartitionName=low PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=low0 PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
"""
