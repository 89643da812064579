"""`--cluster local`: starts a fake cluster, submits a job to this cluster as to any other, follows the run, and stops
the cluster.

With `local.preempt_at` the job is preempted once: the user sees that the job comes back before GPUs cost money. The
cluster's controller is quick: a requeued job may start after 1 s. Grace times have their real length.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterdp.errors import FakeError
from clusterdp.rundir import Ledger, read_events

if TYPE_CHECKING:
    from clusterdp.config import Config
    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.submission.job import Job
    from clusterdp.submission.plan import Plan
    from clusterdp.submission.sweep.arrays import SentSweep
    from clusterdp.submission.sweep.plan import SweepPlan


def run(plan: Plan, send: Callable[[], Job]) -> int:
    """Runs a job on a fake cluster, and returns the run's exit code. `send` submits the job, and returns its Job."""
    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.fakeslurm.errors import FakeSlurmError
    from clusterdp.operate.status.follow import Pace
    from clusterdp.operate.status.watch import watch
    from clusterdp.rehearse.clusters.job_cluster import shape_for

    config = plan.spec.config
    try:
        with FakeCluster(shape=shape_for(config, plan.spec.ranks_per_node)) as cluster:
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
    """Does the same as run() for the elements of a sweep, but without a preemption at `local.preempt_at`."""
    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.fakeslurm.errors import FakeSlurmError
    from clusterdp.operate.sweep.watch import SweepPace, watch_sweep
    from clusterdp.rehearse.clusters.job_cluster import shape_for

    try:
        with FakeCluster(shape=shape_for(plan.spec.config, plan.spec.ranks_per_node)) as cluster:
            os.environ.update(cluster.environ())
            sent = send()
            folder = shlex.quote(str(cluster.folder))
            print(f"To break it, elsewhere:  clusterdp fake preempt {sent.jobs[0].id} --dir {folder}", flush=True)
            farewell = "\nThe fake cluster and the jobs on it are gone; `clusterdp resume` goes on with an element.\n"
            return watch_sweep(sent.folder, pace=SweepPace(poll_s=0.5, settle_s=2), farewell=farewell)
    except FakeSlurmError as error:
        raise FakeError(str(error)) from None


def _rehearsal(config: Config, cluster: FakeCluster, job: Job) -> Callable[[int, int | None], None] | None:
    """Returns the function that is called with each new step, and preempts the job once. None if `local.preempt_at` is
    not set, or the run was preempted before."""
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
            with suppress(FakeSlurmError):  # the job ended just before the preemption
                cluster.preempt(job.id)

    return on_progress
