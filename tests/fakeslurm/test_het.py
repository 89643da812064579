"""Heterogeneous jobs: components that start together, steps over several of them."""

import pytest

from .conftest import Desk

TWO = "#SBATCH --job-name=first --ntasks=2 --output=out\n#SBATCH hetjob\n#SBATCH --job-name=second --ntasks=3\n"


def submit(desk: Desk, script: str) -> int:
    path = desk.folder / "het.sh"
    path.write_text("#!/bin/bash\n" + TWO + script)
    return int(desk.say("sbatch --parsable het.sh"))


def test_srun_over_all_het_components_numbers_their_ranks_consecutively(shared_desk: Desk) -> None:
    show = "'echo $SLURM_PROCID/$SLURM_NTASKS $SLURM_NODEID/$SLURM_NNODES $SLURMD_NODENAME $SLURM_JOB_ID'"
    job = submit(shared_desk, f"srun bash -c {show} : bash -c {show} | sort > got")
    shared_desk.cluster.wait(job)
    lines = [line.split() for line in (shared_desk.folder / "got").read_text().splitlines()]
    assert [line[:2] for line in lines] == [[f"{rank}/5", "0/2" if rank < 2 else "1/2"] for rank in range(5)]
    assert len({line[2] for line in lines}) == 2, "components have nodes of their own"
    assert {line[3] for line in lines} == {str(job)}


def test_each_het_component_has_its_own_output_and_environment(shared_desk: Desk) -> None:
    script = (
        "srun --output=one-%j-%t --export=ALL,ROLE=trainer bash -c 'echo $ROLE' : "
        "--output=two-%j-%t --export=ALL,ROLE=reader bash -c 'echo $ROLE'"
    )
    job = submit(shared_desk, script)
    shared_desk.cluster.wait(job)
    found = {path.name: path.read_text().strip() for path in shared_desk.folder.glob("*-*-*")}
    # Slurm's %t is one too high for each component before the task's.
    ones = {f"one-{job}-{rank}": "trainer" for rank in (0, 1)}
    assert found == ones | {f"two-{job + 1}-{rank}": "reader" for rank in (3, 4, 5)}


def test_sacct_lists_each_het_component_with_only_its_own_steps(shared_desk: Desk) -> None:
    job = submit(shared_desk, "srun true; srun --het-group=1 true; srun true : true")
    shared_desk.cluster.wait(job)
    expected = [f"{job}+0", f"{job}+0.batch", f"{job}+0.0", f"{job}+0.2", f"{job}+1", f"{job}+1.1", f"{job}+1.2"]
    shared_desk.until(lambda: shared_desk.say(f"sacct -n -P -j {job} -o JobID,State").count("COMPLETED") == 7)
    assert shared_desk.say(f"sacct -n -P -j {job} -o JobID").split() == expected
    assert shared_desk.say(f"sacct -n -X -P -j {job} -o JobIDRaw").split() == [str(job), str(job + 1)]


def test_scancel_of_the_het_leader_cancels_all_components_and_their_tasks(hasty: Desk) -> None:
    job = submit(
        hasty, "srun bash -c 'touch $SLURM_PROCID.up; sleep 100' : bash -c 'touch $SLURM_PROCID.up; sleep 100'"
    )
    hasty.until(lambda: len(list(hasty.folder.glob("*.up"))) == 5)
    hasty.say(f"scancel {job}")
    hasty.cluster.wait(job)
    hasty.cluster.wait(job + 1)
    assert hasty.say(f"squeue -h -t all -S i -j {job} -o %T").split() == ["CANCELLED", "CANCELLED"]
    hasty.until(lambda: hasty.say(f"sacct -n -P -j {job} -o JobID,State").count("CANCELLED") == 5)


def test_scancel_refuses_a_single_component_of_a_pending_het_job(shared_desk: Desk) -> None:
    blocker = shared_desk.say("sbatch --parsable --output=/dev/null --exclusive --nodes=3 --wrap='sleep 100'")
    shared_desk.until(lambda: shared_desk.field(blocker, "JobState") == "RUNNING")
    job = submit(shared_desk, "true")
    shared_desk.until(lambda: shared_desk.field(str(job), "Reason") != "None", "a look at the queue")
    assert shared_desk.say(f"squeue -h -S i -j {job} -o %T").split() == ["PENDING", "PENDING"]
    refused = shared_desk.run("scancel", f"{job}+1")
    assert refused.returncode == 60
    assert "individual component" in refused.stderr
    shared_desk.say(f"scancel {blocker} {job}")
    shared_desk.until(lambda: shared_desk.say("squeue -h") == "")


def test_scontrol_requeue_restarts_a_het_job_only_through_its_leader(hasty: Desk) -> None:
    job = submit(hasty, 'echo life ${SLURM_RESTART_COUNT-0} >> lives; [ -n "$SLURM_RESTART_COUNT" ] || sleep 100')
    hasty.until((hasty.folder / "lives").exists)
    assert "Job not heterogeneous job leader" in hasty.run("scontrol", "requeue", str(job + 1)).stderr
    hasty.say(f"scontrol requeue {job}")
    hasty.until(lambda: (hasty.folder / "lives").read_text() == "life 0\nlife 1\n")
    hasty.cluster.wait(job)
    assert hasty.say(f"squeue -h -t all -S i -j {job} -o %T").split() == ["COMPLETED", "COMPLETED"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--het-group=2", "true"], "Requested het-group offset exceeds highest hetjob index (2 > 1)"),
        (["true", ":", "true", ":", "true"], "the job allocation has maximum value of 1"),
        (["--het-group=x", "true"], "Invalid --het-group value: x"),
    ],
)
def test_srun_refuses_a_missing_or_invalid_het_group(shared_desk: Desk, words: list[str], said: str) -> None:
    job = submit(shared_desk, f"srun {' '.join(words)} 2> err; echo $? >> err")
    shared_desk.cluster.wait(job)
    assert said in (shared_desk.folder / "err").read_text()
    assert (shared_desk.folder / "err").read_text().endswith("1\n")


def test_srun_outside_a_job_starts_a_heterogeneous_job(shared_desk: Desk) -> None:
    show = "bash -c 'echo $SLURM_PROCID'"
    done = shared_desk.run("bash", "-c", f"srun --ntasks=1 {show} : --ntasks=2 {show}")
    assert sorted(done.stdout.split()) == ["0", "1", "2"]
