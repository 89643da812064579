"""Rarer words of Slurm's commands, with the answers of a real 24.11, or of its source (scontrol -Q, TimeLimit)."""

import shlex

import pytest

from tests.fakeslurm.conftest import Desk

ANSWERS = r"""
    sinfo -h -p main -t all -o '%T %N' | 0 | drained n4\nidle n[1-3]
    sinfo -h -p main -t 'DRAIN&IDLE' -o '%T %N' | 0 | drained n4
    sinfo -h -p main -t 'DRAIN&ALLOC' -o '%T %N' | 0 |
    sinfo -p main -O partition,nosuch | 0 | sinfo: error: Invalid job format specification: nosuch\nPARTITION\nmain*
    sinfo -h -p main -n n1 -O defaulttime:4,features_act:7,cluster:4,statecomplete | 0 | n/a (null) N/A idle
    squeue -h -j ARRAY_3,ARRAY_5 -o %i | 0 | ARRAY_[3,5]
    squeue -h -r -j ARRAY_5,ARRAY_3 -o %i | 0 | ARRAY_3\nARRAY_5
    squeue -h -j ARRAY_3,ARRAY -o %i | 0 | ARRAY_3
    squeue -h -u UID,UID -j ARRAY -o %T | 0 | PENDING
    squeue -h -u 99999 -o %T | 0 | squeue: error: Invalid user: 99999
    squeue -h -j ARRAY -O gres:11,batchflag:2,origin | 0 | gres/gpu:1 1 NA
    squeue -h -j ARRAY -O trespernode | 0 | squeue: error: Invalid job format specification: trespernode
    squeue -h -j ARRAY -O tres-per-node | 0 | gres/gpu:1
    scontrol requeue Incomplete ARRAY | 0 |
    scontrol requeue Incomplete | 0 |
    scontrol requeue Incomplete 99999999 | 1 | Invalid job id specified for job 99999999
    scontrol release ARRAY+1 | 1 | Invalid job id specified for job ARRAY+1
    sacctmgr -n -P show qos format=name,maxtrespu,grptres,maxjobsperuser,id | 0 | normal||||1
    sbatch --gpus=2 --cpus-per-gpu=2 -c4 --wrap=true | 1 | fatal: --cpus-per-task, --tres-per-task
    sbatch --gpus-per-socket=1 --sockets-per-node=2 --wrap=true | 255 | --gpus-per-socket is not
    sbatch -t 120 --deadline=now+1hour --wrap=true | 1 | failed: Requested time limit
    sbatch -t 120 --deadline=now+1hour --time-min=90 --wrap=true | 1 | failed: Invalid time-min
    sbatch -t 40 --deadline=now+1hour --begin=now+30minutes --wrap=true | 1 | failed: Requested time limit
    sbatch -t 10 --deadline=now+1hour --begin=now+2hours --wrap=true | 1 | Incompatible begin and deadline
    sbatch -N 1,x --wrap=true | 255 | "x" is not a valid node count
    bash -c 'scontrol show job $(sbatch --parsable --hold -N 4,1-2 --wrap=true)' | 0 | NumNodes=1-2,4
    sbatch -N 2--4 --wrap=true | 255 | Maximum node count -1 is less than minimum node count 2
    sbatch -N ,2 --wrap=true | 255 | invalid number of nodes (-N -1--1)
    bash -c 'scontrol show job $(sbatch --parsable --hold -N 2-4:2 --wrap=true)' | 0 | NumNodes=2
    bash -c 'J=$(sbatch --parsable -HN2 --wrap=); scontrol update job=$J numnodes=1,3; scontrol show job $J' | 0 | =1,3
    bash -c 'J=$(sbatch --parsable -HN4 --ntasks-per-node=2 --wrap=); scontrol update job=$J numnodes=3' | 0 |
    srun -N2 -m plane=0 true | 255 | srun: error: Invalid plane size
    scontrol -Q hold 99999999 | 1 |
    scontrol --quiet show job 99999999 | 1 |
    scontrol -Q show node nosuch | 1 |
    scontrol -Q update JobId=99999999 TimeLimit=3 | 1 |
    scontrol -Q nosuch | 1 | invalid keyword: nosuch
    scontrol update TimeLimit=+5 JobId=ARRAY | 1 | scontrol: error: JobId must precede TimeLimit increment or decrement
    scontrol update JobId=ARRAY TimeLimit+=5 | 1 | error: Cannot increment/decrement TimeLimit when set to UNLIMITED.
    scontrol update JobId=ARRAY TimeLimit+=+5 | 1 | error: Invalid syntax, variations of +=- are not accepted.
    scontrol update JobId=ARRAY TimeLimit=x | 1 | scontrol: error: Invalid TimeLimit value
    bash -c 'J=$(sbatch --parsable -Ht9 --wrap=); scontrol update job=$J timelimit+=5; squeue -j $J -o %l' | 0 | 14:00
    bash -c 'scontrol update JobId=$(sbatch --parsable -H -t 9 --wrap=) TimeLimit-=11' | 1 | time limit (11 > 9)
    bash -c 'J=$(sbatch --parsable -H --nice=9 --wrap=); scontrol update job=$J nice=9; squeue -j$J -o %r' | 0 | Held
    bash -c 'J=$(sbatch --parsable -Hb9:00 --nice=9 --wrap=); scontrol update job=$J nice=2; squeue -j$J -o %Q' | 0 | 7
    bash -c 'squeue -h -j $(sbatch --parsable -H -n 7 --ntasks-per-node=2 -c 3 --wrap=) -o "%C %D"' | 0 | 21 4
    bash -c 'squeue -h -j $(sbatch --parsable -H -N 2 -n 2 --ntasks-per-node=3 --wrap=) -o "%C %D"' | 0 | 2 2
    bash -c 'squeue -h -j $(sbatch --parsable -H --wrap=) -o "%e %L"' | 0 | NONE UNLIMITED
    bash -c 'scontrol show job $(sbatch --parsable -w n1 --wrap="sleep 60")' | 0 | EndTime=Unknown Deadline=N/A
    srun -C nosuch true | 1 | srun: error: Unable to allocate resources: Invalid feature specification
"""


