"""What `clusterdp init` writes, by what Slurm says of the cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from clusterdp import config
from clusterdp.errors import RunError
from clusterdp.slurm.commands import ASSOCIATION_FIELDS
from clusterdp.submission.init import plan, write

SINFO = """\
cpu*|up|idle|20|64|256000|(null)|(null)|1-00:00:00|1-infinite
gpu|up|mixed|3|32|512000|gpu:a100:4(S:0-1)|a100,nvlink|2-00:00:00|1-8
gpu|up|down*|1|32|512000|gpu:a100:4|a100|2-00:00:00|1-8
debug|down|idle|1|8|16000|gpu:1|(null)|30:00|1
"""
PARTITIONS = """\
PartitionName=cpu PreemptMode=OFF GraceTime=0
PartitionName=gpu PreemptMode=REQUEUE GraceTime=120
"""

NO_LIMITS = "|" * (len(ASSOCIATION_FIELDS) - 3)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of commands that answer with a file beside them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {
        "sbatch": "",
        "sinfo": SINFO,
        "scontrol": PARTITIONS,
        "sacctmgr": f"vision||normal,high{NO_LIMITS}\nnlp||normal{NO_LIMITS}\n",
    }.items():
        (folder / f"{name}.txt").write_text(text)
        (folder / name).write_text(f'#!/bin/sh\ncat "{folder}/{name}.txt"\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("CLUSTERDP_SITE", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def test_init_writes_a_loadable_config_with_resources_of_the_cluster(slurm: Path, tmp_path: Path) -> None:
    said = write(plan(Path()))
    assert said == [f"wrote  {name}" for name in ("train.py", "train.yaml", tmp_path / "config/clusterdp/site.yaml")]
    resources = config.load("train.yaml").resources
    assert (resources.gpus_per_node, resources.cpus_per_task, resources.time) == ("a100:4", 8, "1:00:00")
    assert (resources.partition, resources.account) == ("gpu", None)


def test_init_site_profile_lists_partitions_accounts_and_qos(slurm: Path, tmp_path: Path) -> None:
    write(plan(Path()))
    text = (tmp_path / "config/clusterdp/site.yaml").read_text()
    assert text.splitlines()[1:] == [
        "resources:",
        "  partition: gpu",
        "  #   cpu: 20 nodes of 64 CPUs, 256 GB; at most 1-00:00:00",
        "  #   gpu: 4 nodes of 32 CPUs, 512 GB, 4 x a100; at most 2-00:00:00; preempted (REQUEUE, grace 120 s)",
        "  #   debug: 1 node of 8 CPUs, 16 GB, 1 x GPU; at most 30:00; down",
        "  # account: vision    yours are vision, nlp; without it, your default one",
        "  # qos: normal    you may use normal, high",
    ]


def test_init_overwrites_no_existing_file(slurm: Path, tmp_path: Path) -> None:
    Path("train.py").write_text("mine")
    site = tmp_path / "config/clusterdp/site.yaml"
    site.parent.mkdir(parents=True)
    site.write_text("resources: {partition: mine}\n")
    assert write(plan(Path())) == [
        "kept   train.py: it was there",
        "wrote  train.yaml",
        f"kept   {site}: it was there",
    ]
    assert (Path("train.py").read_text(), site.read_text()) == ("mine", "resources: {partition: mine}\n")


def test_init_writes_the_only_account_and_the_partitions_short_time_limit(slurm: Path, tmp_path: Path) -> None:
    (slurm / "sinfo.txt").write_text("short*|up|idle|2|8|16000|(null)|(null)|30:00|1-infinite\n")
    (slurm / "sacctmgr.txt").write_text(f"vision||normal{NO_LIMITS}\n")
    write(plan(Path()))
    resources = config.load("train.yaml").resources
    assert (resources.partition, resources.account, resources.time) == ("short", "vision", "30:00")
    assert (resources.tasks_per_node, resources.gpus_per_node) == (2, None)


@pytest.mark.parametrize("silent", ["sbatch", "sinfo", "scontrol", "sacctmgr"])
def test_init_writes_no_site_profile_if_a_slurm_command_except_sacctmgr_fails(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    if silent == "sbatch":
        (slurm / silent).unlink()
        monkeypatch.setenv("PATH", str(slurm))  # the machine may have one
    else:
        (slurm / silent).write_text("#!/bin/sh\nexit 1\n")
    files = plan(Path())
    names = ["train.py", "train.yaml", "site.yaml"]
    assert [file.path.name for file in files] == (names if silent == "sacctmgr" else names[:2])
    assert yaml.safe_load(files[1].text)["entry"] == "train:main"


def test_init_into_a_missing_folder_is_an_error_with_its_name(slurm: Path) -> None:
    with pytest.raises(RunError, match=r"^nowhere: is not a folder\. Make it first"):
        plan(Path("nowhere"))
