"""Drills in which a rank dies or hangs, or a node fails."""

from __future__ import annotations

import signal

from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.run_spec import Missed, NotPossibleHere

CRASHES = ("crash", "start", "memory")


def rank_killed(scene: Scene) -> None:
    """Kills a rank by SIGKILL, as the kernel's out-of-memory killer does."""
    scene.wait_moment()
    attempt = scene.newest()
    rank = _a_rank(scene) if scene.cluster.ranks_are_here else 0
    workers = scene.live.ranks().get(rank, [])
    if any(processes.variable(pid, "GROUP_RANK") for pid in workers):  # torchrun, of which Slurm knows only the agent
        scene.kill(workers)
    else:
        scene.cluster.kill_rank(scene.job, rank)
    who = f"rank {rank}" if scene.cluster.ranks_are_here else "all ranks"
    scene.hit(f"{who} got SIGKILL", *CRASHES, attempt=attempt)


def node_lost(scene: Scene) -> None:
    """Makes a node of the job fail, which loses the files in its node-local folders. The cluster has a spare node."""
    if local := scene.cluster.wrongly_shared(scene.facts.written):
        raise NotPossibleHere(f"the program writes {local[0]}, and nodes have no /tmp of their own on this machine")
    scene.wait_moment()
    attempt = scene.newest()
    names = scene.cluster.run("squeue", "-h", "-j", scene.job, "-o", "%N").strip()
    node = scene.dice.choice(scene.cluster.run("scontrol", "show", "hostnames", names).split())
    scene.cluster.fail(node)
    scene.hit(f"node {node} failed", "node-lost", "lost", attempt=attempt)


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
