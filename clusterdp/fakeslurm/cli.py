"""`fakeslurm VERB`, and `clusterdp fake VERB`: start, change and stop a fake cluster by hand."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from .errors import VERB, FakeSlurmError

if TYPE_CHECKING:
    from . import FakeCluster, Shape

EPILOG = f"""\
  {VERB} up --shape cluster.yaml --time-scale 60
  eval "$({VERB} env)"        sbatch, srun, squeue, ... are now the cluster's
  {VERB} preempt 10001
  {VERB} down"""
EXAMPLES = {
    "up": "up --nodes 4 --gpus-per-node 8",
    "env": f'env    eval "$({VERB} env)" puts it on PATH',
    "advance": "advance 3600",
    "preempt": "preempt 10001",
    "kill-rank": "kill-rank 10001 3",
    "fail": "fail n2",
    "kill-slurmd": "kill-slurmd n2",
    "drain": "drain n2",
    "resume": "resume n2",
    "slow": "slow 5 --for 60",
    "unreachable": "unreachable 60",
    "flaky": "flaky 0.3",
}
NUMBERS: dict[str, Any] = {"seconds": float, "rank": int, "rate": float}  # argument -> type of its number


class Parser(argparse.ArgumentParser):
    """example: a whole command line, for --help."""

    def __init__(self, *args: Any, example: str = "", **more: Any):
        super().__init__(*args, **{"epilog": f"example: {example}" if example else None, **more})


def main() -> int:
    """The command `fakeslurm`."""
    parser = Parser(prog=VERB, description="A Slurm in a folder, for laptops and CI.")
    add_to(parser)
    options = parser.parse_args()
    try:
        options.verb(options)
    except FakeSlurmError as error:
        print(f"{VERB}: {error}", file=sys.stderr)
        return 1
    return 0


def add_to(fake: argparse.ArgumentParser) -> None:
    """Adds the verbs. Their parsers have the class of `fake`, which takes an `example`, and set `verb`, a function that
    takes the parsed options and raises FakeSlurmError."""
    fake.epilog, fake.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    verbs = fake.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(name: str, run: Any, about: str, *arguments: str) -> argparse.ArgumentParser:
        example = f"{VERB} {EXAMPLES.get(name, name)}"
        sub: argparse.ArgumentParser = verbs.add_parser(name, help=about, description=about, example=example)
        sub.set_defaults(verb=run, parser=sub)
        sub.add_argument("--dir", metavar="DIR", help="its folder; default: this shell's, or the user's own")
        for argument in arguments:
            sub.add_argument(argument, metavar=argument.upper(), type=NUMBERS.get(argument, str))
        return sub

    def act(name: str, about: str, said: str, *arguments: str) -> None:
        """Adds a verb that calls the method of FakeCluster with the same name and arguments."""

        def run(options: argparse.Namespace) -> None:
            method = getattr(_attached(options), name.replace("-", "_"))
            method(*(getattr(options, argument) for argument in arguments))
            print(said.format(**vars(options)))

        verb(name, run, about, *arguments)

    _add_up(verb("up", up, "start a cluster"))
    act("down", "stop the cluster and everything that runs on it", "The fake cluster is down.")
    verb("status", status, "its nodes and jobs")
    verb("env", env, f'print what puts it on PATH: eval "$({VERB} env)"')
    verb("history", history, "print what happened on it, and what was broken")
    about = "move its clock forward: limits, warnings, grace times and delays pass"
    act("advance", about, "The cluster's clock went {seconds:g} s forward.", "seconds")
    act("preempt", "preempt a job, as one of a higher partition would", "Job {job} is being preempted.", "job")
    about = "kill one task of a job's newest step"
    act("kill-rank", about, "Rank {rank} of job {job} is being killed.", "job", "rank")
    back = f"`{VERB} resume {{node}}` brings it back."
    act("fail", "let a node die, and all that runs there", f"Node {{node}} is dead. {back}", "node")
    about = "let a node's slurmd die: srun launches no more tasks there, and Slurm does not know it"
    act("kill-slurmd", about, f"The slurmd of node {{node}} is dead. {back}", "node")
    act("drain", "let a node take no more jobs", f"Node {{node}} takes no more jobs. {back}", "node")
    act("resume", "bring back a node that died, was drained, or lost its slurmd", "Node {node} is back.", "node")
    sub = verb("slow", slow, "let the controller answer each command that much later; 0 ends it", "seconds")
    sub.add_argument("--for", dest="for_s", type=float, default=0, metavar="SECONDS", help="default: until told")
    verb("unreachable", unreachable, "let commands find no controller for so long; 0 ends it", "seconds")
    sub = verb("flaky", flaky, "let this part of all calls of sbatch fail, 0 to 1; 0 ends it", "rate")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="the same calls fail for the same seed")


def _add_up(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--nodes", type=int, metavar="N", help="default: 4, named n1 to n4")
    sub.add_argument("--cpus-per-node", type=int, metavar="N", help="default: 8")
    sub.add_argument("--gpus-per-node", type=int, metavar="N", help="default: 2")
    sub.add_argument("--shape", metavar="FILE.yaml", help="nodes, partitions and settings of your own")
    about = "60: a minute of time limit, grace or delay lasts 1 s"
    sub.add_argument("--time-scale", type=float, default=1.0, metavar="X", help=about)
    sub.add_argument(
        "--slurm-version",
        metavar="V",
        help="be a Slurm of that release: 22.05, 24.11 (the default), 26.05, or one between",
    )
    about = "each node has a /tmp, /var/tmp and /dev/shm of its own (Linux)"
    sub.add_argument("--node-local", action="store_true", help=about)
    about = "below those: a folder that all nodes share, such as that of the jobs; may be repeated"
    sub.add_argument("--shared", action="append", default=[], metavar="DIR", help=about)
    sub.add_argument("--quick", action="store_true", help="a controller that looks at limits every second")
    sub.add_argument("--flaky", type=float, default=0, metavar="RATE", help="this part of all calls of sbatch fails")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="which ones")


def _attached(options: argparse.Namespace) -> FakeCluster:
    from pathlib import Path

    from .cluster import FakeCluster

    if options.dir:
        return FakeCluster.attach(Path(options.dir))
    conf = Path(os.environ.get("SLURM_CONF", ""))
    return FakeCluster.attach(conf.parent if FakeCluster.owns(conf) else None)


def up(options: argparse.Namespace) -> None:
    from pathlib import Path

    from .cluster import FakeCluster

    shape = _shape(options)
    folder = Path(options.dir) if options.dir else FakeCluster.default_folder()
    if options.shared and not (options.node_local or shape.settings.node_local):
        raise FakeSlurmError(
            "--shared: all folders are shared without --node-local. Add --node-local, or leave it out."
        )
    cluster = FakeCluster(
        folder,
        shape=shape,
        slurm_version=options.slurm_version,
        node_local=options.node_local,
        shared=options.shared,
    ).up()
    if options.flaky:
        cluster.flaky(options.flaky, options.seed)
    where = f" --dir {shlex.quote(options.dir)}" if options.dir else ""
    print(f"A fake cluster of {len(shape.nodes)} nodes is up in {cluster.folder}.")
    print(f'Put it on PATH:  eval "$({VERB} env{where})"')
    print(f"Stop it:         {VERB} down{where}")
    if unknown := cluster.unknown_names:
        print("The nodes' names do not resolve here. For scripts that use them as addresses, add to /etc/hosts:")
        print(f"127.0.0.1 {' '.join(unknown)}")


def _shape(options: argparse.Namespace) -> Shape:
    from dataclasses import replace

    from .core.job_ids import fresh_job_id
    from .core.shape import Shape

    if not 0 < options.time_scale <= 10_000:
        raise FakeSlurmError(
            f"--time-scale: {options.time_scale:g} is out of range. Write 1 for real time, 60, ... 10000."
        )
    sizes = {"nodes": options.nodes, "cpus_per_node": options.cpus_per_node, "gpus_per_node": options.gpus_per_node}
    given = {name: value for name, value in sizes.items() if value is not None}
    for name, value in given.items():
        if value < (0 if name == "gpus_per_node" else 1):
            raise FakeSlurmError(f"--{name.replace('_', '-')}: {value} is too few. Write 1 or more.")
    if options.shape is None:
        shape = Shape.simple(**given, quick=options.quick, time_scale=options.time_scale)
        return replace(shape, settings=replace(shape.settings, first_job_id=fresh_job_id()))
    if given:
        raise FakeSlurmError(
            f"--{next(iter(given)).replace('_', '-')}: is also in the file of --shape. Keep one of the two."
        )
    return read_shape(options.shape, quick=options.quick, time_scale=options.time_scale, first_job_id=fresh_job_id())


def read_shape(file: str, *, quick: bool = False, time_scale: float = 1.0, first_job_id: int | None = None) -> Shape:
    """Returns the shape that a YAML file describes: see shape_file.py. Without PyYAML, it may only be JSON, which is
    YAML, too. Raises FakeSlurmError."""
    from .shape_file import shape_from

    try:
        with open(file, encoding="utf-8") as text:
            data = _read(file, text.read())
        return shape_from(data, quick=quick, time_scale=time_scale, first_job_id=first_job_id)
    except OSError as error:
        raise FakeSlurmError(f"--shape: {file}: {error.strerror}. Write the path of a YAML file.") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise FakeSlurmError(f"--shape: {file}: no YAML: {' '.join(str(error).split())}. Correct the file.") from None
    except FakeSlurmError as error:
        raise FakeSlurmError(f"{'' if str(error).startswith('--') else f'{file}: '}{error}") from None


def _read(file: str, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        import json

        try:
            return json.loads(text)
        except ValueError:
            remedy = "`pip install pyyaml`, or write JSON"
            raise FakeSlurmError(f"--shape: {file}: PyYAML is not installed here. {remedy}.") from None
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # reads all scalars as text: 2:00:00, OFF
    except yaml.YAMLError as error:
        raise FakeSlurmError(f"--shape: {file}: no YAML: {' '.join(str(error).split())}. Correct the file.") from None


def status(options: argparse.Namespace) -> None:
    print(_attached(options).status())


def env(options: argparse.Namespace) -> None:
    print(_attached(options).exports())


def history(options: argparse.Namespace) -> None:
    for event in _attached(options).history():
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.pop("time")))
        name = event.pop("event")
        print(when, f"{name:11}", " ".join(f"{key}={value}" for key, value in event.items()))


def slow(options: argparse.Namespace) -> None:
    _attached(options).slow(options.seconds, options.for_s)
    print(
        f"The controller answers {options.seconds:g} s late." if options.seconds else "The controller answers in time."
    )


def unreachable(options: argparse.Namespace) -> None:
    _attached(options).unreachable(options.seconds)
    print(f"The controller is away for {options.seconds:g} s." if options.seconds else "The controller is back.")


def flaky(options: argparse.Namespace) -> None:
    _attached(options).flaky(options.rate, options.seed)
    print(f"Of all calls of sbatch, {options.rate:.0%} fail.")
