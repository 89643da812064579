"""What people and clients look at besides the queue: shares, figures, reports, associations; scontrol as a shell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core.shape import Shape

from .conftest import Desk


def test_sshare_prints_the_users_account_for_snakemake(shared_desk: Desk) -> None:
    rows = shared_desk.say("sshare -P").splitlines()
    assert rows[0] == "Account|User|RawShares|NormShares|RawUsage|EffectvUsage|FairShare"
    account = rows[1].split("|")[0]
    assert rows[2].split("|")[:3] == [f" {account}", account, "1"]
    assert shared_desk.say("sshare -U --format Account%256 --noheader") == account
    assert "Invalid field" in shared_desk.run("sshare", "-o", "nosuch").stderr


def test_scontrol_show_assoc_lists_both_associations_of_the_user(shared_desk: Desk) -> None:
    said = shared_desk.say("scontrol show assoc")
    assert said.startswith("Current Association Manager state")
    assert said.count("ClusterName=") == 2


def test_scontrol_without_arguments_reads_commands_from_stdin_until_quit(shared_desk: Desk) -> None:
    lines = "show hostnames 'n[1-2]'\nfoo\n\noneliner\nshow partition main\nquit\nping\n"
    done = shared_desk.run("scontrol", stdin=lines)
    said = done.stdout.splitlines()
    assert said[:4] == ["scontrol: show hostnames 'n[1-2]'", "n1", "n2", "scontrol: foo"]
    assert any(line.startswith("PartitionName=main AllowGroups=ALL ") for line in said)
    assert said[-1] == "scontrol: quit"
    assert (done.returncode, done.stderr) == (1, "invalid keyword: foo\n")


@pytest.mark.parametrize(
    ("spec", "name", "elements"),
    [
        ("1-199:2", "[1-199:2]", "1-199:2"),
        ("0-6:3", "[0,3,6]", "0,3,6"),
        ("0-99%5", "[0-99%5]", "0-99%5"),
        ("1,3,5,7,9,11,14,16,18,20,22", "[1,3,5,7,9,11,14,16,18,20", "1,3,5,7,9,11,14,16,18,20,22"),
    ],
)
def test_squeue_writes_pending_array_elements_like_slurm(
    shared_desk: Desk, spec: str, name: str, elements: str
) -> None:
    job = shared_desk.submit("--hold", f"--array={spec}", script="true")
    assert shared_desk.say(f"squeue -h -j {job} -o '%i %K'") == f"{job}_{name} {elements}"
    shared_desk.say(f"scancel {job}")


def test_squeue_keeps_updated_elements_in_the_line_of_their_array(shared_desk: Desk) -> None:
    job = shared_desk.submit("--hold", "--array=0-9%3", script="true")
    shared_desk.say(f"scontrol update JobId={job}_[4-5] TimeLimit=7")
    assert shared_desk.say(f"squeue -h -j {job} -o %i") == f"{job}_[0-9]"
    assert len(shared_desk.say(f"squeue -h -r -j {job} -o %i").split()) == 10
    assert (
        shared_desk.run("squeue", "-h", "-j", job, "-o", "%i", "--array-unique").stdout.split()[0]
        == f"{job}_[0-3,6-9%3]"
    )
    shared_desk.say(f"scancel {job}")


@pytest.mark.parametrize(
    "line",
    [
        "sacct -X --noheader --format=jobid,state%20 --job 1",  # parsl's: --job means --jobs
        "sacct -n --fields=jobid --user root --group root",
        "sacct --yaml -j 1",
        "squeue --accounts=nobody --partitions=main --states=all --users=root --jobs",
        "squeue --acc=nobody --use=root --stat=all --par=main",
        "scancel --jobname=nosuch",
        "sinfo --stat=idle",
    ],
)
def test_abbreviated_long_options_are_accepted(shared_desk: Desk, line: str) -> None:
    shared_desk.say(line)


@pytest.mark.parametrize("line", ["sacct --jobname=x", "sacct -R x", "scancel --cron 1", "salloc --output=x true"])
def test_options_unknown_to_real_slurm_are_refused(shared_desk: Desk, line: str) -> None:
    done = shared_desk.run(*line.split())
    assert done.returncode in (1, 255)
    assert "unrecognized option" in done.stderr or "invalid option" in done.stderr


def test_deprecated_option_names_act_like_their_replacements(shared_desk: Desk) -> None:
    job = shared_desk.submit("--tasks-per-node=2", script="srun --cpu_bind=none --overlap=force true")
    assert shared_desk.field(job, "NumTasks") == "2"


def test_clusters_option_prints_the_cluster_name_and_refuses_unknown_clusters(shared_desk: Desk) -> None:
    config = shared_desk.say("scontrol show config").splitlines()
    name = next(line.split("= ")[1] for line in config if line.startswith("ClusterName"))
    number, _, cluster = shared_desk.submit("--cluster=all", "--hold", script="true").partition(";")
    assert cluster == name
    assert shared_desk.say(f"squeue -M {name} -o %i -j {number}").splitlines() == [f"CLUSTER: {name}", "JOBID", number]
    assert shared_desk.say("sinfo -M all -o %P").splitlines()[0] == f"CLUSTER: {name}"
    assert shared_desk.say(f"squeue -h -M {name} -o %i -j {number}") == number
    assert "No cluster 'nosuch'" in shared_desk.run("sinfo", "-M", "nosuch").stderr


# What a real Slurm 22.05 of this shape said, with one job of three CPUs on n1 (names of hosts are the nodes' here).
ROWS = {
    "%G": ["gpu:2"],
    "%20N %10c %10m %25f %10G": ["n[1-4]               8          16000      (null)                    gpu:2     "],
    "%n %G": ["n1 gpu:2", "n2 gpu:2", "n3 gpu:2", "n4 gpu:2"],
    "%N": ["n[1-4]"],
    "%t %N": ["mix n1", "idle n[2-4]"],
    "%D": ["4"],
    "%D %t": ["1 mix", "3 idle"],
    "%C": ["3/29/0/32"],
    "%a %l": ["up infinite", "up 1:00"],
    "%l %N": ["infinite n[1-4]", "1:00 n[1-4]"],
    "%p %N": ["10 n[1-4]", "1 n[1-4]"],
    "%M %N": ["OFF n[1-4]", "REQUEUE n[1-4]"],
    "%m %c %t": ["16000 8 mix", "16000 8 idle"],
    "%E %N": ["none n[1-4]"],
    "%F %P": ["1/3/0/4 main*", "1/3/0/4 short", "1/3/0/4 low", "1/3/0/4 low0"],
    "%o %N": ["127.0.0.1 n[1-4]"],
}
LONG_ROWS = {
    "NodeList,Gres,GresUsed,StateCompact": ["n1 gpu:2 gpu:0 mix", "n[2-4] gpu:2 gpu:0 idle"],
    "NodeList,AllocMem": ["n[1-4] 0"],
    "PartitionName,CPUsState": ["main 3/29/0/32", "short 3/29/0/32", "low 3/29/0/32", "low0 3/29/0/32"],
    "CPUs,Memory": ["8 16000"],
}


@pytest.fixture(scope="module")
def busy() -> Iterator[Desk]:
    shape = Shape.simple(quick=True)
    by_name = {part.name: part for part in shape.partitions}
    parts = [by_name["main"], replace(by_name["main"], name="short", default=False, max_minutes=1), by_name["low"]]
    parts.append(replace(by_name["low"], name="low0", grace_s=0))
    with FakeCluster(shape=replace(shape, partitions=tuple(parts))) as cluster:
        desk = Desk(cluster, cluster.folder)
        cluster.wait(desk.submit("--cpus-per-task=3", script="sleep 100"), "RUNNING")
        yield desk


@pytest.mark.parametrize("form", ROWS)
def test_sinfo_o_groups_equal_nodes_into_one_row(busy: Desk, form: str) -> None:
    assert busy.run("sinfo", "-h", "-o", form).stdout.splitlines() == ROWS[form]


@pytest.mark.parametrize("form", LONG_ROWS)
def test_sinfo_O_groups_rows_like_o(busy: Desk, form: str) -> None:
    assert [" ".join(line.split()) for line in busy.say(f"sinfo -h -O {form}").splitlines()] == LONG_ROWS[form]


def test_sinfo_N_prints_a_row_for_each_node_and_partition(busy: Desk) -> None:
    assert len(busy.say("sinfo -h -N -o %N").splitlines()) == 16


def test_sinfo_prints_cpu_load_and_free_memory(busy: Desk) -> None:
    load, free = busy.say("sinfo -h -o '%O %e'").split()
    assert float(load) >= 0
    assert free == "N/A" or int(free) > 0
    assert busy.say("sinfo -O FreeMem,CPUsLoad").split()[:2] == ["FREE_MEM", "CPU_LOAD"]


def test_sacctmgr_lists_users_and_associations_like_slurm(shared_desk: Desk) -> None:
    me = shared_desk.say("sacctmgr -n -P show user format=user")
    assert shared_desk.say("sacctmgr -n -P show user format=user,defaultaccount") == f"{me}|{me}"
    assert (
        shared_desk.run("sacctmgr", "-n", "-P", "show", "assoc", "format=account,user").stdout == f"{me}|\n{me}|{me}\n"
    )
    assert shared_desk.say(f"sacctmgr -n -P show assoc where user={me} format=account") == me
    assert shared_desk.say("sacctmgr -P show user").splitlines()[0] == "User|Def Acct|Admin"
    assert shared_desk.say("sacctmgr -P show assoc format=account,defaultqos").splitlines()[0] == "Account|Def QOS"
    assert shared_desk.run("sacctmgr", "show", "user", "format=nosuch").stderr == "Unknown field 'nosuch'\n"


def test_srun_refuses_mpi_pmix_but_accepts_mpi_none(shared_desk: Desk) -> None:
    done = shared_desk.run("srun", "--mpi=pmix", "true")
    assert (done.returncode, done.stderr.count("Invalid MPI type 'pmix'")) == (1, 1)
    assert "none" in shared_desk.say("srun --mpi=list")
    shared_desk.say("srun --mpi=none true")


@pytest.mark.parametrize("command", ["sattach", "scrontab", "sdiag", "sgather", "sreport", "strigger", "sview"])
def test_slurm_commands_unsupported_by_the_fake_fail_with_a_message(shared_desk: Desk, command: str) -> None:
    done = shared_desk.run(command, "1.0")
    assert (done.returncode, done.stderr) == (1, f"{command}: error: not supported by this fake cluster\n")


@pytest.mark.parametrize(
    "words",
    [
        "sacct --flags=SchedBackfill",
        "sacct --constraints=a100",
        "sacct --nnodes=2",
        "sstat -j 1 --pidformat",
        "scancel --wckey=w",
        "scontrol update jobid=1 licenses=a:1",
        "scontrol update jobid=1 StdErr=e.txt",
    ],
)
def test_option_missing_in_the_fake_is_refused_by_name(shared_desk: Desk, words: str) -> None:
    done = shared_desk.run(*words.split())
    assert done.returncode
    assert "is not supported by this fake cluster" in done.stderr


def test_script_with_pbs_lines_is_refused(shared_desk: Desk) -> None:
    (shared_desk.folder / "job.sh").write_text("#!/bin/bash\n#PBS -l walltime=00:03:00\ntrue\n")
    assert "line 2: #PBS lines are not read" in shared_desk.run("sbatch", "job.sh").stderr
    assert shared_desk.run("sbatch", "--ignore-pbs", "job.sh").returncode == 0
