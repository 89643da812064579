"""A sweep is one job array. Each element is preempted, requeued, cancelled and resumed by itself."""

from __future__ import annotations

import contextlib
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterdp.rundir import SweepDir
from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(900)

# Notes each of its attempts. Fails at once, or runs until there is a file `stop`. Some save at a TERM, and end with 0.
PROGRAM = """\
import os, pathlib, signal, sys, time
if sys.argv[1].startswith("save"):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open(os.environ["CLUSTERDP_RUN_DIR"] + "/ran", "a") as file:
    print(os.environ["CLUSTERDP_ATTEMPT"], file=file)
if sys.argv[1].startswith("fail"):
    sys.exit(3)
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class SweepRun:
    cluster: Cluster
    folder: SweepDir
    array: str
    project: Path

    def element(self, number: int) -> Run:
        return Run(self.cluster, self.folder.element(number), f"{self.array}_{number}")

    def elements(self) -> list[Run]:
        return [self.element(number) for number in self.folder.numbers()]

    def states(self) -> list[str]:
        """By `clusterdp sweep`, in the order of the elements."""
        done = clusterdp(self.cluster, self.project, "sweep", str(self.folder.path), "--json")
        assert done.returncode == 0, done.stderr
        return [
            row["state"] for row in sorted(json.loads(done.stdout)["elements"], key=lambda row: int(row["element"]))
        ]

    def ran(self, number: int) -> list[str]:
        path = self.folder.element(number).path / "ran"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def account(self) -> str:
        return "\n".join(run.account() for run in self.elements())


@pytest.fixture
def start(cluster: Cluster, project: Path) -> Iterator[Callable[..., SweepRun]]:
    """Submits a sweep, which does not outlive its test."""
    started: list[SweepRun] = []

    def start(*words: str, sweeps: tuple[str, ...], run_dir: str = "s") -> SweepRun:
        options = [word for sweep in sweeps for word in ("--sweep", sweep)]
        words = ("submit", *words, *options, f"run_dir={project}/{run_dir}", "--cluster", "slurm")
        done = clusterdp(cluster, project, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        said = re.match(r"Submitted job (\d+): \d+ elements in (.+)\n", done.stdout)
        assert said, done.stdout
        started.append(SweepRun(cluster, SweepDir(Path(said[2])), said[1], project))
        return started[-1]

    yield start
    for sweep in started:
        (project / "stop").touch()
        cluster.run("scancel", sweep.array)


@pytest.fixture
def programs(project: Path) -> str:
    """A config of programs, which do what `params.does` says."""
    (project / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", "${params.does}", f"{project}/stop"]
    config = {"command": command, "params": {"does": "???"}, "restart": {"max_crashes": 0}}
    (project / "job.yaml").write_text(json.dumps(config))
    return "job.yaml"


def test_sweep_elements_are_preempted_failed_and_cancelled_independently(
    cluster: Cluster, start: Callable[..., SweepRun], programs: str, project: Path
) -> None:
    """The last element has the array's own job id: if that were requeued or cancelled, all would be."""
    each_on_a_node = ("resources.partition=low", "resources.exclusive=true")
    sweep = start(programs, *each_on_a_node, sweeps=("params.does=wait-0,fail-1,wait-2,wait-3",))
    cancelled, last = (sweep.element(number).job for number in (2, 3))
    wait_for("all to run", lambda: all(sweep.ran(number) for number in range(4)), 60, report=sweep.account)
    assert cluster.run("squeue", "-h", "-j", last, "-o", "%A").strip() == sweep.array
    assert clusterdp(cluster, project, "cancel", cancelled).returncode == 0
    wait_for("the cancelled one to end", lambda: cluster.state(cancelled)[0] == "CANCELLED", 60, report=sweep.account)
    cluster.preempt(last)
    cluster.start_now(last)
    wait_for("the last to run again", lambda: len(sweep.ran(3)) == 2, 60, report=sweep.account)
    assert sweep.states() == ["running", "failed", "cancelled", "running"], sweep.account()
    (project / "stop").touch()
    for number in (0, 3):
        sweep.element(number).wait_end()
    assert sweep.ran(3) == [f"{last}.0", f"{last}.1"]
    assert sweep.element(3).causes() == ["preempted", "done"]
    assert [len(sweep.ran(number)) for number in range(3)] == [1, 1, 1], sweep.account()
    assert sweep.states() == ["done", "failed", "cancelled", "done"], sweep.account()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("does", ["wait", "save"])
