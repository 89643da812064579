"""The newest copy of the state in memory becomes a checkpoint when a job leaves its nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterdp.batch.children import Answer, Children
from clusterdp.batch.copies import Copies, Copy
from clusterdp.batch.job import Job, job_of
from clusterdp.batch.record import Record
from clusterdp.batch.rules import Rules
from clusterdp.checkpoint import Checkpointer, list_checkpoints
from clusterdp.storage import MemoryStorage
from tests.checkpoint.gang import on_ranks
from tests.keepers import Node, keepers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")


MANIFEST = b'{"head": {},\n"body": {"files": {"a": 1}}}\n'


class Apart(Children):
    """Without signal handlers."""

    def __init__(self) -> None:
        self.environ = {}


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
    found = Copies(job, Rules(kind="entry", copies=True), Apart())
    found._key, found._step = node.key, node.process
    return found


def checkpointer(node: Node, tmp_path: Path, fill: float = 1.0) -> Checkpointer:
    return on_node(node.key, node.name, tmp_path, fill)


def on_node(key: str, name: str, tmp_path: Path, fill: float = 1.0) -> Checkpointer:
    model = torch.nn.Linear(300, 300)
    torch.nn.init.constant_(model.weight, fill)
    memory = MemoryStorage(key, name)
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
        monkeypatch.setattr(copies, "close", lambda: None)
        copies._newest = lambda: Copy((0, 1.0, "x"), 4, "x", "step_00000004/MANIFEST.x.json", MANIFEST)  # type: ignore[method-assign]
        copies.write(Record(job), lambda: 60.0, lambda: True)
        copies.write(Record(job), lambda: 0.6)
    finally:
        os.kill(node.process.pid, signal.SIGCONT)
    said = capfd.readouterr().err
    assert "could not be written: the job must leave its nodes" in said
    assert "could not be written: the keepers of 1 nodes have not answered in time" in said
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
    copies.close()
    assert (restored(tmp_path), events(job)) == (None, [])


def test_copy_is_written_only_if_all_nodes_have_their_files(
    job: Job, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key = uuid.uuid4().hex
    with keepers(tmp_path / "checkpoints", "n1", "n2", key=key) as nodes:
        on_ranks(2, copy_on_node, str(tmp_path), nodes[0].key)
        copies = Copies(job, Rules(kind="entry", copies=True), Apart())
        copies._key, copies._step = nodes[0].key, nodes[0].process
        copies.write(Record(job), lambda: 60.0)
        said = capfd.readouterr().err
        assert "could not be written: 3 of its 6 files are in memory" in said
        assert restored(tmp_path) is None
        assert [*(tmp_path / "checkpoints/step_00000005").iterdir()] == [], "a full disk needs the room"
        (name, *_) = MemoryStorage(nodes[1].key, "n2").names()
        assert nodes[1].order("write step_00000005 " + name[14:].partition("-r")[0]) == "wrote n2 3"


def copy_on_node(rank: int, size: int, folder: str, key: str) -> None:
    copy(on_node(key, f"n{rank + 1}", Path(folder)), 5)


def test_keepers_wait_for_the_ranks_and_for_claims(job: Job, tmp_path: Path) -> None:
    copies = Copies(job, Rules(kind="entry", copies=True), Apart())
    assert not copies.is_due()
    copies.begin()
    assert not copies.is_due(), "a program that fails at once needs none"
    copies._at = 0.0
    assert copies.is_due()
    own = Copies(job._replace(run=str(tmp_path / "elsewhere")), Rules(kind="command", copies=True), Apart())
    own._at = 0.0
    assert not own.is_due(), "a program that does not use clusterdp"
    (tmp_path / "elsewhere/claims").mkdir(parents=True)
    assert own.is_due()
    off = Copies(job, Rules(kind="entry"), Apart())
    off.begin()
    off.export("checkpoints")
    assert (off._at, off.children.environ) == (float("inf"), {})


@pytest.mark.parametrize(
    ("said", "starts"),
    [
        ("slurm 20.11.7", False),
        ("slurm 21.08.8-2", False),
        ("", False),
        ("slurm 22.05.8", True),
        ("slurm 26.05.1", True),
    ],
)
def test_keepers_start_from_slurm_22_05_on(job: Job, monkeypatch: pytest.MonkeyPatch, said: str, starts: bool) -> None:
    copies = Copies(job, Rules(kind="entry", copies=True), Apart())
    Path(job.logs).mkdir()
    copies.children.environ = {b"PATH": os.environb[b"PATH"], b"SLURM_NTASKS_PER_NODE": b"8", b"SLURM_JOB_ID": b"7"}
    monkeypatch.setattr(copies.children, "run", lambda words: Answer(0, said))
    started: list[dict[bytes, bytes]] = []

    def start(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(options["env"])
        return subprocess.Popen(["true"], stdin=subprocess.PIPE)

    monkeypatch.setattr(
        "clusterdp.batch.copies.subprocess",
        SimpleNamespace(Popen=start, PIPE=None, TimeoutExpired=subprocess.TimeoutExpired),
    )
    copies.start()
    assert [sorted(environ) for environ in started] == ([[b"PATH", b"SLURM_JOB_ID"]] if starts else [])
    for _ in started:
        copies.close()
