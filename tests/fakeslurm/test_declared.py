"""Shapes that people declare: what they say holds on the cluster, and what is wrong is named with its remedy."""

from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster, FakeSlurmError
from clusterdp.fakeslurm.cli import read_shape
from clusterdp.fakeslurm.shape_file import shape_from

from .conftest import Desk

FILE = """
name: mine
nodes:
  - {name: "g[1-2]", cpus: 4, gpus: 8, gpu_type: a100, memory_mb: 64000, features: [a100, nvlink]}
  - name: c[01-03]
    cpus: 2
partitions:
  - {name: gpu, nodes: "g[1-2]", default: true, max_time: 2:00:00}
  - {name: low, tier: 1, preempt_mode: REQUEUE, grace_s: 120}
  - {name: scrap, tier: 1, preempt_mode: CANCEL}
  - {name: solid, preempt_mode: OFF}
settings: {kill_wait_s: 1, requeue_delay_s: 0.2, reservations: [mine], licenses: matlab}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return path


def test_cluster_has_the_nodes_and_partitions_declared_in_its_file(file: Path, tmp_path: Path) -> None:
    with FakeCluster(shape=read_shape(str(file), quick=True)) as cluster:
        desk = Desk(cluster, tmp_path)
        rows = desk.say("sinfo -h -o %P|%D|%l|%N --all").splitlines()
        assert sorted(rows) == [
            "gpu*|2|2:00:00|g[1-2]",
            "low|5|infinite|g[1-2],c[01-03]",
            "scrap|5|infinite|g[1-2],c[01-03]",
            "solid|5|infinite|g[1-2],c[01-03]",
        ]
        assert desk.say("sinfo -h -N -p low -n g1,c03 -o %N|%c|%f|%G").splitlines() == [
            "g1|4|a100,nvlink|gpu:a100:8",
            "c03|2|(null)|(null)",
        ]
        script = "srun hostname >/dev/null; echo $SLURM_JOB_NODELIST $CUDA_VISIBLE_DEVICES"
        job = desk.submit("-C", "nvlink", "-p", "low", "--gpus-per-node=8", script=script)
        cluster.wait(job, "COMPLETED")
        assert desk.output(job) == "g1 0,1,2,3,4,5,6,7\n"
        assert desk.run("sbatch", "--gpus-per-node=9", "--wrap=true").returncode == 1


def test_gpus_have_the_declared_type_and_another_type_is_refused(file: Path, tmp_path: Path) -> None:
    with FakeCluster(shape=read_shape(str(file), quick=True)) as cluster:
        desk = Desk(cluster, tmp_path)
        script = "srun --gpus-per-task=a100:2 bash -c 'echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_PER_NODE'"
        job = desk.submit("--gpus-per-node=a100:2", "--reservation=mine", "--licenses=matlab:2", script=script)
        cluster.wait(job, "COMPLETED")
        assert desk.output(job) == "0,1 a100:2\n"
        assert desk.say("squeue -h -t all -o %b") == "gres/gpu:a100:2"
        assert "Gres=gpu:a100:8" in desk.say("scontrol show node g1")
        for refused in ("--gpus-per-node=h100:1", "--gres=gpu:h100", "--reservation=yours", "--licenses=maple"):
            assert desk.run("sbatch", refused, "--wrap=true").returncode == 1, refused
        assert desk.run("sbatch", "-p", "scrap", "-w", "c01", "--gpus-per-node=a100:1", "--wrap=true").returncode == 1
        bad = desk.submit("--gpus-per-node=a100:2", script="srun --gpus-per-task=h100:1 true")
        cluster.wait(bad, "FAILED")


def test_preempted_job_is_not_requeued_in_a_partition_with_preempt_mode_cancel(file: Path, tmp_path: Path) -> None:
    with FakeCluster(shape=read_shape(str(file), quick=True)) as cluster:
        desk = Desk(cluster, tmp_path)
        script = "echo up; sleep 60"
        scrap = desk.submit("-p", "scrap", "--exclusive", "-w", "g1", script=script)
        desk.until_said(scrap, "up")
        desk.submit("-p", "gpu", "--exclusive", "-w", "g1", script="true")
        assert cluster.wait(scrap).value == "PREEMPTED"


def test_yaml_does_not_convert_max_time_or_preempt_mode_off(file: Path) -> None:
    """YAML itself takes 2:00:00 for 7200, and OFF for a truth value."""
    shape = read_shape(str(file))
    assert [(part.name, part.max_minutes, part.preempt) for part in shape.partitions] == [
        ("gpu", 120, "OFF"),
        ("low", None, "REQUEUE"),
        ("scrap", None, "CANCEL"),
        ("solid", None, "OFF"),
    ]


def test_time_scale_shortens_declared_cluster_times_but_not_kill_wait(file: Path) -> None:
    settings = read_shape(str(file), time_scale=60).settings
    assert (settings.minute_s, settings.lasting(120), settings.kill_wait_s) == (1, 2, 1)


@pytest.mark.parametrize(("declared", "first"), [({}, 77), ({"first_job_id": "10000"}, 10000)])
def test_declared_first_job_id_wins_also_as_slurms_default(declared: dict[str, str], first: int) -> None:
    shape = shape_from({"nodes": [NODE], "settings": declared}, first_job_id=77)
    assert shape.settings.first_job_id == first


def test_cluster_file_settings_accept_a_boolean_and_a_slurm_version() -> None:
    settings = shape_from({"nodes": [NODE], "settings": {"enforce_memory": "yes", "slurm_version": "23.02"}}).settings
    assert (settings.enforce_memory, settings.slurm_version) == (True, "23.02.7")


NODE = {"name": "n1"}
WRONG = [
    ({}, "nodes: there is none"),
    ([], "not a mapping"),
    ({"nodes": {"name": "n1"}}, "nodes: .* is not a list"),
    ({"nodes": ["n1"]}, r"nodes\[0\]: 'n1' is not a mapping"),
    ({"nodes": [{"cpus": 2}]}, r"nodes\[0\].name: '' names no node"),
    ({"nodes": [{"name": "n[1-"}]}, r"nodes\[0\].name: 'n\[1-' is not a list of hosts"),
    ({"nodes": [NODE, {"name": "n[1-2]"}]}, "'n1' is declared twice"),
    ({"nodes": [{**NODE, "cpus": "many"}]}, r"nodes\[0\].cpus: 'many' is not a whole number"),
    ({"nodes": [{**NODE, "cpus": 0}]}, r"nodes\[0\].cpus: 0 is out of range. Write 1 or more"),
    ({"nodes": [{**NODE, "gpu": 2}]}, r"nodes\[0\].gpu: unknown. There are name, cpus, gpus, memory_mb, features"),
    ({"nodes": [NODE], "partitions": [{"name": "a", "nodes": "n2"}]}, r"partitions\[0\].nodes: 'n2' is not among"),
    ({"nodes": [NODE], "partitions": [{"name": "a"}, {"name": "a"}]}, "two have the same name"),
    ({"nodes": [NODE], "partitions": [{"name": "a", "preempt_mode": "SUSPEND"}]}, "preempt_mode: 'SUSPEND' is not one"),
    ({"nodes": [NODE], "partitions": [{"name": "a", "max_time": "5m"}]}, r"max_time: '5m' is not a time"),
    ({"nodes": [NODE], "partitions": [{"name": "a", "default": "maybe"}]}, "default: 'maybe' is neither true nor"),
    ({"nodes": [NODE], "settings": {"kill_wait": 3}}, "settings.kill_wait: unknown. There are kill_wait_s, "),
    ({"nodes": [NODE], "settings": {"look_s": 0}}, "settings.look_s: 0 is out of range. Write 0.05 or more"),
    ({"nodes": [NODE], "settings": {"kill_wait_s": True}}, "settings.kill_wait_s: True is not a number"),
    ({"nodes": [NODE], "settings": {"slurm_version": "19.05"}}, "slurm_version: the fake knows no release '19.05'"),
    ({"nodes": [NODE], "nodez": 1}, "nodez: unknown. There are name, nodes, partitions, settings"),
]


@pytest.mark.parametrize(("declared", "text"), WRONG)
def test_invalid_cluster_declaration_is_an_error_with_its_cause(declared: dict[str, object], text: str) -> None:
    with pytest.raises(FakeSlurmError, match=text):
        shape_from(declared)


def test_missing_or_unparsable_cluster_file_is_an_error_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("nodes: [")
    with pytest.raises(FakeSlurmError, match=r"bad.yaml: no YAML: .*line 1"):
        read_shape(str(tmp_path / "bad.yaml"))
    with pytest.raises(FakeSlurmError, match="No such file"):
        read_shape(str(tmp_path / "none.yaml"))


def test_job_runs_on_the_node_with_the_requested_gpu_type(tmp_path: Path) -> None:
    nodes = [{"name": name, "gpus": 2, "gpu_type": kind} for name, kind in (("a1", "a100"), ("h1", "h100"))]
    with FakeCluster(shape=shape_from({"nodes": nodes}, quick=True)) as cluster:
        desk = Desk(cluster, tmp_path)
        for kind, node in (("h100", "h1"), ("a100", "a1")):
            job = desk.submit(f"--gpus-per-node={kind}:1", script="echo $SLURM_JOB_NODELIST")
            cluster.wait(job, "COMPLETED")
            assert desk.output(job) == f"{node}\n"