def test_sweep_element_ending_in_its_grace_time_is_requeued_once_and_alone(
    cluster: Cluster, start: Callable[..., SweepRun], programs: str, project: Path, does: str
) -> None:
    """From 24.05 on Slurm requeues such a job itself, and up to 25.11 once more at its next end. The last element has
    the array's own job id."""
    each_on_a_node = ("resources.partition=low", "resources.exclusive=true")
    sweep = start(programs, *each_on_a_node, sweeps=(f"params.does={does}-0,{does}-1,{does}-2",))
    alone, middle, last = (element.job for element in sweep.elements())
    wait_for("all to run", lambda: all(sweep.ran(number) for number in range(3)), 60, report=sweep.account)
    ids = {job: cluster.run("squeue", "-h", "-j", job, "-o", "%A").strip() for job in (alone, middle, last)}
    assert [job for job, own in ids.items() if own == sweep.array] == [last]
    for number, job in ((1, middle), (2, last)):
        cluster.preempt(job)
        cluster.start_now(job)
        wait_for(f"{job} to run again", lambda n=number: len(sweep.ran(n)) == 2, 60, report=sweep.account)
        assert sweep.states() == ["running"] * 3, sweep.account()
    (project / "stop").touch()
    for element in sweep.elements():
        assert element.wait_end() == "COMPLETED", sweep.account()
    assert [sweep.ran(n) for n in range(3)] == [
        [f"{alone}.0"],
        [f"{middle}.0", f"{middle}.1"],
        [f"{last}.0", f"{last}.1"],
    ]
    assert [element.causes() for element in sweep.elements()] == [["done"], *[["preempted", "done"]] * 2]
    assert [len(element.events("requeued")) for element in sweep.elements()] == [0, 1, 1], sweep.account()
    assert len(sweep.element(0).files.attempts()) == 1, "Slurm has requeued an element that nobody has preempted"
    assert sweep.states() == ["done"] * 3, sweep.account()


RECIPE = ("configs/linear.yaml", "resources.tasks_per_node=1", "resources.partition=low", "checkpoint.every_s=1")
SHORT = ("params.epochs=3", "params.batch_size=32", "restart.max_crashes=50", "restart.max_no_progress=50")
RATES = "params.lr=0.05,0.03,0.02,0.01"
SEEDS = "train.seed=1,2"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_preempted_or_killed_sweep_elements_end_bit_for_bit_like_undisturbed_ones(
    cluster: Cluster, start: Callable[..., SweepRun]
) -> None:
    """Five of each kind on the fake; each kind has a twin that is left alone."""
    kinds = (RATES, SEEDS) if cluster.name == "fake" else ("params.lr=0.05,0.03,0.02",)
    delays = (0.02, 0.021, 0.022, 0.023, 0.024) if cluster.name == "fake" else (0.05, 0.051)
    twins = start(*RECIPE, *SHORT, "params.step_delay_s=0", sweeps=kinds, run_dir="twins")
    for twin in twins.elements():
        assert twin.wait_end(600) == "COMPLETED", twin.account()
    swept = f"params.step_delay_s={','.join(map(str, delays))}"
    sweep = start(*RECIPE, *SHORT, "restart.start.wait_s=0", sweeps=(*kinds, swept))
    runs, dice = sweep.elements(), random.Random(7)
    assert len(runs) == len(twins.elements()) * len(delays)
    harm(sweep, dice, blows=len(runs))
    for run in runs:
        assert run.wait_end(900) == "COMPLETED", run.account()
    ended = [run.causes() for run in runs]
    assert sum(len(causes) > 1 for causes in ended) >= len(runs) // 4, f"too few of them were disturbed: {ended}"
    for number, run in enumerate(runs):
        assert run.digest() == twins.element(number // len(delays)).digest(), run.account()
    assert set(sweep.states()) == {"done"}


def harm(sweep: SweepRun, dice: random.Random, blows: int) -> None:
    """Preempt one that runs, with whatever else is on its node, or kill its ranks; again and again."""
    for _ in range(blows):
        rows = sweep.cluster.run("squeue", "-h", "-t", "R,PD", "-j", sweep.array, "-o", "%i %T").splitlines()
        running = [row.split()[0] for row in rows if row.endswith("RUNNING")]
        if not rows:
            return
        if not running:
            time.sleep(1)  # between two attempts of all that are left
            continue
        job = dice.choice(running)
        if dice.random() < 0.6:
            with contextlib.suppress(AssertionError):  # it has just ended
                sweep.cluster.preempt(job)
        else:
            sweep.cluster.ask("scancel", "--signal=ABRT", job)  # KILL would be a scancel
        time.sleep(dice.uniform(0, 1))
