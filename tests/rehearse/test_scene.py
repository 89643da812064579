"""Scene: the moments for which a drill waits."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.not_landed import Missed
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import FileUse
from clusterdp.rundir import Ledger, RunDir

EVERY_10_S = {f"step_{i}.pt": FileUse(written=[10.0 * i, 10.0 * i + 0.1]) for i in range(4)}


def scene(folder: Path, facts: Facts, saved_s_ago: float | None = None, **live: Any) -> Scene:
    """A run that is going on, whose last save was so long ago."""
    run = RunDir(folder)
    Ledger(run, "submit-7", "submit").write("submitted", job="7", name="x")
    live = {"run": run, "step": lambda: None, "trained_s": lambda: 30.0, "attempt": None, **live}
    files = SimpleNamespace(last_saved=0.0 if saved_s_ago is None else time.time() - saved_s_ago)
    cluster = SimpleNamespace(start_soon=lambda: None)
    told: list[str] = []
    return Scene(
        cast(Any, SimpleNamespace(**live)),
        cast(Any, files),
        cast(Any, cluster),
        "7",
        facts,
        5.0,
        random.Random(1),
        lambda step, doing: told.append(doing),
    )


@pytest.mark.parametrize(("saved_s_ago", "lands"), [(5.0, True), (0.1, False), (9.5, False), (None, False)])
def test_a_program_without_steps_is_disturbed_in_the_middle_between_two_saves(
    tmp_path: Path, saved_s_ago: float | None, lands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = Facts(took_s=40.0, files=EVERY_10_S)
    assert facts.save_every_s == pytest.approx(9.9)
    given = scene(tmp_path / "run", facts, saved_s_ago)
    monkeypatch.setattr(Scene, "patience_s", 0.05)
    if lands:
        given.wait_progress(0.4)
    else:
        with pytest.raises(Missed, match=r"40 % of its time did not come within"):
            given.wait_progress(0.4)


def test_a_program_without_saves_is_disturbed_by_its_time(tmp_path: Path) -> None:
    scene(tmp_path / "run", Facts(took_s=40.0)).wait_progress(0.4)


def test_a_program_with_steps_is_disturbed_in_the_middle_between_two_saves(tmp_path: Path) -> None:
    at = iter(range(1, 100))
    given = scene(tmp_path / "run", Facts(steps=100, saved_at=[20, 40, 60]), step=lambda: next(at))
    given.wait_progress(0.4)
    assert next(at) == 51, "steps 40 to 60 are between two saves"
