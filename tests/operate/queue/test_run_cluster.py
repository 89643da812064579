"""A run names its cluster. A fake one that is up here is used from any terminal; nobody else's commands are run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.operate.change.cancel import cancel
from clusterdp.operate.queue.run_cluster import is_gone, is_here, put_on_path
from clusterdp.operate.queue.run_status import current_status
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.run_state import RunState
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue


@pytest.fixture(autouse=True)
def another_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In which no cluster was put on the PATH. `put_on_path` changes it: the next test must not notice."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("SLURM_CONF", "")
    monkeypatch.delenv("SLURM_CONF")


@pytest.fixture
def fake(tmp_path: Path) -> FakeQueue:
    """The folder of a fake cluster that is up, as far as one sees from outside; its squeue knows job 7."""
    folder = tmp_path / "fake"
    for name in ("bin", "state"):
        (folder / name).mkdir(parents=True)
    for name in ("slurm.conf", "up", "state/shape.json"):
        (folder / name).touch()
    for each in (folder, folder / "bin"):
        each.chmod(0o700)
    commands = FakeQueue(folder / "bin")
    commands.answers("7|RUNNING|None|n1")
    commands.write("scancel", "")
    return commands


@pytest.fixture
def run_there(builder: RunBuilder, fake: FakeQueue) -> RunBuilder:
    builder.submitted(cluster=str(fake.folder.parent / "slurm.conf")).attempt()
    return builder


def test_put_on_path_adds_the_commands_of_the_runs_fake_cluster(run_there: RunBuilder, fake: FakeQueue) -> None:
    put_on_path(run_there.run)
    assert current_status(read_history(run_there.run)).state is RunState.RUNNING
    assert "cancelled job 7" in cancel(run_there.run)
    assert "scancel 7" in fake.asked


def test_slurm_on_path_is_not_asked_about_runs_of_another_cluster(
    run_there: RunBuilder, fake: FakeQueue, queue: FakeQueue
) -> None:
    put_on_path(run_there.run)
    assert current_status(read_history(run_there.run)).state is RunState.RUNNING
    assert queue.asked == []


def test_repeated_put_on_path_changes_path_only_once(run_there: RunBuilder) -> None:
    put_on_path(run_there.run)
    once = os.environ["PATH"]
    put_on_path(run_there.run)
    assert os.environ["PATH"] == once


def test_run_on_a_stopped_fake_cluster_has_vanished(run_there: RunBuilder, fake: FakeQueue) -> None:
    (fake.folder.parent / "up").unlink()
    put_on_path(run_there.run)
    status = current_status(read_history(run_there.run))
    assert (status.state, status.why) == (RunState.VANISHED, "no ending on record, and its cluster is gone")
    assert fake.asked == []


def others_may_write(folder: Path) -> None:
    folder.chmod(0o777)


def others_may_write_its_bin(folder: Path) -> None:
    (folder / "bin").chmod(0o770)


def others_may_replace_it(folder: Path) -> None:
    folder.parent.chmod(0o777)


def it_belongs_to_another(folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(folder, 65534, -1)


def its_bin_belongs_to_another(folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(folder / "bin", 65534, -1)


def its_bin_is_a_link(folder: Path) -> None:
    (folder / "bin").rename(folder.parent / "elsewhere")
    (folder / "bin").symlink_to(folder.parent / "elsewhere")


def it_is_no_fake_cluster(folder: Path) -> None:
    (folder / "state/shape.json").unlink()


@pytest.mark.parametrize(
    "how",
    [
        others_may_write,
        others_may_write_its_bin,
        others_may_replace_it,
        it_belongs_to_another,
        its_bin_belongs_to_another,
        its_bin_is_a_link,
        it_is_no_fake_cluster,
    ],
)
def test_slurm_commands_in_untrusted_folders_are_not_run(run_there: RunBuilder, fake: FakeQueue, how: object) -> None:
    path = os.environ["PATH"]
    how(fake.folder.parent)  # type: ignore[operator]
    put_on_path(run_there.run)
    assert os.environ["PATH"] == path
    assert current_status(read_history(run_there.run)).state is not RunState.VANISHED
    assert fake.asked == []


def test_put_on_path_does_not_change_path_for_the_local_slurm(
    builder: RunBuilder, queue: FakeQueue, fake: FakeQueue
) -> None:
    builder.submitted(cluster="").attempt()
    path = os.environ["PATH"]
    put_on_path(builder.run)
    assert os.environ["PATH"] == path
    assert is_here("")


def test_running_fake_cluster_is_found_and_a_stopped_one_is_gone(tmp_path: Path, builder: RunBuilder) -> None:
    cluster = FakeCluster(tmp_path / "real", nodes=1, quick=True)
    conf = str(tmp_path / "real" / "slurm.conf")
    builder.submitted(cluster=conf)
    with cluster:
        assert not is_gone(conf)
        put_on_path(builder.run)
        assert is_here(conf)
    assert is_gone(conf)


@pytest.fixture
def outer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which the user looks at a third cluster."""
    monkeypatch.setenv("SLURM_CLUSTERS", "c3")


@pytest.mark.usefixtures("outer")
@pytest.mark.parametrize(("cluster", "asked"), [(";c2", " --clusters=c2"), ("", "")])
def test_slurm_is_asked_about_a_job_on_the_jobs_own_cluster(
    builder: RunBuilder, queue: FakeQueue, cluster: str, asked: str
) -> None:
    builder.submitted(cluster=cluster).attempt()
    queue.answers("7|RUNNING|None|n1")
    put_on_path(builder.run)
    assert current_status(read_history(builder.run)).state is RunState.RUNNING
    cancel(builder.run)
    assert {each.partition(" --states")[0] for each in queue.asked} == {f"squeue{asked}", f"scancel{asked} 7"}


@pytest.mark.usefixtures("outer")
def test_slurm_is_not_asked_about_a_job_of_another_cluster(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted(cluster=";c2").attempt()
    assert not is_here(";c2")
    assert current_status(read_history(builder.run)).why.startswith("as last recorded; there is no squeue here")
    builder.submitted("8", cluster="")
    put_on_path(builder.run)
    current_status(read_history(builder.run))
    assert queue.asked == ["squeue --states=all --jobs=8 --format=%i|%T|%r|%N\t%o\t%j"]
