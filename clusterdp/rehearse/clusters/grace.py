"""The grace time of a preemption: the config's, or the partition's, where a Slurm answers."""

from __future__ import annotations

from clusterdp.config import Config
from clusterdp.errors import SlurmError
from clusterdp.rehearse.clusters.job_cluster import GRACE_S


def grace_s(config: Config) -> float:
    """In seconds."""
    if config.rehearse.grace_s is not None:
        return config.rehearse.grace_s
    from clusterdp.slurm import commands

    if config.resources.partition and commands.have_slurm():
        try:
            shown = commands.show_partitions().get(config.resources.partition, {})
        except SlurmError:
            return GRACE_S
        if shown.get("GraceTime", "0").isdigit():
            return float(shown.get("GraceTime", "0")) or GRACE_S
    return GRACE_S