@pytest.fixture(scope="module")
def array(shared_cluster: object) -> str:
    """Elements that wait, beside a drained node n4."""
    shared_cluster.run("scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=x")  # type: ignore[attr-defined]
    return str(shared_cluster.submit("--array=1-6", "--hold", "--gres=gpu:1", "--wrap=true"))  # type: ignore[attr-defined]


def test_rarer_words_have_the_recorded_answers(shared_desk: Desk, array: str) -> None:
    uid = str(shared_desk.cluster.run("id", "-u")).strip()
    for line in ANSWERS.strip().splitlines():
        command, code, text = (part.strip() for part in line.replace("ARRAY", array).replace("UID", uid).split(" |", 2))
        done = shared_desk.run(*shlex.split(command))
        said = "\n".join(line.rstrip() for line in (done.stderr + done.stdout).splitlines() if line.strip())
        wanted = text.replace(r"\n", "\n")
        assert (done.returncode, wanted in said if wanted else not said) == (int(code), True), (command, said)


def test_resume_of_a_healthy_and_a_drained_node_fails_for_one(shared_desk: Desk, array: str) -> None:
    for nodes in ("n3,n4", "n4,n3"):
        shared_desk.say("scontrol update NodeName=n4 State=DRAIN Reason=x")
        done = shared_desk.run("scontrol", "update", f"NodeName={nodes}", "State=RESUME")
        assert (done.returncode, done.stderr) == (1, "slurm_update error: Invalid node state specified\n")
        assert shared_desk.say("sinfo -h -p main -n n4 -o %T") == "idle"


