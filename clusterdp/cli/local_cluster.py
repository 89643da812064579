"""`--cluster local`: start a fake cluster, submit to it as to any other, follow the run, take the cluster down.

With `local.preempt_at` the job is preempted once on its way, so that a user sees before paying for GPUs that it comes
back. The cluster's controller is quick (a requeued job may start after 1 s); grace times are real.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterdp.cli.fake import fresh_job_id
from clusterdp.errors import FakeError
from clusterdp.rundir import Ledger, read_events

if TYPE_CHECKING:
    from clusterdp.config import Config
    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.launch.job import Job
    from clusterdp.launch.plan import Plan

GRACE_S = 20.0


def run(plan: Plan, send: Callable[[], Job]) -> int:
    """`send` submits and returns the job. The result is the run's exit code."""
    from clusterdp.fakeslurm.errors import FakeSlurmError
    from clusterdp.operate.follow import Pace
    from clusterdp.operate.watch import watch

    config = plan.spec.config
    try:
        with _cluster_for(config, plan.spec.ranks_per_node) as cluster:
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


def _cluster_for(config: Config, ranks_per_node: int) -> FakeCluster:
    """A fake cluster in which this job has room: its nodes, its GPUs, a partition of the name that it asks for."""
    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.fakeslurm.core.shape import PartitionShape, Shape
    from clusterdp.launch.script_spec import gpu_count

    r = config.resources
    gpus = max(gpu_count(r.gpus_per_node), gpu_count(r.gpus_per_task) * ranks_per_node)
    cpus = max(config.local.cpus_per_node, r.cpus_per_task * ranks_per_node)
    shape = Shape.simple(r.nodes, cpus, gpus, quick=True)
    partition = PartitionShape(r.partition or "main", default=True, preempt="REQUEUE", grace_s=GRACE_S)
    settings = replace(shape.settings, first_job_id=fresh_job_id())
    return FakeCluster(shape=replace(shape, partitions=(partition,), settings=settings))


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
