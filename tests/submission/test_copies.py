"""The newest copy of the state in memory becomes a checkpoint when a job leaves its nodes."""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.batch.files.job import Job, job_of
from clusterdp.batch.files.record import Record
from clusterdp.batch.files.rules import Rules
from clusterdp.batch.nodes.copies import Copies, Copy
from clusterdp.batch.nodes.keepers import Keepers
from clusterdp.batch.processes.children import Children
from clusterdp.checkpoint import Checkpointer, list_checkpoints
from clusterdp.storage import MemoryStorage
from tests.checkpoint.gang import on_ranks
from tests.keepers import Node, keepers
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")


MANIFEST = b'{"head": {},\n"body": {"files": {"a": 1}}}\n'


class Apart(Children):
    """Without signal handlers."""

    def __init__(self) -> None:
        self.environ, self.private = {}, []


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with keepers(tmp_path / "checkpoints", "n1", key=uuid.uuid4().hex) as (one,):
        yield one


@pytest.fixture
def job(tmp_path: Path) -> Job:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
    found = job_of(str(tmp_path), "job.sbatch", environ)
    for folder in (tmp_path / "claims", tmp_path / "events", Path(found.here)):
        folder.mkdir(parents=True)
    (tmp_path / "claims/000001").write_text("7.0 0123\n")
    return found


@pytest.fixture
def copies(node: Node, job: Job) -> Copies:
    """The batch program's, after it has started this keeper."""
    rules, apart = Rules(kind="entry", copies=True), Apart()
    found = Copies(job, rules, apart, Keepers(job, rules, apart))
    attach(found, node)
    return found


def attach(copies: Copies, node: Node) -> None:
    copies.keepers.key = node.key
    copies.keepers.attach(node.process)


def checkpointer(node: Node, tmp_path: Path, fill: float = 1.0) -> Checkpointer:
    return on_node(node.key, node.name, tmp_path, fill)


def on_node(key: str, name: str, tmp_path: Path, fill: float = 1.0, spare: bool = False) -> Checkpointer:
    model = torch.nn.Linear(300, 300)
    torch.nn.init.constant_(model.weight, fill)
    memory = MemoryStorage(key, name, may_lose_nodes=spare)
    return Checkpointer(tmp_path / "checkpoints", {"model": model}, memory=memory, attempt="7.0")


def copy(checkpointer: Checkpointer, step: int) -> None:
    checkpointer.copy(step)
    checkpointer.wait()


def restored(tmp_path: Path) -> tuple[int, float] | None:
    """The step, and the weights, of a job on other nodes."""
    model = torch.nn.Linear(300, 300)
    found = Checkpointer(tmp_path / "checkpoints", {"model": model}).restore()
    return (found.step, float(model.weight.detach().mean())) if found else None


