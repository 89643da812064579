"""What goes wrong on a day: each fault is done to a run that trains on a fake cluster, and shows that it was there."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterdp.checkpoint import list_checkpoints
from clusterdp.checkpoint.format.layout import step_folder
from clusterdp.fakeslurm import FakeCluster
from clusterdp.rundir import Attempt
from tests.e2e.processes import keepers_of, ranks_of
from tests.e2e.run import Run
from tests.small_disk import fill
from tests.waiting import wait_for

AWAY_S = 15  # longer than Slurm's commands wait for their controller

Trace = Callable[[], bool]


@dataclass(frozen=True)
class Scene:
    """A run that trains. store: the folder of its checkpoints, on a small disk if it is a mount."""

    run: Run
    fake: FakeCluster
    store: Path
    dice: random.Random

    @property
    def attempt(self) -> Attempt:
        return self.run.files.attempts()[-1]

    def told(self, event: str) -> int:
        """How many such events the fake cluster's history has."""
        return sum(each["event"] == event for each in self.fake.history())

    def notices(self, words: str) -> int:
        """How many such words Slurm has written into the job's output."""
        return sum(file.read_text(errors="replace").count(words) for file in self.run.files.path.glob("*.out"))

    def a_rank(self) -> tuple[int, int]:
        """One of them by chance, and its process."""
        return self.dice.choice(sorted(ranks_of(self.run).items()))

    def wait_for(self, what: str, look: Callable[[], bool], timeout_s: float = 60) -> None:
        wait_for(what, look, timeout_s, every_s=0.2, report=self.run.account)


@dataclass(frozen=True)
class Fault:
    """do: returns what says whether the fault is on record. That is asked when the run trains again, and mends what is
    still broken. causes: of the attempt's end, of which one must be on record; none if it is to go on.
    """

    do: Callable[[Scene], Trace]
    causes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.do.__name__.replace("_", " ")


def preempted_with_grace(scene: Scene) -> Trace:
    before = scene.told("preempt")
    scene.fake.preempt(scene.run.job)
    return lambda: scene.told("preempt") == before + 1


def preempted_without_grace(scene: Scene) -> Trace:
    before = scene.told("preempt")
    scene.fake.preempt(scene.run.job, grace_s=0)
    return lambda: scene.told("preempt") == before + 1


def requeued_by_scontrol(scene: Scene) -> Trace:
    before = scene.notices("DUE TO JOB REQUEUE")
    scene.run.cluster.run("scontrol", "requeue", scene.run.job)
    return lambda: scene.notices("DUE TO JOB REQUEUE") > before


def rank_killed(scene: Scene) -> Trace:
    attempt, (_, pid) = scene.attempt, scene.a_rank()
    os.kill(pid, signal.SIGKILL)
    return lambda: (attempt.path / "exit").read_text().split()[0] == "137"


def rank_stopped(scene: Scene) -> Trace:
    attempt, (rank, pid) = scene.attempt, scene.a_rank()
    os.kill(pid, signal.SIGSTOP)
    return lambda: attempt.hung.exists() and f"rank {rank} on n" in attempt.hang.read_text()


def node_lost(scene: Scene) -> Trace:
    """It is repaired when Slurm has noticed: the nodes that the run avoids leave it no more than it needs."""
    before, lost = scene.told("fail"), scene.notices("DUE TO NODE FAILURE")
    nodes = scene.run.cluster.run("squeue", "-h", "-j", scene.run.job, "-o", "%N").strip()
    node = scene.dice.choice(scene.run.cluster.run("scontrol", "show", "hostnames", nodes).split())
    scene.fake.fail(node)
    scene.wait_for("the loss", lambda: scene.notices("DUE TO NODE FAILURE") > lost)
    scene.fake.resume(node)
    return lambda: scene.told("fail") == before + 1


def rank_killed_when_no_controller_answers(scene: Scene) -> Trace:
    before = scene.told("unreachable")
    scene.fake.unreachable(AWAY_S)
    killed = rank_killed(scene)
    return lambda: scene.told("unreachable") == before + 1 and killed()


def controller_killed_and_started_again(scene: Scene) -> Trace:
    """The commands of users start the fake's."""
    pid_file = scene.fake.folder / "daemon.pid"
    before = pid_file.read_text()
    os.kill(int(before), signal.SIGKILL)
    scene.run.cluster.run("squeue")
    return lambda: pid_file.read_text() != before


def newest_checkpoint_damaged_and_rank_killed_with_keepers(scene: Scene) -> Trace:
    """The keepers too, because a newer copy in memory would be used."""
    attempt, saved = scene.attempt, len(scene.run.events("saved"))
    scene.wait_for("a checkpoint", lambda: len(scene.run.events("saved")) > saved)
    newest = list_checkpoints(scene.store)[-1]
    data = next((scene.store / step_folder(newest.step)).glob(f"{newest.token}-[nr]0000[.-][so]*"))
    with data.open("r+b") as file:
        at = scene.dice.randrange(data.stat().st_size)
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    for pid in keepers_of(scene.run):
        os.kill(pid, signal.SIGKILL)
    killed = rank_killed(scene)

    def trace() -> bool:
        since = [each for each in scene.run.events("restored") if each["attempt"] != attempt.name]
        return killed() and since[-1]["step"] < newest.step

    return trace


def disk_full_for_a_while(scene: Scene) -> Trace:
    """A save fails, and the training goes on."""
    before = len(scene.run.events("save-failed"))
    filler = scene.store / "filler"
    fill(filler)
    scene.wait_for("a save to fail", lambda: len(scene.run.events("save-failed")) > before)
    filler.unlink()
    return lambda: "No space left" in scene.run.events("save-failed")[-1]["error"]


FAULTS = (
    Fault(preempted_with_grace, ("preempted",)),
    Fault(preempted_without_grace, ("preempted",)),
    Fault(requeued_by_scontrol, ("requeued",)),
    Fault(rank_killed, ("crash",)),
    Fault(rank_stopped, ("hung",)),
    Fault(node_lost, ("node-lost",)),
    Fault(rank_killed_when_no_controller_answers, ("crash",)),
    Fault(controller_killed_and_started_again),
    Fault(newest_checkpoint_damaged_and_rank_killed_with_keepers, ("crash",)),
)
DISK = Fault(disk_full_for_a_while)  # where the checkpoints are on a small disk
