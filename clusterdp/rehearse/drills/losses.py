"""Drills in which a rank dies or hangs, or a node fails."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from clusterdp import procfs
from clusterdp.batch.files.rules import read_rules
from clusterdp.batch.nodes import keeper
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.run_spec import Missed, NotPossibleHere
from clusterdp.rundir import read_events

CRASHES = ("crash", "start", "memory")
KEEPER_S = 10.0  # limit of the seconds for the start of a node's keeper, which is later than that of the ranks
NAMED_S = 20.0  # limit of the seconds until a silent node is named, on a busy machine


def rank_killed(scene: Scene) -> None:
    """Kills a rank by SIGKILL, as the kernel's out-of-memory killer does."""
    scene.wait_moment()
    attempt = scene.newest()
    rank = _a_rank(scene) if scene.cluster.ranks_are_here else 0
    workers = scene.live.ranks().get(rank, [])
    if any(processes.variable(pid, "GROUP_RANK") for pid in workers):  # torchrun, of which Slurm knows only the agent
        scene.kill(workers)
    else:
        scene.mark()
        scene.cluster.kill_rank(scene.job, rank)
    who = f"rank {rank}" if scene.cluster.ranks_are_here else "all ranks"
    scene.hit(f"{who} got SIGKILL", *CRASHES, attempt=attempt)


def node_lost(scene: Scene) -> None:
    """Makes a node of the job fail, which loses the files in its node-local folders. The cluster has a spare node."""
    _fail(scene, lambda: scene.dice.choice(job_nodes(scene)), "node-lost", "lost")


def node_replaced(scene: Scene) -> None:
    """Makes a node of the ranks fail, but not that of the batch script. The ranks must go on in the same job: on a
    spare node, or on the nodes that are left."""
    others = _nodes(scene)[1:]
    if not others:
        raise NotPossibleHere("the ranks run on one node, where the batch script runs, too")
    if not read_rules(str(scene.run.path / "batch")).may_lose_nodes:
        raise NotPossibleHere("the ranks do not start again in the same job (restart.in_place)")
    _fail(scene, lambda: scene.dice.choice(others), *CRASHES, "node-lost", in_place=True)


def batch_host_lost(scene: Scene) -> None:
    """Makes the node of the batch script fail. Another node of the job must requeue it."""
    if not sys.platform.startswith("linux"):
        raise NotPossibleHere("the nodes have keepers, of which another requeues the job, only on Linux")
    node = _nodes(scene)[0]
    scene.wait("the keepers", lambda: all(_has_keeper(scene, each) for each in job_nodes(scene)), KEEPER_S)
    _fail(scene, lambda: node, "node-lost")


def _fail(scene: Scene, choose: Callable[[], str], *causes: str, in_place: bool = False) -> None:
    """Makes the node fail that `choose` returns, at a moment of the training."""
    if local := scene.cluster.wrongly_shared(scene.facts.written):
        raise NotPossibleHere(f"the program writes {local[0]}, and nodes have no /tmp of their own on this machine")
    scene.wait_moment()
    attempt, node = scene.newest(), choose()
    scene.mark()
    scene.cluster.fail(node)
    scene.hit(f"node {node} failed", *causes, attempt=attempt, in_place=in_place)


def node_stopped(scene: Scene) -> None:
    """Stops all processes of a node by SIGSTOP until the node is named as silent, and lets them go on."""
    others = _nodes(scene)[1:]
    if not others or not sys.platform.startswith("linux"):
        raise NotPossibleHere("a node is named as silent only beside others, and on Linux")
    scene.wait_moment()
    node = scene.dice.choice(others)
    scene.wait("the keeper of the node", lambda: _has_keeper(scene, node), KEEPER_S)
    pids = processes.of_node(scene.job, node)
    began = time.monotonic()
    processes.send(pids, signal.SIGSTOP)
    try:
        scene.wait("the name of the silent node", lambda: _is_named(scene, node), NAMED_S, every_s=0.1)
    finally:
        processes.send(pids, signal.SIGCONT)
    took_s = time.monotonic() - began
    scene.hit(f"all processes of node {node} stood still, and it was named as silent after {took_s:.1f} s")


def job_nodes(scene: Scene) -> list[str]:
    """Returns the nodes of the job, spare ones included."""
    names = scene.cluster.run("squeue", "-h", "-j", scene.job, "-o", "%N").strip()
    return scene.cluster.run("scontrol", "show", "hostnames", names).split()


def _has_keeper(scene: Scene, node: str) -> bool:
    file = os.path.basename(keeper.__file__).encode()
    words = (word for pid in processes.of_node(scene.job, node) for word in procfs.command(pid))
    return any(os.path.basename(word) == file for word in words)


def _nodes(scene: Scene) -> list[str]:
    """Returns the nodes of the ranks, that of rank 0 first, on which the batch script runs."""
    if not scene.cluster.ranks_are_here:
        raise NotPossibleHere("the ranks run on other machines")
    scene.wait("the ranks", lambda: bool(scene.live.ranks()), scene.patience_s)
    ranks = sorted(scene.live.ranks().items())
    return list(dict.fromkeys(processes.variable(pids[-1], "SLURMD_NODENAME") for _, pids in ranks if pids))


def _is_named(scene: Scene, node: str) -> bool:
    named = [str(event.get("nodes")) for event in read_events(scene.run) if event["event"] == "silent"]
    return any(node in nodes.split(",") for nodes in named)


def rank_hung(scene: Scene) -> None:
    """Stops a rank by SIGSTOP: the rank hangs, but is alive."""
    if not _can_see_hangs(scene):
        raise NotPossibleHere("restart.hang_after_s is not set: nobody looks whether a program of its own hangs")
    scene.wait_moment()
    rank, attempt = _a_rank(scene), scene.newest()
    pids = scene.live.ranks()[rank]
    if not pids:
        raise Missed(f"rank {rank} has no process")
    processes.send(pids[:1], signal.SIGSTOP)
    scene.hit(f"rank {rank} got SIGSTOP", "hung", attempt=attempt)


def _a_rank(scene: Scene) -> int:
    ranks = sorted(scene.live.ranks(fresh=True))
    if not ranks and not scene.cluster.ranks_are_here:
        raise NotPossibleHere("the ranks run on other machines")
    if not ranks:
        raise Missed("no rank runs")
    return scene.dice.choice(ranks)


def _can_see_hangs(scene: Scene) -> bool:
    return scene.is_ours or scene.watches_silence
