"""Commands of published scripts, where they once differed from those of real Slurms 22.05 and 24.11."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from clusterdp.fakeslurm.commands.options.getopt import GetoptParser
from clusterdp.fakeslurm.commands.options.job_desc_of_options import job_desc
from clusterdp.fakeslurm.commands.options.options import options_of
from clusterdp.fakeslurm.commands.options.parsed_options import ParsedOptions
from clusterdp.fakeslurm.commands.show.sacct import in_unit
from clusterdp.fakeslurm.core import processes
from clusterdp.fakeslurm.core.error_texts import Refusal
from clusterdp.fakeslurm.core.release import Release
from clusterdp.fakeslurm.core.step_plan import ComponentPlan, StepPlan, StreamTarget, TaskPlan
from clusterdp.fakeslurm.slurmctld.step_plans import bound
from tests.fakeslurm.conftest import Desk

FAILED_7, TERMINATED = 7 << 8, 15


# -- decisions, without a cluster --


def plan(release: str, nodes: list[str]) -> StepPlan:
    null = StreamTarget("null")
    part = ComponentPlan(1, ("true",), {}, "/", null, null, None)
    tasks = tuple(TaskPlan(rank, node, 0, {}) for rank, node in enumerate(nodes))
    return StepPlan(1, "0", 0, "true", ("n1",), tasks, (part,), 0o22, slurm_version=release)


@pytest.mark.parametrize(
    ("release", "nodes", "statuses", "expected"),
    [
        ("24.11", ["n1", "n1"], [FAILED_7, TERMINATED], TERMINATED),  # srun -K
        ("24.11", ["n1", "n2"], [TERMINATED, FAILED_7], FAILED_7),
        ("24.11", ["n1", "n1"], [FAILED_7, 0], FAILED_7),
        ("22.05", ["n1", "n1"], [FAILED_7, 0], 0),
        ("22.05", ["n1", "n2"], [FAILED_7, 0], FAILED_7),
        ("22.05", ["n1", "n1"], [11, TERMINATED], 11),
    ],
)
def test_step_record_has_the_exit_status_of_its_worst_node(
    release: str, nodes: list[str], statuses: list[int], expected: int
) -> None:
    step = plan(release, nodes)
    assert step.records(dict(enumerate(statuses))) == {1: expected}
    assert step.records(dict(enumerate(statuses)), forced=True) == {1: max(statuses)}


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("none", [[0, 1], [0, 1], [0, 1]]),
        ("closest", [[0, 1], [0, 1], [0, 1]]),
        ("single:1", [[0], [1], [0]]),
        ("verbose,single:2", [[0], [0], [1]]),
        ("map_gpu:1,0", [[1], [0], [1]]),
        ("map_gpu:0*2,1", [[0], [0], [1]]),
        ("mask_gpu:0x1,0x3", [[0], [0, 1], [0]]),
        ("per_task:1", [[0], [1], [0]]),
        ("map_gpu:7", [[0], [0], [0]]),
    ],
)
def test_gpu_bind_selects_the_gpus_of_each_task(bind: str, expected: list[list[int]]) -> None:
    assert [bound(bind, local, [0, 1], Release("24.11")) for local in range(3)] == expected


def test_gpu_bind_none_hides_all_gpus_on_slurm_22_05() -> None:
    assert bound("none", 0, [0, 1], Release("22.05")) == []


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [("2G", "K", "2097152K"), ("3588K", "M", "3.50M"), ("cpu=1,mem=2G,node=1", "T", "cpu=1,mem=0.00T,node=1")],
)
def test_sacct_converts_sizes_to_the_requested_unit(text: str, unit: str, expected: str) -> None:
    assert in_unit(text, unit) == expected


@pytest.mark.parametrize(
    ("words", "tasks", "gpus"),
    [
        ("-n4", 4, 2),
        ("-n4 -N2", 4, 2),
        ("-N2", 4, 2),
        ("--gpus=2", 4, 2),
        ("-n4 --gpus=4", 8, 4),
        ("--gpus-per-node=1 -N2", 4, None),
    ],
)
def test_ntasks_per_gpu_derives_gpus_from_tasks_and_tasks_from_gpus(words: str, tasks: int, gpus: int | None) -> None:
    release = Release("24.11")
    options = ParsedOptions("sbatch", release)
    options.add(
        GetoptParser("sbatch", options_of("sbatch", release)).parse(
            [*words.split(), "--ntasks-per-gpu=2"], permute=False
        )[0]
    )
    desc = job_desc(options, "/", "main", print, 0, release)
    assert (desc.tasks, desc.gpus.per_job) == (tasks, gpus)


def test_expedited_requeue_is_refused_as_it_would_end_otherwise() -> None:
    """Slurm 26.05 refuses it, too, unless SlurmctldParameters has enable_expedited_requeue."""
    with pytest.raises(Refusal, match="--requeue=expedite is not supported by this fake cluster"):
        ParsedOptions("sbatch", Release("26.05")).add([("requeue", "expedite")])


# -- commands --

REFUSED = r"""
    sbatch --gpus=1 -N2 --wrap=true | 1 | --gpus < -N
    sbatch --gpus=3 --gpus-per-node=2 --wrap=true | 1 | --gpus is not multiple of
    sbatch --gpus=2 --gpus-per-node=1 -N1 --wrap=true | 1 | required nodes (2)
    sbatch --gpus=2 --gpus-per-task=2 -n2 --wrap=true | 1 | differ from -n/--ntasks
    sbatch --gpus-per-task=1 --wrap=true | 1 | used without either --gpus or -n/--ntasks
    sbatch --cpus-per-gpu=2 --wrap=true | 1 | Requested cpus_per_tres=gres/gpu:2 but did not request any GPU.
    sbatch -n3 --ntasks-per-gpu=2 --wrap=true | 1 | -n/--ntasks has to be a multiple of --ntasks-per-gpu.
    sbatch -n2 --ntasks-per-gpu=2 --ntasks-per-node=1 --wrap=true | 1 | fatal: --ntasks-per-node is mutually exclusive
    sbatch -n2 --ntasks-per-gpu=2 --gpus-per-task=1 --wrap=true | 1 | fatal: --gpus-per-task is mutually exclusive
    sbatch --ntasks-per-gpu=2 --wrap=true | 1 | needs either a GRES GPU specification or a node/ntask specification
    sbatch --partition=low,nosuch --wrap=true | 1 | error: invalid partition specified: nosuch
    sbatch --mem=10 --mem-per-cpu=10 --wrap=true | 1 | fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually
    srun --mem=10 --mem-per-gpu=10 --gpus=1 true | 1 | fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually
    sbatch --wait-all-nodes=3 --wrap=true | 255 | Invalid --wait-all-nodes specification
    sbatch -B 9:9:9 --wrap=true | 1 | Socket, core and/or thread specification can not be satisfied
    sbatch -B x --wrap=true | 1 | Invalid numeric value "x" for first arg of -B.
    sbatch --gpu-bind=single:0 --wrap=true | 255 | Invalid --gpu-bind argument
    srun -m arbitrary true | 255 | --distribution=arbitrary is supported by this fake cluster only with SLURM_HOSTFILE
    sbatch nowhere-on-path | 1 | Unable to open file nowhere-on-path
    sstat nonsense | 1 | fatal: Bad job/step specified: nonsense
    scancel -u nobody-here | 1 | Invalid user name: nobody-here
    scancel 5.batch | 1 | Invalid job id 5.batch
    scontrol update job | 1 | Invalid input: job
    scontrol update jobname nothing comment=x | 1 | No jobs with name 'nothing'
    scontrol -M other ping | 1 | No cluster 'other' known by database.
    scontrol takeover | 1 | takeover is not supported by this fake cluster
    scontrol wait_job 4294967 | 1 | Problem running job 4294967
    scontrol notify 4294967 hi | 1 | job notify failure: Invalid job id specified
    sacct --units=x | 1 | Invalid unit type 'x'. Possible options are 'KMGTP'
    sacct -f nothing | 1 | nothing is not a valid file
    sacct -k x | 1 | fatal: Invalid time limit specification
    squeue -i 0 | 1 | error: --iterate=0
    sinfo -i x | 1 | invalid entry for --iterate=x
    sbcast one | 1 | Need two file names, have 1 names
    sbcast one /tmp/ | 1 | Target filename cannot be a directory.
    sbcast nothing /tmp/x | 255 | Can't open `nothing`: No such file or directory
    sbcast /etc/hostname /tmp/x | 1 | Need a job id to run this command.
    sbcast -j 4294967 /etc/hostname /tmp/x | 255 | Slurm job 4294967 lookup error: Invalid job id specified
