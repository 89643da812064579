"""Which GPUs a step has, and what a job's memory is called: as seen on Slurm 22.05."""

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