@pytest.mark.parametrize(("content", "mode", "code"), [("echo\n", 0o644, 13), ("echo\n", 0o755, 8), (None, 0, 2)])
def test_program_not_executed_has_the_number_of_the_error_as_exit_code(
    shared_desk: Desk, content: str | None, mode: int, code: int
) -> None:
    path = shared_desk.folder / "program"
    if content:
        path.write_text(content)
        path.chmod(mode)
    assert shared_desk.run("srun", "./program").returncode == code


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("plane=2", "n1 n1 n2 n1 n1 n1 plane 2"),
        ("plane=4", "n1 n1 n1 n1 n2 n1 plane 4"),
        ("block:*", "n1 n1 n1 n1 n1 n2 block:cyclic"),
        ("cyclic:block", "n1 n2 n1 n1 n1 n1 cyclic:block"),
    ],
)
def test_distribution_deals_ranks_to_nodes_as_recorded(shared_desk: Desk, words: str, expected: str) -> None:
    said = 'echo "$SLURM_PROCID $SLURMD_NODENAME $SLURM_DISTRIBUTION $SLURM_DIST_PLANESIZE"'
    done = shared_desk.run("srun", "-N2", "-n6", "-m", words, "bash", "-c", said)
    rows = [line.split() for line in sorted(done.stdout.splitlines())]
    assert [row[1] for row in rows] + rows[0][2:] == expected.split()


def test_het_script_knows_only_requested_numbers_of_tasks(shared_desk: Desk) -> None:
    known = "env | grep -E '^SLURM_(NTASKS|NPROCS)' | grep -v PACK | sort"
    path = shared_desk.folder / "het.sh"
    path.write_text(f"#!/bin/bash\n{known}\nsrun bash -c 'echo rank $SLURM_PROCID' | sort\n")
    words = ["-N1", "--ntasks-per-node=2", ":", "-N1", "-n1", "--ntasks-per-node=1", str(path)]
    job = shared_desk.run("sbatch", "--parsable", "--output=het.out", *words).stdout.strip()
    shared_desk.cluster.wait(job)
    assert (shared_desk.folder / "het.out").read_text().splitlines() == [
        "SLURM_NPROCS_HET_GROUP_1=1",
        "SLURM_NTASKS_HET_GROUP_1=1",
        "SLURM_NTASKS_PER_NODE_HET_GROUP_0=2",
        "SLURM_NTASKS_PER_NODE_HET_GROUP_1=1",
        "rank 0",
        "rank 1",
    ]


def test_attempts_of_a_requeued_job_have_their_own_restarts_and_eligible_times(shared_desk: Desk) -> None:
    job = shared_desk.submit(script="sleep 60")
    shared_desk.cluster.wait(job, "RUNNING")
    assert shared_desk.say(f"sacct -n -X -P -j {job} -o State") in ("PENDING", "RUNNING")  # at once
    shared_desk.say(f"scontrol requeue {job}")
    rows = f"sacct -n -X -P -D -j {job} -o State,Restarts"
    shared_desk.until(lambda: shared_desk.say(rows).split() == ["REQUEUED|0", "RUNNING|1"], "the second attempt")
    planned = shared_desk.say(f"sacct -n -X -P -D -j {job} -o Planned").split()
    assert planned == ["00:00:00", "00:00:00"]
    shared_desk.say(f"scancel {job}")


@pytest.mark.parametrize("names", ["NIL", "NONE", "HOME"])
def test_sbatch_export_always_passes_variables_of_slurm_on(shared_desk: Desk, names: str) -> None:
    """Source: env_array_merge_slurm_spank() of src/common/env.c."""
    words = ["--wait", "--quiet", f"--output={names}.txt", f"--export={names}", "--wrap=env"]
    shared_desk.run("sbatch", *words, SLURM_MINE="1", MINE="2", _SLURM_SPANK_OPTION_x="3")
    found = dict(line.partition("=")[::2] for line in (shared_desk.folder / f"{names}.txt").read_text().splitlines())
    mine = {name: value for name, value in found.items() if "MINE" in name or "SPANK" in name}
    assert mine == {"SLURM_MINE": "1", "_SLURM_SPANK_OPTION_x": "3"}
