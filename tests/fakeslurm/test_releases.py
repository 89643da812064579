"""What the fake does otherwise as another release of Slurm: stories that take seconds. The replays have the rest."""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import clusterdp.fakeslurm
from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core.per_release import PerRelease
from clusterdp.fakeslurm.core.release import Release
from clusterdp.fakeslurm.core.state import JobState

from .conftest import Desk, impatient
from .test_jobs import ECHO_SIGNALS

As = Callable[[str], Desk]
TOO_OFTEN = "launch failure limit exceeded requeued held"


@pytest.fixture
def as_release(tmp_path: Path) -> Iterator[As]:
    """A hasty cluster of a release, whose grace time outlasts every obedient job."""
    (tmp_path / "probe.py").write_text(ECHO_SIGNALS)
    with ExitStack() as clusters:

        def boot(release: str) -> Desk:
            shape = impatient(minute_s=1.2)
            partitions = tuple(replace(part, grace_s=part.grace_s and 3000) for part in shape.partitions)
            cluster = FakeCluster(shape=replace(shape, partitions=partitions), slurm_version=release)
            return Desk(clusters.enter_context(cluster), tmp_path)

        yield boot


def obeys(attempts: int, code: int = 0) -> str:
    """A script that ends with this code in its grace time, and in its attempt of that number by itself."""
    runs = f'srun {sys.executable} -u probe.py "up$SLURM_RESTART_COUNT" {code}'
    return f"[ ${{SLURM_RESTART_COUNT:-0}} -lt {attempts} ] || exit 0; {runs}"


def preempt(desk: Desk, job: str, attempt: int) -> None:
    desk.until_said(job, f"up{attempt or ''} ready")
    desk.cluster.preempt(job)
    desk.until_said(job, f"up{attempt or ''} SIGTERM")


def attempts(desk: Desk, job: str) -> list[str]:
    return desk.say(f"sacct -n -X -D -P -j {job} -o State,ExitCode").split()


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_job_ending_in_grace_time_is_requeued_from_slurm_24_11_on(as_release: As, release: str, code: int) -> None:
    desk = as_release(release)
    job = desk.submit("-p", "low", script=obeys(1, code))
    preempt(desk, job, 0)
    desk.cluster.wait(job, JobState.COMPLETED)
    assert (desk.field(job, "Restarts"), desk.field(job, "BatchFlag")) == ("1", "2")
    desk.until(lambda: attempts(desk, job) == ["PREEMPTED|0:0", "COMPLETED|0:0"])


@pytest.mark.parametrize(("code", "state"), [(0, JobState.COMPLETED), (3, JobState.FAILED)])
def test_job_ending_in_grace_time_is_not_requeued_on_slurm_22_05(as_release: As, code: int, state: JobState) -> None:
    desk = as_release("22.05")
    job = desk.submit("-p", "low", script=obeys(1, code))
    preempt(desk, job, 0)
    desk.cluster.wait(job, state)
    assert desk.field(job, "Restarts") == "0"


@pytest.mark.parametrize("code", [0, 3])
def test_job_with_no_requeue_ending_in_grace_time_is_recorded_as_preempted(as_release: As, code: int) -> None:
    desk = as_release("24.11")
    job = desk.submit("-p", "low", "--no-requeue", script=obeys(1, code))
    preempt(desk, job, 0)
    desk.cluster.wait(job, JobState.PREEMPTED)
    desk.until(lambda: attempts(desk, job) == ["PREEMPTED|0:0"])


@pytest.mark.parametrize(
    ("release", "states"),
    [
        ("22.05", ["REQUEUED", "COMPLETED"]),
        ("24.11", ["REQUEUED", "PREEMPTED", "COMPLETED"]),
        ("26.05", ["REQUEUED", "COMPLETED"]),
    ],
)
def test_scontrol_requeue_in_grace_time_requeues_twice_only_on_slurm_24_11(
    as_release: As, release: str, states: list[str]
) -> None:
    desk = as_release(release)
    job = desk.submit("-p", "low", script=obeys(1) + " & wait; sleep 60")
    preempt(desk, job, 0)
    desk.say(f"scontrol requeue {job}")
    desk.cluster.wait(job, JobState.COMPLETED)
    desk.until(lambda: desk.say(f"sacct -n -X -D -P -j {job} -o State").split() == states)


