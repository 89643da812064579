"""Drills in which a job with a range of nodes comes back on another number of nodes."""

from __future__ import annotations

from dataclasses import replace

from clusterdp.batch.files.rules import read_rules
from clusterdp.rehearse.drills.losses import job_nodes
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.drills.stops import preempt
from clusterdp.rehearse.run_spec import Missed, NotPossibleHere
from clusterdp.slurm.hostlist import compress
from clusterdp.wording import counted


def fewer_nodes(scene: Scene) -> None:
    """Preempts the job, and leaves it its least number of nodes."""
    scene.wait_moment()
    _lose_nodes(scene)


def more_nodes(scene: Scene) -> None:
    """Preempts the job when it has its least number of nodes, and gives all of them back."""
    scene.wait_progress(0.3)
    drained = _lose_nodes(scene)
    scene.wait_progress(0.6)
    scene.cluster.run("scontrol", "update", f"NodeName={compress(drained)}", "State=RESUME")
    _preempt(scene, len(job_nodes(scene)) + len(drained))


def _lose_nodes(scene: Scene) -> list[str]:
    """Drains all nodes but the least that the job needs, and preempts it. Returns the job's nodes that are drained."""
    if not scene.cluster.ranks_are_here:
        raise NotPossibleHere("nodes of a real cluster are not drained")
    least = read_rules(str(scene.run.path / "batch")).job_nodes
    before, others = job_nodes(scene), scene.cluster.run("sinfo", "-h", "-N", "-o", "%N").split()
    drained = sorted({*others} - {*before[:least]})
    scene.cluster.run("scontrol", "update", f"NodeName={compress(drained)}", "State=DRAIN", "Reason=rehearsal")
    _preempt(scene, least)
    return [node for node in before if node in drained]


def _preempt(scene: Scene, nodes: int) -> None:
    had = len(job_nodes(scene))
    attempt = preempt(scene, scene.grace_s)
    scene.wait_next_attempt(attempt)
    if (got := len(job_nodes(scene))) != nodes:
        raise Missed(f"the next attempt got {got} nodes, not {nodes}")
    hit = scene.hits[-1]
    scene.hits[-1] = replace(hit, evidence=f"{hit.evidence}; {had} -> {counted(nodes, 'node')}")
