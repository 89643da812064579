"""Saves of programs of their own that are over too quickly to be seen open."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterdp.rehearse.drills.half_save import stopped_in_or_after_a_save
from clusterdp.rehearse.drills.saves import is_last_save, killed_while_saving
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.not_landed import Missed, TooQuick
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import FileUse
from clusterdp.rundir import RunDir

IN_PLACE = {"last.pt": FileUse(written=[1.0, 2.0], size=8)}
RENAMED = {"last.pt.tmp": FileUse(written=[1.0], gone=[1.1]), "last.pt": FileUse(named=[1.1], size=8)}


def scene(folder: Path, files: dict[str, FileUse], written_after_s: float | None) -> Scene:
    """A run of two ranks, of which nobody has a file open; last.pt is closed after so long, or never."""
    run = RunDir(folder)
    run.code.mkdir(parents=True)
    (run.code / "last.pt").write_bytes(b"12345678")

    def wait(what: str, look: Any, timeout_s: float, every_s: float) -> None:
        if not look():
            raise Missed(f"the run was over before {what}")

    at = 0.0 if written_after_s is None else time.time() + written_after_s
    made = SimpleNamespace(
        run=run,
        facts=Facts(took_s=9.0, files=files),
        files=SimpleNamespace(last_written=("last.pt", at)),
        live=SimpleNamespace(ranks=lambda: {0: [], 1: []}),
        cluster=SimpleNamespace(ranks_are_here=True),
        is_ours=False,
        wait=wait,
        wait_progress=lambda part: None,
        newest=lambda: run.attempt("7.0"),
        freeze=lambda: [1, 2],
        kill=lambda pids: None,
        hits=[],
    )
    made.hit = lambda evidence, *causes, **more: made.hits.append(evidence)
    return cast(Scene, made)


def test_a_file_that_was_just_written_in_place_is_cut_as_a_kill_a_moment_earlier_leaves_it(tmp_path: Path) -> None:
    given = scene(tmp_path, IN_PLACE, 60)
    killed_while_saving(given)
    assert (given.run.code / "last.pt").read_bytes() == b"1234"
    said = "all ranks got SIGKILL when last.pt had 8 bytes, and was just written; it was cut to 4 bytes"
    assert str(given.hits[0]).startswith(said)


@pytest.mark.parametrize(("files", "after_s"), [(RENAMED, 60), (IN_PLACE, None)])
def test_a_save_that_is_renamed_or_was_before_is_too_quick(
    tmp_path: Path, files: dict[str, FileUse], after_s: float | None
) -> None:
    with pytest.raises(TooQuick) as missed:
        stopped_in_or_after_a_save(scene(tmp_path, files, after_s))
    assert missed.value.why == "each of its saves is over in a moment, so none can be cut off"


def test_where_no_save_is_known_none_is_too_quick(tmp_path: Path) -> None:
    with pytest.raises(Missed) as missed:
        stopped_in_or_after_a_save(scene(tmp_path, {}, 60))
    assert not isinstance(missed.value, TooQuick)


@pytest.mark.parametrize(("step", "is_last"), [(None, False), (20, False), (21, True), (24, True)])
def test_last_save_follows_the_last_but_one_step_saved(step: int | None, is_last: bool) -> None:
    made = SimpleNamespace(facts=Facts(saved_at=[8, 16, 20, 24]), live=SimpleNamespace(step=lambda: step))
    assert is_last_save(cast(Scene, made)) is is_last
