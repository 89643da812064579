"""`prune` deletes: never the newest good checkpoint, never unasked, and never under a run that may need them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clusterdp.checkpoint import Checkpointer, list_checkpoints
from clusterdp.checkpoint.format import retention
from clusterdp.cli import main
from clusterdp.wording import size
from tests.operate.builder import RunBuilder
from tests.operate.checkpoints.conftest import Run, Save, data_file, flip, manifest_file, model, thing
from tests.operate.conftest import FakeQueue


def steps(folder: Path) -> list[int]:
    return [info.step for info in list_checkpoints(folder)]


def test_prune_dry_run_prints_its_deletions_and_freed_space_without_deleting(
    save: Save, folder: Path, cli: Run
) -> None:
    freed = save(1).bytes + save(2).bytes
    save(3)
    code, out = cli("prune", "saved", "--keep-last", 1, "--dry-run")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()[:3]] == [
        ["goes", "step", "1"], ["goes", "step", "2"], ["stays", "step", "3"]
    ]  # fmt: skip
    assert out.splitlines()[2].endswith("every byte verified")
    assert out.splitlines()[3] == f"saved: 2 checkpoints would go, and free {size(freed)}"
    assert cli("prune", "saved", "--keep-last", 1, "--dry-run", "--yes") == (code, out)
    assert steps(folder) == [1, 2, 3]


def test_prune_keeps_the_newest_and_every_nth_checkpoint(save: Save, folder: Path, cli: Run) -> None:
    for step in range(10, 80, 10):
        save(step)
    code, out = cli("prune", "saved", "--keep-last", 2, "--keep-every", 3, "--yes")
    assert code == 0
    assert steps(folder) == [30, 60, 70]
    assert sorted(os.listdir(folder)) == ["step_00000030", "step_00000060", "step_00000070"]
    assert "4 checkpoints deleted" in out
    assert cli("verify", "saved")[0] == 0
    assert "saved: nothing to delete" in cli("prune", "saved", "--keep-last", 2, "--keep-every", 3, "--yes")[1]


def test_prune_keeps_the_newest_good_checkpoint_older_than_a_damaged_one(save: Save, folder: Path, cli: Run) -> None:
    save(1), save(2)
    flip(data_file(folder, save(3).token))
    code, out = cli("prune", "saved", "--keep-last", 1, "--yes")
    assert code == 0
    assert steps(folder) == [2, 3]
    assert "not good  step_00000003/" in out and "checksum" in out


def test_prune_deletes_no_checkpoint_if_all_are_damaged(save: Save, folder: Path, cli: Run) -> None:
    for step in (1, 2):
        flip(data_file(folder, save(step).token))
    code, out = cli("prune", "saved", "--keep-last", 1, "--yes")
    assert code == 5 and "none of the checkpoints is good, so none may go" in out
    assert steps(folder) == [1, 2]


def test_prune_does_not_delete_a_damaged_manifest(save: Save, folder: Path, cli: Run) -> None:
    bad = manifest_file(folder, save(1).token)
    save(2), save(3)
    flip(bad, 60)
    assert cli("prune", "saved", "--keep-last", 1, "--yes")[0] == 0
    assert steps(folder) == [3] and bad.exists()


def test_prune_keeps_and_does_not_count_files_shared_with_kept_checkpoints(save: Save, folder: Path, cli: Run) -> None:
    save(1)
    freed = save(2).bytes
    Checkpointer(folder, {"model": thing(model())}).restore(1, retire_later=True)
    code, out = cli("prune", "saved", "--keep-last", 1, "--yes")
    assert code == 0
    assert out.splitlines()[-1] == f"saved: 2 checkpoints deleted, {size(freed)} freed"
    assert cli("verify", "saved")[0] == 0


def test_prune_without_a_terminal_requires_yes(save: Save, folder: Path, cli: Run) -> None:
    save(1), save(2)
    code, out = cli("prune", "saved", "--keep-last", 1)
    assert code == 2 and "--yes" in out
    assert steps(folder) == [1, 2]


@pytest.mark.parametrize(("answer", "left"), [("y", [2]), ("n", [1, 2]), ("", [1, 2]), (None, [1, 2])])
def test_prune_on_a_terminal_deletes_only_after_yes(
    save: Save, folder: Path, cli: Run, monkeypatch: Any, answer: str | None, left: list[int]
) -> None:
    save(1), save(2)

    def ask(_: str) -> str:
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("builtins.input", ask)
    assert cli("prune", "saved", "--keep-last", 1)[0] == 0
    assert steps(folder) == left


def test_prune_refuses_a_run_with_a_live_job_without_force(
    builder: RunBuilder, queue: FakeQueue, save: Save, cli: Run
) -> None:
    builder.submitted("7").attempt("7.0").trained(1, 3)
    queue.answers("7|RUNNING|None|n1")
    for step in (1, 2):
        save(step, at=builder.run.checkpoints)
    for place in ("digits", "runs/digits/checkpoints"):
        code, out = cli("prune", place, "--keep-last", 1, "--yes")
        assert code == 4 and "job 7 is RUNNING" in out
    assert steps(builder.run.checkpoints) == [1, 2]
    assert cli("prune", "digits", "--keep-last", 1, "--yes", "--force")[0] == 0
    assert steps(builder.run.checkpoints) == [2]


def test_prune_refuses_a_run_of_unknown_state(builder: RunBuilder, queue: FakeQueue, save: Save, cli: Run) -> None:
    attempt = builder.submitted("7").attempt("7.0").trained(1, 3)
    for step in (1, 2):
        save(step, at=builder.run.checkpoints)
    queue.answers(error="slurm_load_jobs error: Unable to contact slurm controller")
    code, out = cli("prune", "digits", "--keep-last", 1, "--yes")
    assert code == 3 and "not known whether" in out
    assert steps(builder.run.checkpoints) == [1, 2]
    queue.answers()
    attempt.finished(3)
    assert cli("prune", "digits", "--keep-last", 1, "--yes")[0] == 0
    assert steps(builder.run.checkpoints) == [2]


def test_prune_exits_5_and_deletes_the_rest_if_a_checkpoint_is_undeletable(
    save: Save, folder: Path, cli: Run, monkeypatch: Any
) -> None:
    for step in (1, 2, 3):
        save(step)
    delete = retention.delete

    def refuse(storage: Any, info: Any, others: Any) -> None:
        if info.step == 2:
            raise PermissionError(13, "Permission denied", str(folder))
        delete(storage, info, others)

    monkeypatch.setattr(retention, "delete", refuse)
    assert cli("prune", "saved", "--keep-last", 1, "--dry-run")[0] == 0
    from clusterdp.cli import main

    assert main(["checkpoint", "prune", "saved", "--keep-last", "1", "--yes"]) == 5
    assert steps(folder) == [2, 3]  # and step 1 has gone, whichever comes first


@pytest.mark.parametrize("words", [["--keep-last", "0"], ["--keep-last", "1", "--keep-every", "0"]])
def test_prune_refuses_zero_for_keep_last_and_keep_every(save: Save, folder: Path, cli: Run, words: list[str]) -> None:
    save(1)
    assert cli("prune", "saved", *words, "--yes")[0] == 2
    assert steps(folder) == [1]


def test_prune_deletes_no_file_behind_a_symlink(save: Save, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = folder.parent / "theirs"
    save(1, at=theirs)
    before = sorted(path.name for path in theirs.glob("*/*"))
    save(2)
    save(3)
    (folder / "step_00000001").symlink_to("../theirs/step_00000001")
    assert main(["checkpoint", "prune", "saved", "--keep-last", "1", "--yes"]) != 0
    said = capsys.readouterr().err
    assert "step 1 could not be deleted: step_00000001 is a link, and what it leads to is left alone" in said
    assert sorted(path.name for path in theirs.glob("*/*")) == before
    assert said.strip().endswith("1 of 2 are gone.")
    assert steps(folder) == [1, 3]