def events(job: Job) -> list[dict[str, Any]]:
    path = Path(job.run, "events", f"{job.attempt}-batch.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_newer_copy_is_written_and_restored_elsewhere(
    node: Node, job: Job, copies: Copies, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = checkpointer(node, tmp_path, fill=3.0)
    copy(here, 9)
    copies.write(Record(job), lambda: 60.0)
    node.end()
    assert restored(tmp_path) == (9, 3.0)
    (event,) = events(job)
    assert (event["event"], event["step"], event["memory"]) == ("saved", 9, True)
    assert Path(job.file("saved")).read_text() == "9\n"
    assert "step 9 was in the memory of the nodes, and is a checkpoint now." in capfd.readouterr().err


def test_copy_follows_the_checkpoint_before_it_in_the_order(
    node: Node, job: Job, copies: Copies, tmp_path: Path
) -> None:
    here = checkpointer(node, tmp_path)
    here.save(1)
    copy(here, 2)
    copies.write(Record(job), lambda: 60.0)
    assert [info.step for info in list_checkpoints(tmp_path / "checkpoints")] == [1, 2]
    after = checkpointer(node, tmp_path)
    after.restore()
    after.save(3)
    assert [info.step for info in list_checkpoints(tmp_path / "checkpoints")] == [1, 2, 3]


def test_older_copy_is_not_written(node: Node, job: Job, copies: Copies, tmp_path: Path) -> None:
    here = checkpointer(node, tmp_path)
    copy(here, 1)
    here.save(2)
    copies.write(Record(job), lambda: 60.0)
    assert [info.step for info in list_checkpoints(tmp_path / "checkpoints")] == [2]
    assert events(job) == []


@pytest.mark.parametrize("claims", [{}, {"000001": "7.0 a\n", "000010": "8.0 b\n"}, {"000009": "77.0 a\n"}])
def test_job_without_the_newest_claim_writes_no_copy(
    node: Node, job: Job, copies: Copies, tmp_path: Path, claims: dict[str, str]
) -> None:
    (tmp_path / "claims/000001").unlink()
    for name, text in claims.items():
        (tmp_path / "claims" / name).write_text(text)
    copy(checkpointer(node, tmp_path), 1)
    copies.write(Record(job), lambda: 60.0)
    assert restored(tmp_path) is None


def test_copy_without_all_its_files_becomes_no_checkpoint(
    node: Node, job: Job, copies: Copies, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy(checkpointer(node, tmp_path), 4)
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    (tmp_path / "checkpoints/step_00000004").write_text("in the way")
    copies.write(Record(job), lambda: 60.0)
    assert restored(tmp_path) is None
    said = "the copy of the state in memory could not be written: failed n1 [Errno 17]"
    assert said in capfd.readouterr().err


def test_write_of_a_copy_ends_at_a_term_and_in_time(
    node: Node,
    job: Job,
    copies: Copies,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy(checkpointer(node, tmp_path), 4)
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        copies._newest = lambda: Copy((0, 1.0, "x"), 4, "x", "step_00000004/MANIFEST.x.json", MANIFEST)  # type: ignore[method-assign]
        copies.write(Record(job), lambda: 60.0, lambda: True)
        copies.write(Record(job), lambda: 0.6)
    finally:
        os.kill(node.process.pid, signal.SIGCONT)
    said = capfd.readouterr().err
    assert "could not be written: the job must leave its nodes" in said
    assert "could not be written: no answer of the keepers in time: n1" in said
    assert node.process.poll() is None, "the job may go on with fewer ranks"
    assert restored(tmp_path) is None


def test_fault_in_the_write_of_a_copy_does_not_reach_the_requeue(
    job: Job, copies: Copies, capfd: pytest.CaptureFixture[str]
) -> None:
    copies._newest = lambda: Copy((0, 1.0, "x"), 4, "x", "4/x", b"no JSON")  # type: ignore[method-assign]
    copies.write(Record(job), lambda: 60.0)
    assert "The copy of the state in memory is lost." in capfd.readouterr().err


def test_ended_keepers_write_no_copy(node: Node, job: Job, copies: Copies, tmp_path: Path) -> None:
    copy(checkpointer(node, tmp_path), 4)
    node.end()
    copies.write(Record(job), lambda: 60.0)
    copies.keepers.close()
    assert (restored(tmp_path), events(job)) == (None, [])


def test_copy_is_written_only_if_all_nodes_have_their_files(
    job: Job, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key = uuid.uuid4().hex
    with keepers(tmp_path / "checkpoints", "n1", "n2", key=key) as nodes:
        on_ranks(2, copy_on_node, str(tmp_path), nodes[0].key)
        rules, apart = Rules(kind="entry", copies=True), Apart()
        copies = Copies(job, rules, apart, Keepers(job, rules, apart))
        attach(copies, nodes[0])
        copies.write(Record(job), lambda: 60.0)
        said = capfd.readouterr().err
        assert "could not be written: 3 of its 6 files are in memory" in said
        assert restored(tmp_path) is None
        assert [*(tmp_path / "checkpoints/step_00000005").iterdir()] == [], "a full disk needs the room"
        (name, *_) = MemoryStorage(nodes[1].key, "n2").names()
        assert nodes[1].order("write step_00000005 " + name[14:].partition("-r")[0]) == "wrote n2 3"


def copy_on_node(rank: int, size: int, folder: str, key: str, spare: bool = False) -> None:
    os.environ["SLURMD_NODENAME"] = name = f"n{rank + 1}"
    copy(on_node(key, name, Path(folder), spare=spare), 5)


def test_files_of_a_lost_node_are_written_by_their_partners(job: Job, tmp_path: Path) -> None:
    with keepers(tmp_path / "checkpoints", "n1", "n2", key=uuid.uuid4().hex) as nodes:
        on_ranks(2, copy_on_node, str(tmp_path), nodes[0].key, True)
        rules, apart = Rules(kind="entry", copies=True), Apart()
        copies = Copies(job, rules, apart, Keepers(job, rules, apart))
        nodes[1].end()
        attach(copies, nodes[0])
        wait_for("a beat", lambda: copies.keepers.blamed(Record(job)) or copies.keepers._heard, 10)
        copies.write(Record(job), lambda: 60.0)
    assert restored(tmp_path) == (5, 1.0)


def test_files_on_the_disk_are_not_written_by_partners(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints/step_00000005"
    with keepers(tmp_path / "checkpoints", "n1", "n2", key=uuid.uuid4().hex) as nodes:
        on_ranks(2, copy_on_node, str(tmp_path), nodes[0].key, True)
        (name, *_) = MemoryStorage(nodes[0].key, "n1").names()
        token = name.rpartition("/")[2].partition("-r")[0]
        folder.mkdir(parents=True)
        (folder / f"{token}-r0001.json").write_text("written by its own node")
        assert nodes[0].order(f"write step_00000005 {token} held") == "wrote n1 2"
    assert (folder / f"{token}-r0001.json").read_text() == "written by its own node"
