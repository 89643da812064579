"""What squeue says is weighed against the run's own records."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.operate.queue import ENDED_AS, WORDS, alive, consult, in_words
from clusterdp.operate.run_history import read_history
from clusterdp.operate.run_state import Verdict
from clusterdp.slurm.commands import JobRow
from clusterdp.slurm.state import JobState
from tests.operate.builder import RunBuilder, preempted_once
from tests.operate.conftest import FakeQueue


def test_squeue_is_asked_once_for_all_jobs_and_not_at_all_when_the_run_is_over(
    builder: RunBuilder, queue: FakeQueue
) -> None:
    builder.submitted().attempt().failed()
    consult(read_history(builder.run))
    assert queue.asked == []
    builder.submitted("8")
    queue.answers("8|PENDING|Resources|")
    standing = consult(read_history(builder.run))
    assert len(queue.asked) == 1
    assert "7,8" in queue.asked[0]
    assert standing.verdict is Verdict.WAITING
    assert standing.why.startswith("Resources: next in line")


def test_a_job_that_slurm_forgot_without_an_ending_is_said_to_be_so(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt()
    standing = consult(read_history(builder.run))
    assert standing.verdict is Verdict.VANISHED
    assert "no ending on record" in standing.why


@pytest.mark.parametrize("answer", ["7|CANCELLED|None|", "7|FAILED|None|", "8|RUNNING|None|"])
def test_what_we_cancelled_is_cancelled_whatever_slurm_calls_it(
    builder: RunBuilder, queue: FakeQueue, answer: str
) -> None:
    builder.submitted().cancelled().attempt()
    queue.answers(answer)
    standing = consult(read_history(builder.run))
    assert (standing.verdict, standing.why) == (Verdict.CANCELLED, "")


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("RUNNING", Verdict.RUNNING),
        ("COMPLETING", Verdict.RUNNING),
        ("CONFIGURING", Verdict.RUNNING),
        ("SUSPENDED", Verdict.RUNNING),
        ("A_STATE_OF_2030", Verdict.RUNNING),
        ("REQUEUE_HOLD", Verdict.WAITING),
        ("CANCELLED", Verdict.CANCELLED),
        ("OUT_OF_MEMORY", Verdict.FAILED),
        ("COMPLETED", Verdict.FAILED),  # without a word: a script that ended before it could say why
    ],
)
def test_a_state_of_slurms_is_a_verdict(builder: RunBuilder, queue: FakeQueue, state: str, verdict: Verdict) -> None:
    builder.submitted().attempt()
    queue.answers(f"7|{state}|None|n1")
    assert consult(read_history(builder.run)).verdict is verdict


def test_every_final_state_has_an_explanation() -> None:
    final = {state.value for state in JobState if state.final}
    assert final - set(ENDED_AS) == {"REVOKED"}  # of federations: the generic words do


def test_a_state_that_nobody_knows_counts_as_alive() -> None:
    assert alive(JobRow("A_STATE_OF_2030", "None", ""))
    assert not alive(JobRow("CANCELLED", "None", ""))


def test_a_silent_squeue_leaves_what_was_last_recorded(elsewhere: Path, queue: FakeQueue) -> None:
    queue.answers(error="slurm_load_jobs error: Unable to contact slurm controller")
    standing = consult(read_history(preempted_once(elsewhere / "r").run))
    assert standing.verdict is Verdict.RUNNING
    assert "Unable to contact" in standing.why


def test_the_ids_of_a_fake_cluster_are_never_looked_for_in_another_queue(
    elsewhere: Path, queue: FakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = tmp_path / "theirs.conf", tmp_path / "ours.conf"
    theirs.touch()
    monkeypatch.setenv("SLURM_CONF", str(ours))
    builder = RunBuilder(elsewhere / "r").submitted("3", cluster=str(theirs))
    assert consult(read_history(builder.run)).verdict is Verdict.WAITING
    theirs.unlink()
    standing = consult(read_history(builder.run))
    assert (standing.verdict, standing.why) == (Verdict.VANISHED, "no ending on record, and its cluster is gone")
    assert queue.asked == []
    ours.touch()
    mine = RunBuilder(elsewhere / "s").submitted("3", cluster=str(ours))
    queue.answers("3|RUNNING|None|n1")
    assert consult(read_history(mine.run)).verdict is Verdict.RUNNING


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "higher priority"),
        ("ReqNodeNotAvail, UnavailableNodes:n2", "down, drained or reserved"),
        ("AssocGrpCpuLimit", "limit of your account"),
        ("QOSMaxNodePerUserLimit", "limit of the QOS"),
        ("DependencyNeverSatisfied", "cancel it"),
    ],
)
def test_a_reason_is_explained(reason: str, words: str) -> None:
    assert in_words(reason).startswith(f"{reason}: ")
    assert words in in_words(reason)


def test_a_reason_that_nobody_knows_is_passed_on() -> None:
    assert in_words("SomethingNew") == "SomethingNew"
    assert all(words for words in WORDS.values())
