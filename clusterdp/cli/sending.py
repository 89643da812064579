"""The verbs that submit a job, such as submit, profile, resume and again."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from clusterdp.cli.named import config_path, named_run
from clusterdp.errors import SubmitError

if TYPE_CHECKING:
    from clusterdp.rundir import RunDir
    from clusterdp.submission.job import Job
    from clusterdp.submission.plan import Plan
    from clusterdp.submission.send.lock import RunLock


def submit(options: argparse.Namespace) -> int:
    from clusterdp import config
    from clusterdp.check.at_submit import tell_errors
    from clusterdp.submission.plan import make_plan, read_given

    given = read_given(config_path(options.config), options.overrides, options.sweep, options.after)
    if given.sweeps:
        from clusterdp.cli import sweep

        return sweep.submit(given, options)
    loaded = config.resolve(given).config
    plan = make_plan(loaded)
    tell_errors(plan.spec, given.sources)
    if options.dry_run:
        _print_script(plan, named=bool(loaded.run_dir))
        return 0
    return send_plan(plan, options)


def _print_script(plan: Plan, named: bool) -> None:
    from clusterdp.operate.output.terminal import exact

    exact(sys.stdout).write(plan.script.text)
    if waits := " ".join(plan.after_options()):
        print(f"clusterdp: sbatch gets {waits}", file=sys.stderr)
    if not named:
        print(f"clusterdp: {plan.run.path}: this name is another each time. Set run_dir=NAME.", file=sys.stderr)


def profile(options: argparse.Namespace) -> int:
    from clusterdp.cli import profile

    return profile.profile(options, config_path(options.config), send_plan)


def resume(options: argparse.Namespace) -> int:
    back = [] if options.step is None else ["--from", str(options.step)]
    return resume_run(named_run("resume", options.run, [*options.overrides, *back]), options)


def resume_run(run: RunDir, options: argparse.Namespace) -> int:
    """Resumes a run, and follows it if asked. `options` are the options of `clusterdp resume`. Returns the exit
    code."""
    from clusterdp.operate.change.resume_check import check_resumable, check_step, nothing_left, size_change
    from clusterdp.submission.resume import changes_the_work, config_again, old_code, plan_again, read_config
    from clusterdp.submission.send.lock import RunLock

    plan = plan_again(run, options.step, options.overrides)
    if options.dry_run:
        if options.step is not None:
            check_step(run, options.step, plan.spec.checkpoint_url)
        _print_script(plan, named=True)
        return 0
    if options.step is None and not changes_the_work(plan) and (said := nothing_left(run)):
        print(said)
        return 0
    with RunLock(run) as lock:  # held until the job is submitted
        check_resumable(run, options.step, plan.spec.checkpoint_url)
        now = plan.spec.config
        ranks = [nodes * plan.spec.ranks_per_node for nodes in now.resources.sizes]
        for said in (old_code(run), size_change(run, config_again(run, read_config(run), ()), now, ranks)):
            print(said, end="\n" if said else "")
        return send_plan(plan, options, lock)


def again(options: argparse.Namespace) -> int:
    from clusterdp.submission.resume import plan_new

    old = named_run("again", options.run, options.overrides)
    plan = plan_new(old, options.overrides)
    if options.dry_run:
        _print_script(plan, named=bool(plan.spec.config.run_dir))
        return 0
    if plan.code_of is None:
        print(f"clusterdp: {old.path}: has no snapshot. The code is that of {plan.spec.submit_dir}, as it is now.")
    return send_plan(plan, options)


def send_plan(plan: Plan, options: argparse.Namespace, lock: RunLock | None = None) -> int:
    """Submits a job, prints its id, and follows the run if --watch is given. With --cluster local the run is always
    followed, because the cluster ends with this process. `lock` is the lock of the run to resume; send_plan() releases
    it as soon as the job is submitted.
    """
    cluster = options.cluster
    if cluster == "auto":
        from clusterdp.slurm import commands

        if not commands.have_slurm():
            raise SubmitError("--cluster auto: no sbatch here. `--cluster local` runs it on this machine.")

    def send() -> Job:
        if lock:
            from clusterdp.operate.change.resume_check import uncancelled
            from clusterdp.submission.resume import send_again

            with uncancelled(plan.run):
                job, taken = send_again(plan, lock), None
            lock.release()
        else:
            job, taken = plan.carry_out()
        from clusterdp.operate.find.run_index import remember  # only after the submit: the job may start

        remember(plan.run, [job.id])
        print(f"{'Resumed' if lock else 'Submitted'} job {job.id}: {plan.run.path}")
        if taken:
            print(taken)
        return job

    if cluster == "local":
        from clusterdp.cli import local_cluster

        return local_cluster.run(plan, send)
    job = send()
    if options.watch:
        return follow(plan.run)
    print(f"Follow it: clusterdp watch {job.id}    Stop it: clusterdp cancel {job.id}")
    return 0


def follow(run: Any) -> int:
    from clusterdp.operate.status.watch import watch

    return watch(run)
