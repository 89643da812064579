"""A node's /tmp, /var/tmp, /dev/shm and TMPDIR are its own, and what the nodes share stays where it lies."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core import node_folders
from clusterdp.fakeslurm.core.paths import Paths
from tests.fakeslurm.conftest import Desk

pytestmark = pytest.mark.skipif(not node_folders.possible(), reason="this system gives no mount namespaces")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("shared")
    with FakeCluster(nodes=3, quick=True, node_local=True, shared=[folder]) as cluster:
        yield Desk(cluster, folder)


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/dev/shm"])
def test_two_nodes_have_separate_tmp_var_tmp_and_dev_shm(desk: Desk, place: str) -> None:
    file = Path(place, f"who-{desk.cluster.folder.name}")
    line = f"echo $SLURMD_NODENAME > {file}; srun --overlap true; cat {file}"
    (desk.folder / "who.sh").write_text(f"#!/bin/bash\n{line}\n")
    (desk.folder / "who.sh").chmod(0o700)
    assert sorted(desk.say("srun --nodes=2 --ntasks=2 ./who.sh").split()) == ["n1", "n2"]
    assert not file.exists()


def test_batch_script_and_tasks_of_a_node_share_its_tmp(desk: Desk) -> None:
    job = desk.submit("--nodes=1", script="echo saved > /tmp/note; srun cat /tmp/note")
    desk.cluster.wait(job, "COMPLETED")
    assert desk.output(job).split() == ["saved"]


def test_failed_node_loses_its_temporary_files(desk: Desk) -> None:
    desk.say("srun -w n3 bash -c 'echo saved > /tmp/lost; echo saved > /dev/shm/lost'")
    desk.cluster.fail("n3")
    desk.cluster.resume("n3")
    look = "ls /tmp/lost /dev/shm/lost 2>/dev/null; echo looked"
    assert desk.say(f"srun -w n3 bash -c '{look}'").split() == ["looked"]


def test_shared_folder_below_tmp_stays_visible_on_all_nodes(desk: Desk) -> None:
    (desk.folder / "data").write_text("for all")
    assert desk.say(f"srun --nodes=2 --ntasks=2 cat {desk.folder}/data") == "for allfor all"


def test_code_checkout_below_tmp_stays_visible_on_the_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The commands of the fake run from it, and its interpreter may lie elsewhere."""
    module = "/tmp/checkout/clusterdp/fakeslurm/core/node_folders.py"
    monkeypatch.setattr(node_folders, "__file__", module)
    assert node_folders.path_of(tmp_path, "n1", [], Path(module)) == Path(module)
    assert node_folders.path_of(tmp_path, "n1", [], Path("/tmp/note")) != Path("/tmp/note")


def test_sbcast_copies_a_file_to_each_node(desk: Desk) -> None:
    (desk.folder / "data").write_text("for all")
    job = desk.submit("--nodes=2", script="sbcast data /tmp/data; srun --ntasks=2 cat /tmp/data")
    desk.cluster.wait(job, "COMPLETED")
    assert desk.output(job) == "for allfor all"


def test_tmp_declared_as_shared_is_not_private_to_a_node() -> None:
    assert Path("/tmp") not in node_folders.own_places([Path("/tmp")])


def test_node_folders_are_removed_with_the_cluster(tmp_path: Path) -> None:
    memory = node_folders.memory_of(Paths(tmp_path / "fake"))
    with FakeCluster(tmp_path / "fake", nodes=1, quick=True, node_local=True) as cluster:
        cluster.run("srun", "--chdir=/", "touch", "/dev/shm/mine", "/tmp/mine")
        assert memory.exists()
    assert not memory.exists()
    assert not (tmp_path / "fake" / "nodes").exists()
