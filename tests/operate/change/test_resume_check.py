"""Two jobs on one run would undo each other's work: resume goes on only when the old one is surely gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterdp.config import Config, from_plain
from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.change.resume_check import check_resumable, nothing_left, size_change, uncancelled
from clusterdp.operate.record.next_command import next_commands
from clusterdp.operate.record.run_history import read_history
from tests.checkpoint.test_manifest import manifest, write
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """What the manifests say, in order of commit."""
    found = [SimpleNamespace(step=step, order=order) for order, step in enumerate((50, 100, 150, 60), start=1)]
    monkeypatch.setattr("clusterdp.checkpoint.format.manifest.list_checkpoints", lambda url: found)
    return found


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "REQUEUE_HOLD"])
def test_resume_refuses_a_run_with_a_live_job(builder: RunBuilder, queue: FakeQueue, state: str) -> None:
    builder.submitted().attempt().stopped(9).requeued("preempted")
    queue.answers(f"7|{state}|BeginTime|")
    with pytest.raises(RunError, match=f"job 7 is {state}.*clusterdp cancel runs/digits"):
        check_resumable(builder.run)


def test_resume_refuses_a_run_with_an_older_job_requeued(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted("7").attempt("7.0").failed()
    builder.submitted("8").attempt("8.0").failed()
    queue.answers("7|PENDING|BeginTime|", "8|FAILED|None|")
    with pytest.raises(RunError, match="job 7 is PENDING"):
        check_resumable(builder.run)


def test_resume_refuses_a_finished_run_queued_again_by_slurm(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().finished(9)
    queue.answers("7|PENDING|BeginTime|")
    with pytest.raises(RunError, match=r"is done, and Slurm starts job 7 once more, which finds .* ends by itself"):
        check_resumable(builder.run)
    queue.answers("7|REQUEUE_HOLD|launch failure limit exceeded requeued held|")
    with pytest.raises(
        RunError,
        match=r"is done, .*holds it \(launch failure limit.*\); `scancel 7` removes it. Then resume",
    ):
        check_resumable(builder.run)


def test_resume_refuses_a_failed_run_queued_again_by_slurm(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().failed()
    queue.answers("7|PENDING|BeginTime|")
    with pytest.raises(
        RunError, match=r"is failed, .*which finds the run over and ends by itself. Wait for it, or `scancel 7`"
    ):
        check_resumable(builder.run)


@pytest.mark.parametrize(
    ("state", "reason", "who"),
    [
        ("PENDING", "JobHeldUser", "`scontrol release 7` lets it go on"),
        ("REQUEUE_HOLD", "job requeued in held state", "`scontrol release 7` lets it go on"),
        ("REQUEUE_HOLD", "launch failure limit exceeded requeued held", "Only an administrator can release it"),
    ],
)
def test_resume_refuses_a_held_job_and_advises_cancel(
    builder: RunBuilder, queue: FakeQueue, state: str, reason: str, who: str
) -> None:
    builder.submitted().attempt().requeued("preempted")
    queue.answers(f"7|{state}|{reason}|")
    with pytest.raises(RunError, match=f"job 7 is held .{reason}.. {who}; `clusterdp cancel .*`, then resume, goes on"):
        check_resumable(builder.run)


def test_resume_refuses_a_cancelled_run_with_a_completing_job(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt()
    queue.answers("7|COMPLETING|None|n1")
    with pytest.raises(RunError, match="still ending"):
        check_resumable(builder.cancelled().run)


def test_resume_is_refused_if_squeue_cannot_reach_the_controller(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().failed()
    queue.answers(error="Unable to contact slurm controller")
    with pytest.raises(SlurmError, match="not known whether job 7 is over"):
        check_resumable(builder.run)


def test_resume_without_squeue_is_refused_until_the_run_is_cancelled(
    builder: RunBuilder, checkpoints: list[SimpleNamespace]
) -> None:
    builder.submitted().attempt()
    with pytest.raises(RunError, match="no squeue here"):
        check_resumable(builder.run)
    check_resumable(builder.cancelled().run)


def test_resume_from_accepts_a_step_with_a_checkpoint(
    builder: RunBuilder, queue: FakeQueue, checkpoints: list[SimpleNamespace]
) -> None:
    builder.submitted().attempt().failed()
    check_resumable(builder.run, from_step=100)


def test_resume_from_a_missing_step_lists_the_steps_with_checkpoints(
    builder: RunBuilder, queue: FakeQueue, checkpoints: list[SimpleNamespace]
) -> None:
    builder.submitted().attempt().failed()
    with pytest.raises(RunError, match=r"--from 99: .*There are: 50, 60, 100, 150"):
        check_resumable(builder.run, from_step=99)
    checkpoints.clear()
    with pytest.raises(RunError, match="There is none at all"):
        check_resumable(builder.run, from_step=99)
    check_resumable(builder.run)


def test_resume_from_without_any_checkpoint_is_refused(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().failed()
    with pytest.raises(RunError, match="There is none at all"):
        check_resumable(builder.run, from_step=1)


def test_cancelled_marker_is_restored_if_a_resume_fails(builder: RunBuilder) -> None:
    builder.cancelled()
    marker = builder.run.cancelled.read_text()

    def refused() -> None:
        with uncancelled(builder.run):
            assert not builder.run.cancelled.exists()
            raise SlurmError("sbatch: no")

    with pytest.raises(SlurmError):
        refused()
    assert builder.run.cancelled.read_text() == marker
    with uncancelled(builder.run):
        pass
    assert not builder.run.cancelled.exists()


def test_resume_check_changes_no_file(
    builder: RunBuilder, queue: FakeQueue, checkpoints: list[SimpleNamespace]
) -> None:
    builder.submitted().attempt().failed()
    before = contents(builder.cancelled().run.path)
    check_resumable(builder.run)
    assert contents(builder.run.path) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("params:\n  lr: 0.1\n  max_steps: 30\n", "To train on, raise what ends it: params.max_steps=..."),
        ("params:\n  opt:\n    epochs: 2\n", "To train on, raise what ends it, if its params have that."),
        ("params: {}\nother:\n  epochs: 2\n", "To train on, raise what ends it, if its params have that."),
    ],
)
def test_resume_hint_of_a_finished_run_names_only_params_of_its_config(
    params: str, said: str, builder: RunBuilder
) -> None:
    builder.run.config.write_text(f"name: digits\n{params}backend: sbatch\n")
    builder.submitted().attempt().trained(1, 40).finished(40)
    assert (nothing_left(builder.run) or "").endswith(said)
    history = read_history(builder.run)
    offered = [command for command, _ in next_commands(history, history.state) if "resume" in command]
    assert offered == ["clusterdp resume runs/digits params.max_steps=.."] * ("max_steps" in params)


GLOBAL, STEPS = {"global_batch_size": 32}, {"global_batch": 32, "accumulate": 1, "micro_batch": 4}
BATCHES = {"global_batch": 16, "accumulate": 2}
KEEPS = "with the same batch_size. train.global_batch_size=32 keeps it."


@pytest.mark.parametrize(
    ("position", "train", "ranks", "words"),
    [
        (STEPS, GLOBAL, 3, ": a step stays 32 samples: 8 micro-batches of 4, 3 or 2 on each rank."),
        (STEPS, {"global_batch_size": 64}, 8, ": a step has 32 samples -> 64: 16 micro-batches of 4, 2 on each rank."),
        (STEPS, GLOBAL, 9, ": a step stays 32 samples: 8 micro-batches of 4, which are too few."),
        (STEPS, {}, 2, f": a step has 32 samples -> 8, {KEEPS}"),
        ({"global_batch": 32}, {}, 2, f": a step has 32 samples -> 16, {KEEPS}"),
        (BATCHES, {"accumulate": 4}, 2, ": a step stays 32 samples."),
        (BATCHES, {"accumulate": 2}, 2, ": a step has 32 samples -> 16, with the same batch_size."),
        ({}, {}, 2, ". The program's loader says what a step has on them."),
    ],
)
def test_resume_on_other_ranks_prints_the_samples_of_a_step(
    position: dict[str, int], train: dict[str, int], ranks: int, words: str, builder: RunBuilder
) -> None:
    saved = manifest(world_size=4)
    write(builder.run.checkpoints, replace(saved, state={**saved.state, "loop": position}))
    before, now = (from_plain(Config, {"train": train, "resources": {"nodes": nodes}}) for nodes in (4, ranks))
    assert size_change(builder.run, before, now, [ranks]) == f"4 -> {ranks} nodes, 4 -> {ranks} ranks{words}"
    assert size_change(builder.run, before, now, [4]) == ""


def test_resume_prints_a_range_of_nodes_once(builder: RunBuilder) -> None:
    saved = manifest(world_size=4)
    write(builder.run.checkpoints, replace(saved, state={**saved.state, "loop": STEPS}))
    values = {"train": GLOBAL, "resources": {"nodes": "2-8"}}
    before, now = from_plain(Config, {"train": GLOBAL, "resources": {"nodes": 4}}), from_plain(Config, values)
    said = "4 -> 2-8 nodes, 4 -> 2 to 8 ranks: a step stays 32 samples: 8 micro-batches of 4."
    assert size_change(builder.run, before, now, range(2, 9)) == said
    assert size_change(builder.run, now, now, range(2, 9)) == ""
    assert "2 to 9 ranks: a step stays 32 samples: 8 micro-batches of 4, which are too few." in size_change(
        builder.run, before, now, range(2, 10)
    )