""".strip().splitlines()


def test_commands_refuse_invalid_arguments_with_slurms_message_and_exit_code(shared_desk: Desk) -> None:
    for line in REFUSED:
        command, code, text = (part.strip() for part in line.split(" | "))
        done = shared_desk.run(*command.split())
        assert (done.returncode, text in done.stderr + done.stdout) == (int(code), True), (line, done)


def test_commands_accept_the_job_notations_of_published_scripts(shared_desk: Desk) -> None:
    """sstat without -j, `update job ID`, notify, hold by name, --iterate, and sinfo of its nodes."""
    desk = shared_desk
    job = desk.submit("-Jfound", "-N2", script="srun bash -c '> began.$SLURM_PROCID; sleep 60'")
    desk.until(lambda: len(list(desk.folder.glob("began.*"))) == 2, "the step")
    assert desk.say(f"sstat {job} {job}.batch -n -P -o JobID") == f"{job}.0"
    assert desk.say(f"sstat {job},{job}.batch -n -P -o JobID").split() == [f"{job}.0", f"{job}.batch"]
    desk.say(f"scontrol update job {job} comment=told")
    assert desk.field(job, "Comment") == "told"
    assert desk.run("scontrol", "hold", "JobName=found").stderr == "slurm_suspend error: No error\n"
    assert desk.run("scontrol", "wait_job", job).stderr == f"scontrol: Nodes are ready for job {job}\n"
    desk.say(f"scontrol notify {job} two words")
    desk.until_said(job, "slurmstepd: error: two words\n")
    assert desk.say("sinfo -h -p main -t alloc -o '%T %N'") == "mixed n[1-2]"
    assert desk.say("sinfo -h -p main -t down").split()[-2:] == ["0", "n/a"]
    assert desk.say("sinfo -p main -t idle -o %all").startswith("AVAIL|ACTIVE_FEATURES|CPUS|")
    assert re.match(r"ACCOUNT\|TRES_PER_NODE\|", desk.say("squeue -o %all"))
    shown = desk.run("timeout", "-s", "KILL", "0.5", "squeue", "-h", "-i", "1", "-j", job, "-o", "%T").stdout
    assert shown == "RUNNING\n\n"
    assert desk.run("scancel", f"{job}.7").returncode == 225
    assert desk.run("scancel", "-v", job).stderr == f"scancel: Terminating job {job}\n"


def test_scancel_message_names_the_step_or_with_b_the_job(shared_desk: Desk) -> None:
    desk = shared_desk
    script = (
        "trap 'echo batch heard' TERM\n"
        "srun bash -c \"trap 'echo task heard; exit 0' TERM; > ready; sleep 60 & wait\" & wait; wait"
    )
    said = []
    for options in (["-s", "TERM"], ["-b", "-s", "TERM"]):
        job = desk.submit(script=script)
        desk.until((desk.folder / "ready").exists, "the task")
        (desk.folder / "ready").unlink()
        desk.run("scancel", *options, job)
        desk.until_said(job, "heard")
        said.append(re.findall(r"\*\*\* (\w+) \S+ ON n\d CANCELLED AT \S+ \*\*\*", desk.output(job)))
        desk.say(f"scancel {job}")
    assert said == [["STEP"], ["JOB"]]


def test_background_child_of_a_self_requeued_script_is_ended_at_once(shared_desk: Desk) -> None:
    """The child gets the signal at once, though the script has ended."""
    desk = shared_desk
    job = desk.submit(
        "--requeue", script="[ $SLURM_RESTART_COUNT ] && exit\nsleep 60 & echo $!\nscontrol requeue $SLURM_JOB_ID"
    )
    desk.until_said(job, "JOB REQUEUE")
    child = int(desk.output(job).split()[0])
    desk.until(lambda: desk.field(job, "JobState") == "COMPLETED", "the next attempt")
    assert not processes.alive(child)
    assert "DUE TO JOB REQUEUE" in desk.output(job)


def test_aftercorr_blocks_only_the_element_with_a_failed_counterpart(shared_desk: Desk) -> None:
    desk = shared_desk
    first = desk.say("sbatch --parsable -H -a 0-1 -o /dev/null --wrap 'exit $SLURM_ARRAY_TASK_ID'")
    second = desk.say(f"sbatch --parsable -a 0-1 -d aftercorr:{first} -o /dev/null --wrap '> ran.$SLURM_ARRAY_TASK_ID'")
    desk.say(f"scontrol release {first}")
    look = f"squeue -h -r -t all -j {second} -o '%K %T %r'"
    ended = ["0 COMPLETED None", "1 PENDING DependencyNeverSatisfied"]
    desk.until(lambda: sorted(desk.say(look).splitlines()) == ended, "the elements")
    desk.say(f"scancel {second}")


def test_sbatch_finds_scripts_on_path_and_export_file_replaces_the_environment(shared_desk: Desk) -> None:
    desk = shared_desk
    tools = desk.folder / "tools"
    tools.mkdir()
    (tools / "prepare").write_text("#!/bin/bash\nenv > seen")
    (desk.folder / "variables").write_bytes(b"ONE=1\0TWO=two words\0")
    path = f"{tools}{os.pathsep}{desk.cluster.environ()['PATH']}"
    done = desk.run("sbatch", "--wait", "-o", "/dev/null", "--export-file=variables", "prepare", PATH=path, OUTER="x")
    assert done.returncode == 0, done.stderr
    seen = dict(line.split("=", 1) for line in (desk.folder / "seen").read_text().splitlines() if "=" in line)
    assert (seen["ONE"], seen["TWO"], seen.get("OUTER"), seen.get("HOME")) == ("1", "two words", None, None)


def test_sbcast_copies_to_relative_targets_and_overwrites_only_with_force(shared_desk: Desk, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("new")
    source.chmod(0o750)
    os.utime(source, (1_600_000_000, 1_600_000_000))
    (tmp_path / "old").write_text("old")
    script = (
        "sbcast source copy; sbcast source old; echo $?; sbcast -fp source old; sbcast -f source missing/x; echo $?;"
        "sbcast -f source .; echo $?"
    )
    job = shared_desk.submit("-N2", "--wait", script=script)
    said = shared_desk.output(job).splitlines()
    assert [line for line in said if line.isdigit()] == ["17", "2", "21"]
    assert sum("REQUEST_FILE_BCAST(n1): File exists" in line for line in said) == 1
    assert [(tmp_path / name).read_text() for name in ("copy", "old")] == ["new", "new"]
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "old").stat().st_mtime == 1_600_000_000
    assert not list(tmp_path.glob(".*"))
