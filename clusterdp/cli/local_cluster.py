"""`--cluster local`: start a fake cluster, submit to it as to any other, follow the run, take the cluster down.

With `local.preempt_at` the job is preempted once on its way, so that a user sees before paying for GPUs that it comes
back. The cluster's controller is quick (a requeued job may start after 1 s); grace times are real.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterdp.cli.fake import fresh_job_id
from clusterdp.errors import FakeError
from clusterdp.rundir import Ledger, read_events
from clusterdp.slurm.hostlist import HostlistError, expand

if TYPE_CHECKING:
    from clusterdp.config import Config
    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.fakeslurm.core.shape import Shape
    from clusterdp.launch.job import Job
    from clusterdp.launch.plan import Plan
    from clusterdp.launch.sweep.arrays import SentSweep
    from clusterdp.launch.sweep.plan import SweepPlan

GRACE_S = 20.0
MEMORY_MB = 16_000_000  # more than any node has: the job asks for what its real nodes have


def run(plan: Plan, send: Callable[[], Job]) -> int:
    """`send` submits and returns the job. The result is the run's exit code."""
    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.fakeslurm.errors import FakeSlurmError
    from clusterdp.operate.follow import Pace
    from clusterdp.operate.watch import watch

    config = plan.spec.config
    try:
        with FakeCluster(shape=_shape_for(config, plan.spec.ranks_per_node)) as cluster:
            os.environ.update(cluster.environ())
            job = send()
            print(
                f"To break it, elsewhere:  clusterdp fake preempt {job.id} --dir {shlex.quote(str(cluster.folder))}",
                flush=True,
            )
            farewell = "\nThe fake cluster and the job on it are gone; `clusterdp resume` goes on with the run.\n"
            hook = _rehearsal(config, cluster, job)
            return watch(plan.run, pace=Pace(ask_s=1, settle_s=2), on_progress=hook, farewell=farewell)
    except FakeSlurmError as error:
        raise FakeError(str(error)) from None


def run_sweep(plan: SweepPlan, send: Callable[[], SentSweep]) -> int:
    """Likewise, for the elements of a sweep. Nothing is rehearsed."""
    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.fakeslurm.errors import FakeSlurmError
    from clusterdp.operate.sweep.watch import SweepPace, watch_sweep

    try:
        with FakeCluster(shape=_shape_for(plan.spec.config, plan.spec.ranks_per_node)) as cluster:
            os.environ.update(cluster.environ())
            sent = send()
            folder = shlex.quote(str(cluster.folder))
            print(f"To break it, elsewhere:  clusterdp fake preempt {sent.jobs[0].id} --dir {folder}", flush=True)
            farewell = "\nThe fake cluster and the jobs on it are gone; `clusterdp resume` goes on with an element.\n"
            return watch_sweep(sent.folder, pace=SweepPace(poll_s=0.5, settle_s=2), farewell=farewell)
    except FakeSlurmError as error:
        raise FakeError(str(error)) from None


def _shape_for(config: Config, ranks_per_node: int) -> Shape:
    """A fake cluster on which this job can run: its nodes, GPUs and memory, and whatever else it names, such as a
    partition, features and a reservation. The script is the one that a real cluster would get."""
    from clusterdp.fakeslurm.core import constraints
    from clusterdp.fakeslurm.core.shape import NodeShape, PartitionShape, Shape

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
    spare = _hosts(r.exclude)  # sbatch refuses a node that it does not know
    named = _hosts(r.nodelist)
    names = [*named, *(f"n{i}" for i in range(1, r.nodes - len(named) + 1)), *spare]
    partitions = [
        PartitionShape(name, default=not i, preempt="REQUEUE", grace_s=GRACE_S)
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
    """None of a list that cannot be read: sbatch refuses it."""
    with suppress(HostlistError):
        return expand(text or "")
    return []


def _gpus(config: Config, ranks_per_node: int) -> tuple[str, int]:
    """Type and number of the GPUs of a node; the type may be empty."""
    from clusterdp.launch.script_spec import gpu_count

    r = config.resources
    gres = [part.removeprefix("gpu:") for part in (r.gres or "").split(",") if part.startswith("gpu:")]
    words = [word for word in (r.gpus_per_node, r.gpus_per_task, *gres) if word]
    kinds = [word.rpartition(":")[0] or ("" if word.isdigit() else word) for word in words]
    of_gres = [int(word.rpartition(":")[2]) if word[-1].isdigit() else 1 for word in gres]
    number = max(gpu_count(r.gpus_per_node), gpu_count(r.gpus_per_task) * ranks_per_node, *of_gres, 0)
    return next(filter(None, kinds), ""), number


def _rehearsal(config: Config, cluster: FakeCluster, job: Job) -> Callable[[int, int | None], None] | None:
    """What to call with each new step; None if there is nothing to rehearse, or it has been done in this run."""
    from clusterdp.fakeslurm.errors import FakeSlurmError

    at = config.local.preempt_at
    if at is None or any(event.get("event") == "rehearsal" for event in read_events(job.run)):
        return None
    done = False

    def on_progress(step: int, total: int | None) -> None:
        nonlocal done
        if not done and total and step >= at * total:
            done = True
            Ledger(job.run, f"submit-{job.id}", "rehearsal").write("rehearsal", job=job.id, step=step)
            with suppress(FakeSlurmError):  # the job has just ended
                cluster.preempt(job.id)

    return on_progress
