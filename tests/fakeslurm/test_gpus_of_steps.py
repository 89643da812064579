"""GPUs of a step, and the words for a job's memory: as seen on Slurm 22.05."""

from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core import job_environ
from tests.fakeslurm.conftest import Desk

ID = "$SLURM_STEP_ID"
TELL = f"bash -c '> up.{ID}; until [ -e end.{ID} ]; do sleep 0.05; done; echo {ID} has $CUDA_VISIBLE_DEVICES'"
SIDE_BY_SIDE = f"""\
await() {{ until "$@" 2> /dev/null; do sleep 0.05; done; }}
srun --exact -n1 --gpus-per-task=1 {TELL} & await [ -e up.0 ]
srun --exact -n1 --gres=gpu:1 {TELL} & await [ -e up.1 ]
srun --exact -n1 --gpus=1 {TELL} 2> waits & await grep -q busy waits
srun --overlap -n1 {TELL} & await [ -e up.2 ]
> end.0; await [ -e up.3 ]
touch end.1 end.2 end.3
wait
"""


def test_exact_steps_get_separate_gpus_and_wait_for_busy_ones(shared_desk: Desk) -> None:
    job = shared_desk.submit("--wait", "-n4", "--gres=gpu:2", script=SIDE_BY_SIDE)
    said = sorted(line for line in shared_desk.output(job).splitlines() if "has" in line)
    assert said == ["0 has 0", "1 has 1", "2 has 0,1", "3 has 0"]


def test_step_of_an_exclusive_job_gets_gpus_only_if_requested(shared_desk: Desk) -> None:
    tell = "bash -c 'echo \"$CUDA_VISIBLE_DEVICES $SLURMD_TRES_BIND\"'"
    script = f"srun {tell}; srun --gpus-per-task=2 {tell}; srun --gpus=1 {tell}"
    job = shared_desk.submit("--wait", "--exclusive", script=script)
    assert shared_desk.output(job) == " \n0,1 \n0 \n"


ONE_TASK = """\
unset="env -u SLURM_GPUS_PER_TASK -u SLURM_TRES_PER_TASK -u SLURM_TRES_BIND"
for words in "" "$unset"; do
  for options in "" --gpus-per-node=2 --gpus-per-task=2; do
    $words srun -n1 $options bash -c 'echo sees $CUDA_VISIBLE_DEVICES of $SLURM_GPUS_ON_NODE' 2>&1
  done
done | grep -e sees -e requested
"""
REFUSED = "srun: error: Step requested gres_per_task=gpu:2 is more than the job's gres_per_task=gpu:1"


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("22.05", ["sees 0 of 1", "sees 0,1 of 2", REFUSED] * 2),
        ("24.11", ["sees 0 of 1", "sees 0,1 of 2", "sees 0,1 of 2"] * 2),
        ("26.05", ["sees 0 of 1", "sees 0 of 2", "sees 0 of 2", "sees 0 of 1", "sees 0,1 of 2", "sees 0,1 of 2"]),
    ],
)
def test_step_of_one_task_inherits_gpus_per_task_by_release(tmp_path: Path, release: str, expected: list[str]) -> None:
    """Seen on each real release: inherited variables bind the only task of a node since 26.05."""
    with FakeCluster(nodes=1, quick=True, slurm_version=release) as cluster:
        desk = Desk(cluster, tmp_path)
        job = desk.submit("--wait", "-n2", "--gpus-per-task=1", script=ONE_TASK)
        assert desk.output(job).splitlines() == expected


@pytest.mark.parametrize(("real", "seen"), [([], "0,1"), (["0"], "0"), (["0", "1", "2"], "0,1"), (["5"], "5")])
def test_tasks_see_real_gpus_in_turn(monkeypatch: pytest.MonkeyPatch, real: list[str], seen: str) -> None:
    """With one real GPU, both ranks of a job use it."""
    monkeypatch.setattr(job_environ, "real_gpus", lambda: real)
    assert job_environ.gpu_variables([0, 1])["CUDA_VISIBLE_DEVICES"] == seen
    assert job_environ.gpu_variables([1])["CUDA_VISIBLE_DEVICES"] == (real[1 % len(real)] if real else "1")


def test_srun_starts_a_program_under_its_full_path(shared_desk: Desk) -> None:
    job = shared_desk.submit("--wait", script="srun --accel-bind=gn sh -c 'echo $0'")
    assert shared_desk.output(job).endswith("/sh\n")
    assert (
        shared_desk.run("srun", "--accel-bind=x", "true").stderr == "srun: error: Invalid --accel-bind specification\n"
    )


def test_requested_memory_appears_in_slurm_variables_scontrol_and_sacct(shared_desk: Desk) -> None:
    script = "env | grep -e ^SLURM_MEM -e ^SLURM_CPUS_PER_GPU; scontrol show job $SLURM_JOB_ID | grep MemPerTres; true"
    jobs = [
        shared_desk.submit("--wait", *words, script=script)
        for words in (["--gpus=2", "--mem-per-gpu=1G", "--cpus-per-gpu=1"], ["--mem=0"], ["-N4", "--mem=1536"])
    ]
    said = [
        "SLURM_CPUS_PER_GPU=1\nSLURM_MEM_PER_GPU=1024\n   MemPerTres=gres/gpu:1024\n",
        "",
        "SLURM_MEM_PER_NODE=1536\n",
    ]
    for job, expected in zip(jobs, said, strict=True):
        assert sorted(shared_desk.output(job).splitlines()) == sorted(expected.splitlines())
    shared_desk.until(lambda: shared_desk.say(f"sacct -Xnj {jobs[2]} -o State").strip() == "COMPLETED")
    assert [shared_desk.say(f"sacct -XnPj {job} -o ReqMem") for job in (jobs[0], jobs[2])] == ["2G", "6G"]


def test_scontrol_workdir_keeps_the_dot_of_a_relative_chdir(shared_desk: Desk) -> None:
    job = shared_desk.submit("--wait", "--chdir=.", script="true")
    assert shared_desk.field(job, "WorkDir") == f"{shared_desk.folder}/."


@pytest.mark.parametrize(
    ("visible", "devices", "expected"),
    [
        (None, ["null", "nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm"], ["0", "1"]),
        ("1", ["nvidia0", "nvidia1"], ["1"]),
        ("", ["nvidia0"], []),
        ("0", ["null"], []),
    ],
)
def test_fake_uses_real_gpus_left_visible(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, devices: list[str], expected: list[str]
) -> None:
    monkeypatch.setattr(job_environ.os, "listdir", lambda path: devices)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert job_environ.real_gpus.__wrapped__() == expected
