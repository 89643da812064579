"""A program that needs more memory than it asked for, on clusters that see to that: it is tried once more."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster, Shape
from clusterdp.fakeslurm.core.job_ids import fresh_job_id
from clusterdp.slurm.hostlist import expand
from tests.e2e.cluster import Cluster
from tests.e2e.run import clusterdp, submit
from tests.slurm import packages
from tests.slurm.testbed import RealSlurm

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow, pytest.mark.long]

# No cgroups: slurmstepd looks at the memory of its tasks every second.
LIMITS = {
    "SelectTypeParameters=CR_Core": "SelectTypeParameters=CR_Core_Memory",
    "JobAcctGatherFrequency=1": "JobAcctGatherFrequency=1\nJobAcctGatherParams=OverMemoryKill",
}
CONFIG = """\
command: [bash, program.sh]
snapshot: {enabled: false}
resources: {nodes: 1, tasks_per_node: 1, time: 10, mem: 200M}
"""
GREEDY = """\
echo x >>ran
[ $(wc -l <ran) -le $TIMES ] || exit 0
exec python3 -c 'import time; kept = b"x" * (400 << 20); time.sleep(600)'
"""


# The kernel kills the task: cgroup v1, and releases whose cgroup.conf has a switch (23.02 and later).
BY_CGROUP = {
    "SelectTypeParameters=CR_Core": "SelectTypeParameters=CR_Core_Memory",
    "TaskPlugin=task/none": "TaskPlugin=task/cgroup",
    "CgroupPlugin=disabled": "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes",
}
RANK_1_IS_GREEDY = """\
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
[ $RANK = 1 ] || exec sleep 600
exec python3 -c 'import time; kept = b"x" * (400 << 20); time.sleep(600)'
"""


def _why_no_cgroups() -> str | None:
    if reason := packages.why_not():
        return reason
    if not os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.F_OK):
        return "there is no memory controller of cgroup v1 here"
    release = subprocess.run(["slurmctld", "-V"], env={"PATH": packages.PATH}, capture_output=True, text=True).stdout
    return "cgroup.conf has no switch in this release" if release.split()[-1] < "23.02" else None


@pytest.mark.slurm
def test_node_of_a_rank_killed_for_memory_is_avoided(project: Path) -> None:
    if reason := _why_no_cgroups():
        pytest.skip(reason)
    (project / "program.sh").write_text(RANK_1_IS_GREEDY)
    (project / "job.yaml").write_text(CONFIG.replace("nodes: 1", "nodes: 2"))
    with RealSlurm(changes=BY_CGROUP) as slurm:
        cluster = Cluster("slurm", slurm.environ(), 60.0)
        run = submit(cluster, project, "job.yaml", f"run_dir={project}/run")
        assert run.wait_end() == "COMPLETED", run.account()
        assert run.causes() == ["memory", "done"], run.account()
        (failed,) = run.events("failed")
        bad = max(expand(str(run.events("started")[0]["nodes"])))
        assert failed["error"] == f"srun: {bad}: task 1: Out Of Memory", run.account()
        assert f"ExcNodeList={bad}\n" in cluster.run("scontrol", "show", "job", run.job).replace(" ", "\n")


@pytest.fixture(scope="module", params=["fake", pytest.param("slurm", marks=pytest.mark.slurm)])
def limiting(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "fake":
        simple = Shape.simple(quick=True)
        settings = replace(simple.settings, enforce_memory=True, first_job_id=fresh_job_id())
        with FakeCluster(shape=replace(simple, settings=settings)) as fake:
            environ = fake.environ()
            yield Cluster("fake", {name: environ[name] for name in ("PATH", "SLURM_CONF")}, 60.0)
    elif reason := packages.why_not():
        pytest.skip(reason)
    else:
        with RealSlurm(changes=LIMITS) as slurm:
            yield Cluster("slurm", slurm.environ(), 60.0)


@pytest.mark.parametrize("times", [1, 2])
def test_job_out_of_memory_is_recorded_as_memory_and_retried_once(limiting: Cluster, project: Path, times: int) -> None:
    (project / "program.sh").write_text(GREEDY)
    (project / "job.yaml").write_text(CONFIG)
    run = submit(limiting, project, "job.yaml", f"run_dir={project}/run", f"launch.env.TIMES={times}")
    try:
        # A Slurm with cgroups says OUT_OF_MEMORY, and so does the fake.
        states = ("COMPLETED",) if times == 1 else ("FAILED", "OUT_OF_MEMORY")
        assert run.wait_end() in states, run.account()
        assert run.causes() == ["memory", "done" if times == 1 else "memory"], run.account()
        row = clusterdp(limiting, project, "status", "run").stdout
        assert row.count("ran out of memory") >= times, row
        if times == 2:
            assert "the same error as before" in row or "restart.memory.limit is 1" in row, row
    finally:
        limiting.run("scancel", run.job)
