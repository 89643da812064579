"""Phases: several states in one folder, each with its own newest commit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from clusterdp.checkpoint import Checkpointer, CheckpointError, list_checkpoints
from clusterdp.checkpoint.format.phase import Phase
from tests.checkpoint.test_async_save import counter
from tests.operate.checkpoints.conftest import flip, manifest_file


def commits(folder: Path) -> list[tuple[str, int]]:
    return [(info.phase, info.step) for info in list_checkpoints(folder)]


def two_phases(folder: Path, *, first: int = 2, second: int = 4, **options: Any) -> Checkpointer:
    """Saves of a phase without a name to step `first`, and of phase b to step `second`; each saves its step."""
    a, b = counter(0.0), counter(0.0)
    checkpointer = Checkpointer(folder, {"a": a}, **options)
    for step in range(1, second + 1):
        if step == first + 1:
            checkpointer.begin("b", {"b": b}, first)
        (a if step <= first else b).state["value"] = step
        checkpointer.save(step)
    return checkpointer


def resumed(folder: Path, step: int | None = None, **options: Any) -> list[Any]:
    """What each phase goes on from, as a program does that runs from its top."""
    a, b = counter(0.0), counter(0.0)
    checkpointer = Checkpointer(folder, {"a": a}, **options)
    found = [checkpointer.restore(step, retire_later=True)]
    checkpointer.begin("b", {"b": b}, found[0].step if found[0] else 0)
    found.append(checkpointer.restore())
    assert [a.state["value"], b.state["value"]] == [each.step if each else 0.0 for each in found]
    return [each.step if each else None for each in found]


def test_each_phase_restores_its_own_newest_checkpoint(tmp_path: Path) -> None:
    two_phases(tmp_path, keep_last=9)
    assert commits(tmp_path) == [("", 1), ("", 2), ("b", 3), ("b", 4)]
    assert resumed(tmp_path) == [2, 4]


def test_local_folder_and_store_keep_the_newest_checkpoint_of_each_phase(tmp_path: Path) -> None:
    checkpointer = two_phases(tmp_path / "far", second=6, local=tmp_path / "near", keep_last=1, keep_local=1)
    assert checkpointer.upload(60)
    for folder in ("near", "far"):
        assert commits(tmp_path / folder) == [("", 2), ("b", 6)]
    shutil.rmtree(tmp_path / "near")
    assert resumed(tmp_path / "far", local=tmp_path / "near", keep_local=1) == [2, 6]
    assert commits(tmp_path / "near") == [("", 2), ("b", 6)]


def test_restoring_a_step_of_an_earlier_phase_restarts_the_later_phases(tmp_path: Path) -> None:
    two_phases(tmp_path, keep_last=9)
    assert resumed(tmp_path, step=1) == [1, None]
    assert resumed(tmp_path) == [1, None]


def test_restoring_a_later_phase_step_restores_earlier_phases_at_their_end(tmp_path: Path) -> None:
    two_phases(tmp_path, keep_last=9)
    assert resumed(tmp_path, step=3) == [2, 4]
    assert commits(tmp_path) == [("", 1), ("", 2), ("b", 3), ("b", 4)], "nothing is retired by that"
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7\. Those that exist: 1, 2, 3, 4"):
        resumed(tmp_path, step=7)


def test_damaged_manifest_of_an_earlier_phase_does_not_stop_a_new_phase(tmp_path: Path) -> None:
    """One of its own does: it may be all that there is of it."""
    checkpointer = two_phases(tmp_path, first=2, second=2)
    flip(manifest_file(tmp_path, list_checkpoints(tmp_path)[0].token), 60)
    checkpointer.begin("b", {"b": counter(0.0)}, 2)
    assert checkpointer.restore() is None
    commit = checkpointer.save(3)
    flip(manifest_file(tmp_path, commit.token), 60)
    with pytest.raises(CheckpointError, match="none is good"):
        resumed(tmp_path)


@pytest.mark.parametrize("near", [True, False])
def test_restoring_an_unsaved_phase_beside_saved_phases_is_an_error(tmp_path: Path, near: bool) -> None:
    options = {} if near else {"local": tmp_path / "near"}
    two_phases(tmp_path / "far")
    checkpointer = Checkpointer(tmp_path / "far", {}, **options)  # type: ignore[arg-type]
    checkpointer.begin("renamed", {"a": counter(0.0)})
    said = r"no checkpoint of phase 'renamed', .* the phase without a name, phase 'b'"
    with pytest.raises(CheckpointError, match=said):
        checkpointer.restore()


def test_manifest_of_a_run_without_phases_has_no_phase_key(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"a": counter(0.0)}).save(1)
    (info,) = list_checkpoints(tmp_path)
    assert b'"phase"' not in (tmp_path / info.name).read_bytes()
    assert Phase().has(info)
