"""Scene: the moments for which a drill waits."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import FileUse
from clusterdp.rehearse.one_run import MOST_STUCK, _is_stuck
from clusterdp.rehearse.run_spec import Missed
from clusterdp.rundir import Ledger, RunDir

EVERY_10_S = {f"step_{i}.pt": FileUse(written=[10.0 * i, 10.0 * i + 0.1]) for i in range(4)}


def scene(folder: Path, facts: Facts, saved_s_ago: float | None = None, seed: object = 1, **live: Any) -> Scene:
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
        random.Random(str(seed)),
        lambda step, doing: told.append(doing),
    )


@pytest.mark.parametrize(("saved_s_ago", "lands"), [(5.0, True), (0.1, False), (9.5, False), (None, False)])
def test_fault_in_a_program_without_steps_lands_midway_between_saves(
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


def test_fault_in_a_program_without_steps_and_saves_is_timed_by_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene(tmp_path / "run", Facts(took_s=40.0)).wait_progress(0.4)
    monkeypatch.setattr(Scene, "patience_s", 0.05)
    with pytest.raises(Missed, match="40 % of its time did not come"):
        scene(tmp_path / "other", Facts(took_s=400.0)).wait_progress(0.4)


def test_fault_in_a_program_with_steps_lands_midway_between_saves(tmp_path: Path) -> None:
    at = iter(range(1, 100))
    given = scene(tmp_path / "run", Facts(steps=100, saved_at=[20, 40, 60]), step=lambda: next(at))
    given.wait_progress(0.4)
    assert next(at) == 51, "steps 40 to 60 are between two saves"


def evidence_of(folder: Path, seed: object) -> str:
    """A fault's, in a training of 90 steps that saves every 15."""
    at = [0]

    def step() -> int:
        at[0] += 1
        return at[0] // 2  # wait() asks twice for each

    given = scene(folder, Facts(steps=90, saved_at=[15, 30, 45, 60, 75]), seed=seed, step=step)
    given.wait_moment()
    given.cluster.causes_of = lambda causes: causes  # type: ignore[return-value]
    given.hit("killed", attempt=RunDir(folder).attempt("7.0"))
    return given.hits[0].evidence


def test_moment_of_a_fault_varies_with_the_seed_and_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    found = [evidence_of(tmp_path / str(seed), seed) for seed in range(20)]
    assert set(found) == {
        "killed, at step 37 of 90, a third of the way",
        "killed, at step 52 of 90, half-way",
        "killed, at step 67 of 90, two thirds of the way",
        "killed, at step 59 of 90, near a save",
    }


def test_moment_of_a_fault_is_equal_for_equal_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert evidence_of(tmp_path / "a", "7.preempted") == evidence_of(tmp_path / "b", "7.preempted")


@pytest.mark.parametrize(("saved_s_ago", "lands"), [(9.0, True), (5.0, False), (None, False)])
def test_near_save_fault_in_a_program_without_steps_lands_just_before_saving(
    tmp_path: Path, saved_s_ago: float | None, lands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = scene(tmp_path / "run", Facts(took_s=40.0, files=EVERY_10_S), saved_s_ago)
    monkeypatch.setattr(Scene, "patience_s", 0.05)
    if lands:
        given.wait_progress(0.4, near_save=True)
    else:
        with pytest.raises(Missed):
            given.wait_progress(0.4, near_save=True)


@pytest.mark.parametrize(("printed", "stuck"), [((), True), (("7.3",), False)])
def test_run_is_stuck_if_several_attempts_end_before_a_first_step(printed: tuple[str, ...], stuck: bool) -> None:
    attempts = [SimpleNamespace(name=f"7.{number}", ended=1.0) for number in range(1 + MOST_STUCK)]
    live = SimpleNamespace(first_steps=dict.fromkeys(("7.0", *printed), 0.0))
    of_live: Any = SimpleNamespace(hits=[SimpleNamespace(attempt="7.0")], live=live)
    assert _is_stuck(of_live, update_of(attempts)) is stuck
    assert not _is_stuck(of_live, update_of(attempts[:-1]))


def update_of(attempts: list[SimpleNamespace]) -> Any:
    return SimpleNamespace(history=SimpleNamespace(attempts=attempts))
