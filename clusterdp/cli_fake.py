"""`clusterdp fake`: the fake cluster by hand."""

from __future__ import annotations

import argparse
import shlex
import time
from typing import Any

from clusterdp.errors import FakeError


def add_to(fake: argparse.ArgumentParser) -> None:
    """The verbs below `clusterdp fake`."""
    verbs = fake.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(name: str, run: Any, about: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=about, description=about)
        sub.set_defaults(verb=lambda options: _guarded(run, options))
        sub.add_argument("--dir", metavar="DIR", help="where the cluster lives; default: the user's own")
        return sub

    sub = verb("up", up, "start a cluster")
    sub.add_argument("--nodes", type=int, default=4, metavar="N")
    sub.add_argument("--cpus-per-node", type=int, default=8, metavar="N")
    sub.add_argument("--gpus-per-node", type=int, default=2, metavar="N")
    sub.add_argument("--time-scale", type=float, default=1.0, metavar="X", help="60: a minute of time limit lasts 1 s")
    sub.add_argument("--slurm-version", metavar="V", help="speak as that release of Slurm does (22.05 is recorded)")
    sub.add_argument("--quick", action="store_true", help="a controller that looks at limits every second")
    verb("down", down, "stop the cluster and everything that runs on it")
    verb("status", status, "its nodes and jobs")
    verb("env", env, 'print what puts it on PATH: eval "$(clusterdp fake env)"')
    verb("preempt", preempt, "preempt a job, as one of a higher partition would").add_argument("job", metavar="JOB")
    verb("fail-node", fail_node, "let a node die, and all that runs there").add_argument("node", metavar="NODE")
    verb("restore-node", restore_node, "bring a dead node back").add_argument("node", metavar="NODE")


def _guarded(run: Any, options: argparse.Namespace) -> int:
    from clusterdp.fakeslurm.errors import FakeSlurmError

    try:
        run(options)
    except FakeSlurmError as error:
        raise FakeError(str(error)) from None
    return 0


def _attached(options: argparse.Namespace) -> Any:
    from clusterdp.fakeslurm.cluster import FakeCluster

    return FakeCluster.attach(options.dir)


def up(options: argparse.Namespace) -> None:
    from dataclasses import replace
    from pathlib import Path

    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.fakeslurm.shape import Shape

    shape = Shape.simple(
        options.nodes,
        options.cpus_per_node,
        options.gpus_per_node,
        quick=options.quick,
        time_scale=options.time_scale,
    )
    shape = replace(shape, settings=replace(shape.settings, first_job_id=fresh_job_id()))
    folder = Path(options.dir) if options.dir else FakeCluster.default_folder()
    cluster = FakeCluster(folder, shape=shape, slurm_version=options.slurm_version).up()
    where = f" --dir {shlex.quote(options.dir)}" if options.dir else ""
    print(f"A fake cluster of {options.nodes} nodes is up in {cluster.folder}.")
    print(f'Put it on PATH:  eval "$(clusterdp fake env{where})"')
    print(f"Stop it:         clusterdp fake down{where}")


def fresh_job_id() -> int:
    """One that no earlier fake cluster gave to a job: run folders outlive clusters, and attempts are named for jobs."""
    return int(time.time() / 10) % 10_000_000


def down(options: argparse.Namespace) -> None:
    _attached(options).down()
    print("The fake cluster is down.")


def status(options: argparse.Namespace) -> None:
    print(_attached(options).status())


def env(options: argparse.Namespace) -> None:
    print(_attached(options).exports())


def preempt(options: argparse.Namespace) -> None:
    _attached(options).preempt(options.job)
    print(f"Job {options.job} is being preempted.")


def fail_node(options: argparse.Namespace) -> None:
    _attached(options).fail_node(options.node)
    print(f"Node {options.node} is dead. `clusterdp fake restore-node {options.node}` brings it back.")


def restore_node(options: argparse.Namespace) -> None:
    _attached(options).restore_node(options.node)
    print(f"Node {options.node} is back.")
