"""docs/rehearsed.md, made from rows of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rehearse import rehearsals
from tests.rehearse.rehearsals import FOREIGN_KIND, MUTANT, RIGHT, Row
from tests.rehearse.rehearsed import page

ROWS = [
    Row(FOREIGN_KIND, "nanogpt", "preempted", "failed", "the model differs", "failed", "torch 2.13.0"),
    Row(FOREIGN_KIND, "nanogpt", "rank-killed", "failed", "the model differs", "failed", "torch 2.13.0"),
    Row(FOREIGN_KIND, "makemore", "rank-killed", "not applicable", "no rank", "not applicable", "torch 2.13.0"),
    Row(RIGHT, "skorch_net", "preempted", "passed", "bit for bit", "passed", "torch 2.13.0, skorch 1.4.0"),
    Row(RIGHT, "silent", "preempted", "passed", "bit for bit", "passed", "torch 2.13.0"),
    Row(MUTANT, "delete_first", "preempted", "failed", "a fault", "named", "torch 2.13.0"),
]


def test_page_has_a_column_per_program_and_a_line_per_drill() -> None:
    lines = page(ROWS).splitlines()
    at = lines.index("| drill | nanoGPT | makemore |")
    assert lines[at + 2 : at + 4] == ["| preempted | failed |  |", "| rank-killed | failed | n/a |"]
    assert "| drill | skorch_net |" in lines


def test_page_shows_versions_commit_and_command_of_a_program() -> None:
    made = page(ROWS)
    assert "karpathy/nanoGPT at 3adf61e1, torch 2.13.0." in made
    assert "exec env -u RANK python train.py config/train_shakespeare_char.py" in made
    assert "torch 2.13.0, skorch 1.4.0." in made


def test_page_lists_drills_with_equal_results_on_one_line() -> None:
    assert "- preempted, rank-killed: failed: the model differs\n" in page(ROWS)


def test_page_omits_mutants_and_programs_without_a_library() -> None:
    assert "delete_first" not in page(ROWS)
    assert "silent" not in page(ROWS)


def test_stored_results_of_programs_missing_from_the_tables_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsals, "RESULTS", tmp_path / "results.json")
    rehearsals.keep([Row(MUTANT, "renamed_since", "preempted", "failed", "a fault", "named", "torch 2.13.0")])
    rehearsals.keep(ROWS[:1])
    assert rehearsals.kept() == ROWS[:1]
