"""`clusterdp check` beside a real Slurm that enforces limits: what it says of an account or a QOS comes true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.slurm import packages
from tests.slurm.testbed import RealSlurm
from tests.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(300)]
STORAGE = "AccountingStorageType=accounting_storage/slurmdbd"
ENFORCED = {STORAGE: f"{STORAGE}\nAccountingStorageEnforce=limits,qos\nAccountingStorageTRES=gres/gpu"}
SACCTMGR = """\
add qos small set MaxWall=10 MaxTRESPerJob=node=2,cpu=8 Flags=DenyOnLimit
add qos waits set MaxWall=10 MaxTRESPerJob=node=2
add qos each set MaxTRESPerUser=cpu=4,gres/gpu=1 MaxSubmitJobsPerUser=3
add qos group set GrpTRES=cpu=4
add qos least set MinTRESPerJob=node=2
add qos thin set MaxTRESPerNode=cpu=4
add qos deny set Flags=DenyOnLimit
add qos closed
add account top GrpTRES=cpu=6
add account vision parent=top
add account nlp MaxWall=5
add user root account=vision qos=normal,small,waits,each,group,least,thin,deny defaultqos=normal
add user root account=nlp partition=low qos=normal,deny MaxTRESPerJob=cpu=2
add cluster other
add account far cluster=other
add user root account=far cluster=other
modify user root where cluster=CLUSTER set defaultaccount=vision
"""


@pytest.fixture(scope="module")
def environ() -> Iterator[dict[str, str]]:
    """Of a Slurm of its own."""
    if reason := packages.why_not():
        pytest.skip(reason)
    with RealSlurm(changes=ENFORCED) as slurm:
        found = {**os.environ, **slurm.environ()}
        config = subprocess.run(["scontrol", "show", "config"], env=found, capture_output=True, text=True, check=True)
        name = re.findall(r"^ClusterName\s*= (\S+)", config.stdout, re.MULTILINE)[0]
        for line in SACCTMGR.replace("CLUSTER", name).splitlines():
            done = subprocess.run(["sacctmgr", "-i", *line.split()], env=found, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        words = "create partitionname=memory nodes=ALL maxmempercpu=1000".split()
        subprocess.run(["scontrol", *words], env=found, check=True)
        yield found


# What is asked for; what check says, or nothing; and what Slurm does.
@pytest.mark.parametrize(
    ("asked", "said", "comes_true"),
    [
        ({}, "", "starts"),
        ({"qos": "small", "time": 5, "nodes": 2, "cpus_per_task": 3}, "", "starts"),
        ({"qos": "small", "time": 20}, "time: 20 is more than the QOS small allows: 00:10:00", "is refused"),
        ({"qos": "small", "nodes": 3}, "nodes: 3 nodes, and the QOS small allows 2", "is refused"),
        ({"qos": "waits", "nodes": 3}, "nodes: 3 nodes, and the QOS waits allows 2", "QOSMaxNodePerJobLimit"),
        ({"qos": "each", "gpus_per_node": 2}, "2 GPUs, and the QOS each allows 1 for each user", "QOSMaxGRESPerUser"),
        ({"qos": "group", "cpus_per_task": 5}, "5 CPUs, and the QOS group allows 4", "QOSGrpCpuLimit"),
        ({"qos": "least"}, "1 node, and the QOS least asks for 2 or more", "QOSMinNode"),
        ({"qos": "thin", "cpus_per_task": 5}, "5 CPUs on a node, and the QOS thin allows 4", "QOSMaxCpuPerNode"),
        ({"cpus_per_task": 7}, "7 CPUs, and the account top allows 6 for all jobs together", "AssocGrpCpuLimit"),
        ({"qos": "deny", "cpus_per_task": 7}, "7 CPUs, and the account top allows 6", "is refused"),
        ({"qos": "group", "nodes": 4}, "", "starts"),  # the QOS decides about CPUs
        ({"account": "nlp", "partition": "low", "time": 8}, "time: 8 is more than your account nlp allows: 00:05:00",
         "AssocMaxWallDurationPerJobLimit"),
        ({"account": "nlp", "partition": "low", "cpus_per_task": 3}, "3 CPUs, and your account nlp allows 2",
         "AssocMaxCpuPerJobLimit"),
        ({"account": "nlp"}, "account: you may use nlp in low alone, and not in main", "is refused"),
        ({"partition": "memory", "mem": "9000"}, "mem: 9000 takes 9 CPUs on a node", "is refused"),
        ({"partition": "memory", "mem": "6000"}, "", "starts"),
        ({"account": "far"}, "account: far is none of your accounts: ", "is refused"),  # it is one on another cluster
        ({"qos": "closed"}, "qos: closed is none that you may use", "is refused"),
        ({"account": "nlp", "partition": "low", "qos": "waits"}, "qos: waits is none that you may use", "is refused"),
    ],
)  # fmt: skip
def test_accounting_errors_of_check_agree_with_a_real_slurm(
    asked: Mapping[str, object], said: str, comes_true: str, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("def main(job):\n    pass\n")
    (tmp_path / "cfg.yaml").write_text("entry: train:main\nresources: {nodes: 1, time: 1}\n")
    words = [f"resources.{key}={value}" for key, value in asked.items()]
    command = [sys.executable, "-m", "clusterdp", "check", "cfg.yaml", "--json", *words]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    errors = [each for each in json.loads(done.stdout)["findings"] if each["level"] == "error"]
    assert [said in f"{each['key']}: {each['what']}" for each in errors] == [True] * bool(said), errors
    assert all(("waits for ever" in each["why"]) == comes_true[0].isupper() for each in errors)
    assert done.returncode == bool(said)
    assert what_slurm_does(asked, environ, tmp_path) == comes_true


def what_slurm_does(asked: Mapping[str, object], environ: dict[str, str], folder: Path) -> str:
    """`starts`, `is refused`, or the reason for which it waits."""
    all_asked = {"nodes": 1, "time": 1, "ntasks_per_node": 1, "output": "/dev/null"} | dict(asked)
    options = [f"--{key.replace('_', '-')}={value}" for key, value in all_asked.items()]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True)

    done = run("sbatch", "--parsable", *options, "--wrap=true")
    if done.returncode != 0:
        return "is refused"
    job = done.stdout.strip()
    try:
        look = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T %r")
        return wait_for("a start, or a reason to wait", lambda: _decided(run(*look).stdout), 30)
    finally:
        run("scancel", job)


def _decided(said: str) -> str:
    state, reason = said.split()
    if state != "PENDING":
        return "starts"
    return reason if reason not in ("None", "Priority", "Resources") else ""
