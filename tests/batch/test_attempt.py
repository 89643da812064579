"""A node that is silent, or has failed, at the end of an attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.batch import slurm
from clusterdp.batch.attempt import ThisAttempt
from clusterdp.batch.children import Children
from clusterdp.batch.end import Ended
from clusterdp.batch.job import job_of
from clusterdp.batch.rules import Policy, Rules
from clusterdp.batch.slurm import Look

RULES = Rules(kind="entry", in_place=True, policies={cause: Policy(avoid=True) for cause in ("node-lost", "hung")})
RUNNING = Look(slurm.RUNNING)


class Apart(Children):
    """Without signal handlers."""

    def __init__(self) -> None:
        self.environ = {}


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ThisAttempt:
    """An attempt on n1 and n2 whose step has failed. Slurm shows all nodes as well."""
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    found = ThisAttempt(job_of(str(tmp_path), "job.sbatch", environ), RULES, Apart())
    for folder in (tmp_path / "events", Path(found.job.here)):
        folder.mkdir(parents=True)
    found.step.first = "Killed"
    monkeypatch.setattr(found.slurm, "down_nodes", lambda *words: [])
    return found


def blame(attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch, *nodes: str) -> None:
    monkeypatch.setattr(attempt.keepers, "blamed", lambda record: [*nodes])


def avoided(attempt: ThisAttempt) -> list[str]:
    path = Path(attempt.job.file("avoid"))
    return path.read_text().split() if path.exists() else []


def test_silent_node_forbids_a_restart_in_place(attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempt._restarts("crash", Ended(1, 9), RUNNING, "")
    blame(attempt, monkeypatch, "n2")
    assert not attempt._restarts("crash", Ended(1, 9), RUNNING, "")


def test_silent_nodes_and_those_of_the_hang_are_avoided(attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt.ending.avoid("hung", ["n1"])
    blame(attempt, monkeypatch, "n2")
    attempt._leave()
    attempt._leave()
    assert avoided(attempt) == ["n1", "n2"]


def test_silent_nodes_of_a_replaced_attempt_are_not_avoided(
    attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(attempt.job.file("cause")).write_text("node-lost\n")
    blame(attempt, monkeypatch, "n2")
    attempt._leave()
    assert avoided(attempt) == []


@pytest.mark.parametrize(
    ("failed", "expanded", "expected"),
    [("n2", [], ["n2"]), ("n[2,4]", ["n2", "n4"], ["n2", "n4"]), ("n[2,4]", [], ["n[2,4]"])],
)
def test_node_failure_of_a_no_kill_job_counts_as_node_lost(
    attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch, failed: str, expanded: list[str], expected: list[str]
) -> None:
    Path(attempt.job.output(attempt.job.log_id)).write_text(f"srun: error: Node failure on {failed}\n")
    requeued: list[str] = []
    monkeypatch.setattr(attempt.ending, "look", lambda: RUNNING)
    monkeypatch.setattr(attempt.slurm, "expand", lambda nodes: expanded)
    monkeypatch.setattr(attempt.ending, "requeue", lambda cause, look: requeued.append(cause) or "")
    monkeypatch.setattr("clusterdp.batch.attempt.LATE_S", (0,))
    with pytest.raises(SystemExit):
        attempt.finish(143)
    assert (requeued, avoided(attempt)) == (["node-lost"], expected)