def test_fifth_preemption_of_a_job_leaves_it_held(as_release: As) -> None:
    """As seen on 24.11.5: MaxBatchRequeue is 5, and BatchFlag begins at 1."""
    desk = as_release("24.11")
    job = desk.submit("-p", "low", script=obeys(5))
    for attempt in range(5):
        preempt(desk, job, attempt)
    desk.until(lambda: desk.say(f"squeue -h -j {job} -o '%T|%t|%r'") == f"REQUEUE_HOLD|RH|{TOO_OFTEN}", TOO_OFTEN)
    assert (desk.field(job, "Restarts"), desk.field(job, "BatchFlag")) == ("5", "1")
    assert desk.field(job, "Reason") == TOO_OFTEN.replace(" ", "_")
    desk.say(f"scontrol release {job}")
    desk.cluster.wait(job, JobState.COMPLETED)


@pytest.mark.parametrize(("release", "inherited"), [("22.05", 1), ("24.11", 4)])
def test_srun_without_ntasks_runs_as_many_tasks_as_cpus_per_task_allows(
    as_release: As, release: str, inherited: int
) -> None:
    """As seen on both; only newer ones take over what sbatch was told."""
    desk = as_release(release)
    job = desk.submit("--exclusive", "--cpus-per-task=2", script="srun echo inherits; srun -c 4 echo told")
    desk.cluster.wait(job, JobState.COMPLETED)
    assert Counter(desk.output(job).split()) == {"inherits": inherited, "told": 2}


def test_squeue_options_only_job_state_notme_and_helpstate_are_supported(as_release: As) -> None:
    """As seen on 24.11.5."""
    desk = as_release("24.11")
    job = desk.submit("--hold", "--array=1-3%1", script="true")
    assert desk.say("squeue --only-job-state").splitlines() == ["JOBID ST", f"{job}_[1-3] PD".rjust(21)]
    assert desk.say("squeue --only-job-state -h -j 999999") == ""
    assert desk.say("squeue --notme -h") == ""
    assert desk.say("squeue --helpstate").split()[:2] == ["pending", "running"]
    data = json.loads(desk.say("squeue --only-job-state --json"))
    assert data["jobs"] == [{"job_id": f"{job}_{index}", "state": ["PENDING"]} for index in (1, 2, 3)]
    assert not data.keys() & {"last_update", "last_backfill"}
    refused = desk.run("squeue", "--only-job-state", "--steps")
    assert refused.stderr.startswith("squeue: fatal: Options --only-job-state and -s(--steps) are mutually exclusive.")


@pytest.mark.parametrize(("release", "says"), [("24.11", ""), ("26.05", "only works alone")])
def test_squeue_options_only_job_state_and_me_conflict_from_26_05_on(as_release: As, release: str, says: str) -> None:
    refused = as_release(release).run("squeue", "--only-job-state", "--me").stderr
    assert says in refused
    assert bool(says) == bool(refused)


@pytest.mark.parametrize(("release", "shown"), [("24.11", "o.%s.%t.%n.%N.job.%"), ("26.05", "o.batch.0.0.n1.job.%")])
def test_stdout_of_a_job_shows_all_letters_from_26_05_on(as_release: As, release: str, shown: str) -> None:
    desk = as_release(release)
    job = desk.say("sbatch --parsable -J job -o o.%s.%t.%n.%N.%x.%% --wrap 'sleep 60'")
    desk.until(lambda: desk.say(f"squeue -h -j {job} -o %N") == "n1")
    assert desk.field(job, "StdOut") == f"{desk.folder}/{shown}"


@pytest.mark.parametrize("name", [name for name, rule in vars(Release).items() if isinstance(rule, PerRelease)])
def test_every_release_rule_is_used_in_the_code(name: str) -> None:
    package = Path(clusterdp.fakeslurm.__file__).parent
    texts = [path.read_text() for path in package.rglob("*.py") if path.name != "release.py"]
    of_commands = re.sub(r"^(sbatch|srun|salloc)_", r"\\{command\\}_", name)
    assert any(re.search(rf"[rR]elease\.{name}\b|{of_commands}['\"]", text) for text in texts)
