"""`control`, not a command of Slurm: FakeCluster uses it to cause faults, to wait, and to move the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...core.error_texts import ControllerError, Refusal
from ...core.hostlist import compress
from ...core.job_ids import find, parse
from ...core.model import BATCH
from ...core.orders import KillRank
from ...slurmctld import nodes, requeue
from ...slurmctld.timers import advance

if TYPE_CHECKING:
    from ...slurmctld.connection import Connection
    from ...slurmctld.controller import Controller
    from ...slurmctld.daemon import Daemon

FOREVER = 1e9  # seconds that stand for "without end", because JSON has no infinity


async def run(client: Connection, daemon: Daemon) -> int:
    verb, *words = client.words
    if verb in BREAKING:
        act, names = BREAKING[verb]
        act(daemon.controller, *words)
        daemon.controller.records.history.write(verb, **dict(zip(names, words, strict=False)))
    elif verb == "wait":
        return await _wait(client, daemon, words[0], words[1:])
    elif verb == "stop":
        client.print("stopping")
        await client.exit(0)
        daemon.stop()
        await asyncio.sleep(0)
    elif verb == "lifeline":  # the cluster's owner keeps this connection open: when it closes, the owner has died
        client.print("held")
        await client.flush()
        await client.hung_up()
        daemon.stop()
    elif verb != "ping":
        raise Refusal(f"{verb}: not a word for a fake cluster.")
    return 0


async def _wait(client: Connection, daemon: Daemon, job: str, states: list[str]) -> int:
    """Waits until the job (all elements of an array) is in one of these states, and prints the job's state."""
    while True:
        name = parse(job)
        jobs = find(daemon.model, name) if name else []
        if not jobs:
            raise Refusal(f"{job}: no such job. Look with `squeue -t all`.")
        if all(each.shown_state.value in states for each in jobs):
            client.print(jobs[0].shown_state.value)
            return 0
        if all(each.over for each in jobs):
            raise Refusal(f"{job}: ended as {jobs[0].state.value}, waited for {' or '.join(states)}.")
        await daemon.change()


# -- faults that FakeCluster causes; all arguments are text --


def _preempt(controller: Controller, job: str, grace_s: str | None = None) -> None:
    name = parse(job)
    jobs = [each for each in find(controller.model, name) if each.running] if name else []
    if not jobs:
        raise Refusal(f"{job}: no such job is running. Look with `squeue`.")
    for each in jobs:
        requeue.preempt(controller, each, None if grace_s is None else float(grace_s))


def _node(act: Callable[[Controller, str], None]) -> Callable[[Controller, str], None]:
    def on_node(controller: Controller, node: str) -> None:
        if node not in controller.model.nodes:
            raise Refusal(f"{node}: no such node. There are {compress(controller.model.nodes)}.")
        try:
            act(controller, node)
        except ControllerError as error:
            raise Refusal(f"{node}: {error}.") from None

    return on_node


def _drain(controller: Controller, node: str) -> None:
    nodes.set_node(controller, node, "DRAIN", "drained on purpose")


def _kill_rank(controller: Controller, job: str, rank: str) -> None:
    """Kills the task with this rank in the job's newest step that has so many tasks. A step with --overlap, which helps
    or watches another step, counts only if there is no other."""
    name = parse(job)
    for each in find(controller.model, name) if name else []:
        steps = [step for step in reversed(each.steps) if step.live and step.id != BATCH and int(rank) < step.tasks]
        if steps:
            step = next((step for step in steps if not step.overlap), steps[0])
            controller.runner.order(each, step, KillRank(int(rank)))
            return
    raise Refusal(f"{job}: no step runs there that has a rank {rank}. Look with `squeue --steps`.")


def _advance(controller: Controller, seconds: str) -> None:
    advance(controller, float(seconds))


def _slow(controller: Controller, by_s: str, for_s: str) -> None:
    faults = controller.model.faults
    faults.slow_s, faults.slow_until = float(by_s), time.monotonic() + (float(for_s) or FOREVER)
    controller.records.faults()


def _unreachable(controller: Controller, for_s: str) -> None:
    controller.model.faults.away_until = time.monotonic() + float(for_s)
    controller.records.faults()


def _flaky(controller: Controller, rate: str, seed: str) -> None:
    faults = controller.model.faults
    faults.flaky, faults.seed, faults.drawn = float(rate), int(seed), 0
    controller.records.faults()


# by the name of the fault: its function, and the names of the function's arguments in the history
BREAKING: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "preempt": (_preempt, ("job", "grace_s")),
    "fail": (_node(nodes.fail_node), ("node",)),
    "kill-slurmd": (_node(nodes.kill_slurmd), ("node",)),
    "drain": (_node(_drain), ("node",)),
    "resume": (_node(nodes.restore_node), ("node",)),
    "kill-rank": (_kill_rank, ("job", "rank")),
    "advance": (_advance, ("seconds",)),
    "slow": (_slow, ("by_s", "for_s")),
    "unreachable": (_unreachable, ("for_s",)),
    "flaky": (_flaky, ("rate", "seed")),
}
