"""The main job from submit to end: left alone, preempted, out of time, cancelled, with a killed rank.

If one fails, users lose training."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.processes import agents_of, command_of, copies_of, ranks_of, skip_without_keepers
from tests.e2e.run import Run, clusterdp, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(360)

STEPS = 88  # 2 epochs of 44 batches over 4 ranks
DIGITS = ("params.epochs=2", "checkpoint.every_s=2")


@dataclass(frozen=True)
class Reference:
    """A run that was left alone, and what every interrupted one must come to."""

    script: str
    digest: str


@pytest.fixture(scope="session")
def reference_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Cluster], Reference]:
    """Trains once a cluster, each time in a run folder of the same name: to the end, in one attempt."""
    folder = tmp_path_factory.mktemp("reference")
    known: dict[str, Reference] = {}

    def reference(cluster: Cluster) -> Reference:
        if cluster.name not in known:
            run = submit(cluster, folder, "configs/digits.yaml", f"run_dir={folder}/run", *DIGITS)
            assert run.wait_end() == "COMPLETED", run.account()
            assert run.causes() == ["done"], run.account()
            assert run.metrics()[-1]["test_accuracy"] > 0.9
            known[cluster.name] = Reference(run.files.script.read_text(), run.digest())
            run.files.path.rename(folder / f"run-{cluster.name}")
        return known[cluster.name]

    return reference


@pytest.fixture
def start(cluster: Cluster, project: Path) -> Iterator[Callable[..., Run]]:
    """Submits the digits in slow motion; whatever comes, the job does not outlive its test."""
    started: list[Run] = []

    def start(*overrides: str, delay_s: float = 0.1) -> Run:
        words = (*DIGITS, f"params.step_delay_s={delay_s}", f"run_dir={project}/run")
        started.append(submit(cluster, project, "configs/digits.yaml", *words, *overrides))
        return started[-1]

    yield start
    for run in started:
        cluster.run("scancel", run.job)


@pytest.mark.slurm
def test_same_script_has_the_same_result_on_fake_and_real_slurm(
    fake_cluster: Cluster, real_cluster: Cluster, reference_on: Callable[[Cluster], Reference]
) -> None:
    fake, real = reference_on(fake_cluster), reference_on(real_cluster)
    assert fake.script.encode() == real.script.encode()
    assert fake.digest == real.digest


@pytest.mark.parametrize(
    ("builder", "partition"),
    [
        pytest.param("backend=sbatch", "low", marks=pytest.mark.slow),  # here; in test-slurm it runs all the same
        pytest.param("backend=sbatch", "low0", marks=pytest.mark.slow),
        pytest.param("backend=submitit", "low", marks=pytest.mark.slow),
        pytest.param("backend=submitit", "low0", marks=pytest.mark.slow),
        pytest.param("launch.launcher=torchrun", "low", marks=pytest.mark.slow),
        pytest.param("launch.launcher=torchrun", "low0", marks=pytest.mark.slow),
    ],
)
def test_preempted_job_ends_bit_for_bit_like_an_undisturbed_one(
    cluster: Cluster,
    start: Callable[..., Run],
    reference_on: Callable[[Cluster], Reference],
    builder: str,
    partition: str,
) -> None:
    run = start(f"resources.partition={partition}", builder)
    run.wait_step(20)
    cluster.preempt(run.job)
    assert run.wait_end() == "COMPLETED", run.account()
    causes = run.causes()
    assert len(causes) == 2, run.account()
    assert causes[-1] == "done", run.account()
    assert_no_step_lost(run)
    assert run.digest() == reference_on(cluster).digest


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["srun", pytest.param("torchrun", marks=pytest.mark.long)])
def test_job_with_a_killed_rank_ends_bit_for_bit_in_one_allocation(
    cluster: Cluster, start: Callable[..., Run], reference_on: Callable[[Cluster], Reference], launcher: str
) -> None:
    skip_without_keepers(cluster)
    run = start(f"launch.launcher={launcher}", "checkpoint.every_s=null")
    wait_for("a copy in memory", lambda: copies_of(run), 90, report=run.account)
    os.kill(ranks_of(run)[2], signal.SIGKILL)
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.all_causes() == {f"{run.job}.0": "crash", f"{run.job}.0.1": "done"}, run.account()
    assert not run.events("requeued"), run.account()
    (restored,) = run.events("restored")
    assert (restored["step"] > 0, restored["memory"]) == (True, True), run.account()
    assert run.digest() == reference_on(cluster).digest


@pytest.mark.slow
def test_job_with_a_killed_agent_ends_bit_for_bit_in_one_allocation(
    cluster: Cluster, start: Callable[..., Run], reference_on: Callable[[Cluster], Reference]
) -> None:
    run = start()
    run.wait_step(3)
    agents = agents_of(run)
    os.kill(agents[-1], signal.SIGKILL)
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.all_causes() == {f"{run.job}.0": "crash", f"{run.job}.0.1": "done"}, run.account()
    assert len(agents) == 2
    assert not agents_of(run)
    assert run.digest() == reference_on(cluster).digest


@pytest.mark.slow
@pytest.mark.long
def test_requeued_job_resumes_from_the_copy_in_memory(
    cluster: Cluster, start: Callable[..., Run], reference_on: Callable[[Cluster], Reference]
) -> None:
    skip_without_keepers(cluster)
    run = start("restart.in_place=false", "checkpoint.every_s=null")
    wait_for("a copy in memory", lambda: copies_of(run), 90, report=run.account)
    os.kill(ranks_of(run)[2], signal.SIGKILL)
    wait_for("the requeue", lambda: run.events("requeued"), 60, report=run.account)
    saved = run.events("saved")
    assert [event.get("memory") for event in saved] == [True], run.account()
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.events("restored")[0]["step"] == saved[0]["step"] > 0, run.account()
    assert run.digest() == reference_on(cluster).digest


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "saving", [("checkpoint.every_s=0.5",), ("checkpoint.every_s=null", "checkpoint.memory_s=0.3")]
)
def test_job_killed_at_random_instants_ends_bit_for_bit(
    cluster: Cluster,
    start: Callable[..., Run],
    reference_on: Callable[[Cluster], Reference],
    project: Path,
    saving: tuple[str, ...],
) -> None:
    dice, kills, most = random.Random(SEED), 0, KILLS
    in_memory = "checkpoint.every_s=null" in saving
    longest_s = 20 if in_memory else 4  # many lives get to a copy in memory, or a checkpoint
    run = start(*NO_LIMITS, *saving, delay_s=most / (12 if in_memory else 20))  # of which less is lost
    while (state := cluster.state(run.job))[0] != "COMPLETED":
        if state == ("PENDING", "BeginTime"):
            cluster.start_now(run.job)
        elif state[0] == "FAILED":  # because its batch program was killed
            run = resumed(run, project)
        elif kills < most:
            time.sleep(dice.uniform(0, longest_s))
            victims = chosen(run, dice)
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            kills += bool(victims)
        else:
            time.sleep(0.2)
    assert kills == most, f"{kills} kills\n{run.account()}"
    assert run.digest() == reference_on(cluster).digest, f"{kills} kills\n{run.account()}"
    if "checkpoint.every_s=null" in saving:
        assert [event for event in run.events("restored") + run.events("saved") if event.get("memory")], run.account()


# They are read here, because a fixture removes such variables.
SEED, KILLS = int(os.environ.get("CLUSTERDP_SEED", "1")), int(os.environ.get("CLUSTERDP_KILLS", "12"))
NO_LIMITS = (
    "restart.max_crashes=1000",
    "restart.max_no_progress=1000",
    *(f"restart.{cause}.limit=null" for cause in ("crash", "start", "memory", "hung")),
)


def chosen(run: Run, dice: random.Random) -> list[int]:
    """The process ids of a rank, of all ranks of a node, or of the batch program; none if there are none yet."""
    ranks = ranks_of(run)
    if dice.random() < 0.1:
        return batch_programs(run)
    if not ranks or dice.random() < 0.6:
        return [dice.choice(list(ranks.values()))] if ranks else []
    node = dice.randrange(2)
    return [pid for rank, pid in ranks.items() if rank // 2 == node]


def batch_programs(run: Run) -> list[int]:
    mark = f"{run.files.path}/batch"
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if mark in command_of(int(folder.name))[:6]]


def resumed(run: Run, project: Path) -> Run:
    done = clusterdp(run.cluster, project, "resume", str(run.files.path), "--cluster", "slurm")
    job = re.match(r"Resumed job (\S+):", done.stdout)
    assert job, done.stdout + done.stderr
    return replace(run, job=job[1])


@pytest.mark.slow
def test_job_stops_before_its_time_limit_and_resumes_in_the_next_attempt(
    cluster: Cluster, start: Callable[..., Run], reference_on: Callable[[Cluster], Reference]
) -> None:
    limit = ("resources.partition=short", 'resources.time="0:01:00"', f"launch.grace_s={cluster.minute_s // 6:.0f}")
    run = start(*limit, delay_s=cluster.minute_s / STEPS)
    assert run.wait_end(300) == "COMPLETED", run.account()
    causes = run.causes()
    assert causes[-1] == "done", run.account()
    assert set(causes[:-1]) == {"timeout"}, run.account()
    assert_no_step_lost(run)
    assert run.digest() == reference_on(cluster).digest


@pytest.mark.slow
@pytest.mark.long
def test_raised_time_limit_is_used_by_the_running_attempt(cluster: Cluster, start: Callable[..., Run]) -> None:
    limit = ('resources.time="0:01:00"', f"launch.grace_s={cluster.minute_s // 6:.0f}")
    run = start(*limit, delay_s=cluster.minute_s / STEPS)
    run.wait_step(5)
    cluster.run("scontrol", "update", f"JobId={run.job}", "TimeLimit=5")
    assert run.wait_end(300) == "COMPLETED", run.account()
    assert run.causes() == ["done"], run.account()


@pytest.mark.slow  # on the fake; test-slurm runs the first one all the same
@pytest.mark.parametrize("by", ["scancel", pytest.param("clusterdp cancel", marks=pytest.mark.slow)])
def test_cancelled_job_is_not_requeued(cluster: Cluster, start: Callable[..., Run], project: Path, by: str) -> None:
    run = start("resources.partition=low")
    run.wait_step(5)
    if by == "scancel":
        cluster.run("scancel", run.job)
    else:
        done = clusterdp(cluster, project, "cancel", str(run.files.path))
        assert done.returncode == 0, done.stderr
    assert run.wait_end() == "CANCELLED"
    assert len(run.files.attempts()) == 1
    assert not run.events("requeued"), run.account()
    assert run.step() < STEPS


@pytest.mark.slow
@pytest.mark.long
def test_stopped_and_resumed_job_ends_bit_for_bit_like_an_undisturbed_one(
    cluster: Cluster, start: Callable[..., Run], reference_on: Callable[[Cluster], Reference], project: Path
) -> None:
    run = start()
    run.wait_step(5)
    stopped = clusterdp(cluster, project, "stop", str(run.files.path))
    assert stopped.returncode == 0, stopped.stderr
    assert run.wait_end() == "FAILED", run.account()  # nothing may start that waits for it to finish
    assert run.causes() == ["stopped"], run.account()
    run = resumed(run, project)
    assert run.wait_end() == "COMPLETED", run.account()
    assert_no_step_lost(run)
    assert run.digest() == reference_on(cluster).digest


def assert_no_step_lost(run: Run) -> None:
    """Each attempt went on at the very step at which the one before had stopped."""
    stopped = [event["step"] for event in run.events("stopped")]
    restored = [event["step"] for event in run.events("restored")]
    assert stopped, run.account()
    assert restored == stopped, run.account()
    assert 0 < stopped[0] < STEPS
