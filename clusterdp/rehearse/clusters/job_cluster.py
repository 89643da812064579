"""The fake cluster on which a job of any config can run, for `--cluster local` and for rehearsals."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from clusterdp.config import Config
from clusterdp.errors import SlurmError
from clusterdp.fakeslurm.core import constraints
from clusterdp.fakeslurm.core.job_ids import fresh_job_id
from clusterdp.fakeslurm.core.shape import NodeShape, PartitionShape, Shape
from clusterdp.slurm.hostlist import HostlistError, expand
from clusterdp.submission.render.script_spec import gpu_count

GRACE_S = 20.0
MEMORY_MB = 16_000_000  # more memory than any real node has, so that the job's request always fits


def shape_for(config: Config, ranks_per_node: int, *, spare: int = 0, grace_s: float = GRACE_S) -> Shape:
    """Returns a fake cluster on which this job can run: its nodes, GPUs and memory, and everything else that the job
    names, such as a partition, features and a reservation. The job's script is the same as for a real cluster. The
    cluster's controller is quick (see Shape.simple).

    `spare`: number of additional nodes, in case a node fails. `grace_s`: the grace time of a preemption, in real
    seconds."""
    r = config.resources
    kind, gpus = _gpus(config, ranks_per_node)
    like = NodeShape(
        "",
        max(config.local.cpus_per_node, r.cpus_per_task * ranks_per_node),
        gpus,
        MEMORY_MB,
        tuple(constraints.words(r.constraint or "")),
        kind,
    )
    excluded = _hosts(r.exclude)  # sbatch refuses an excluded node that the cluster does not have
    named = _hosts(r.nodelist)
    names = [*named, *(f"n{i}" for i in range(1, r.job_nodes + spare - len(named) + 1)), *excluded]
    partitions = [
        PartitionShape(name, default=not i, preempt="REQUEUE", grace_s=grace_s)
        for i, name in enumerate((r.partition or "main").split(","))
    ]
    settings = replace(
        Shape.simple(quick=True).settings,
        first_job_id=fresh_job_id(),
        reservations=tuple((r.reservation or "").split(",")),
        licenses=tuple(re.findall(r"(?:^|,)([^:,]+)", str(r.extra.get("licenses", "")))),
    )
    nodes = tuple(replace(like, name=name) for name in dict.fromkeys(names))
    return Shape(nodes, tuple(partitions), settings)


def _hosts(text: str | None) -> list[str]:
    """Returns the hosts of a hostlist. Returns [] for a list that cannot be parsed, which sbatch refuses later."""
    with suppress(HostlistError):
        return expand(text or "")
    return []


def _gpus(config: Config, ranks_per_node: int) -> tuple[str, int]:
    """Returns the type and the number of a node's GPUs. The type is empty if the config names no type."""
    r = config.resources
    gres = [part.removeprefix("gpu:") for part in (r.gres or "").split(",") if part.startswith("gpu:")]
    words = [word for word in (r.gpus_per_node, r.gpus_per_task, *gres) if word]
    kinds = [word.rpartition(":")[0] or ("" if word.isdigit() else word) for word in words]
    of_gres = [int(word.rpartition(":")[2]) if word[-1].isdigit() else 1 for word in gres]
    number = max(gpu_count(r.gpus_per_node), gpu_count(r.gpus_per_task) * ranks_per_node, *of_gres, 0)
    return next(filter(None, kinds), ""), number


def grace_s(config: Config) -> float:
    """Returns the grace time of preemptions in seconds: from the config, else from the real partition, else GRACE_S."""
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
