"""Experiments on a run: a program, made by hand, reads some parts of its checkpoint and not others."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clusterdp.config import Config
from clusterdp.operate.record.run_history import read_history
from clusterdp.rehearse.experiments import Experiments
from clusterdp.rehearse.judge.after_fault import AfterFault, after_fault
from clusterdp.rehearse.judge.lost_state import Shown
from clusterdp.rehearse.judge.reference import Reference, end_state
from clusterdp.rehearse.run_spec import Facts, Hit, RunResult
from clusterdp.rundir import RunDir
from tests.rehearse.judge.test_after_fault import made

Program = Callable[[dict[str, torch.Tensor]], float]
PARTS = ("net", "opt_a", "opt_b")
SCORE = "best_val_loss"


def goes_on(start: dict[str, torch.Tensor], program: Program) -> dict[str, torch.Tensor]:
    """The end state after a start from this one. A score is made anew."""
    scores = {name: torch.tensor(0.1) for name in start if name == SCORE}
    return {"step": torch.tensor(4), **{name: torch.full((3,), program(start)) for name in PARTS}, **scores}


@pytest.fixture
def failed(tmp_path: Path) -> Callable[[Program], tuple[Experiments, RunDir, AfterFault, list[str]]]:
    """Of this program, a run that ended in another state, and the runs that experiments on it make."""

    def make(program: Program, more: Mapping[str, torch.Tensor] = {}) -> tuple[Experiments, RunDir, AfterFault, list]:
        saved = {"step": torch.tensor(2), **{name: torch.full((3,), number) for number, name in enumerate(PARTS)}}
        saved |= more
        ended = {"step": torch.tensor(4), **{name: torch.full((3,), 99.0) for name in PARTS}}
        ended |= {name: value + 1 for name, value in more.items()}
        first, again = (made(tmp_path / name, [""], [(1, saved), (1, ended)]) for name in ("first", "again"))
        run = made(tmp_path / "drill", ["", ""], [(1, saved), (2, goes_on(saved, program))])
        state = end_state(first, ("a.pt",))
        assert state
        reference = Reference(first.path, Facts(steps=4, took_s=9.0), state, ("a.pt",), again=again.path)
        after = after_fault(reference, run, read_history(run), RunResult("done", hits=(Hit("7.0", "", 3, 0.0),)))
        assert after
        return Experiments(Config(), reference), run, after, []

    return make


def runner(folder: Path, program: Program, names: list[str]) -> Callable[[str, list[str]], RunResult]:
    def make_run(name: str, overrides: list[str]) -> RunResult:
        names.append(name)
        run = RunDir(folder / name)
        run.code.mkdir(parents=True)
        [line] = json.loads(overrides[0].removeprefix("launch.setup="))
        subprocess.run(shlex.split(line), check=True)
        torch.save(goes_on(torch.load(run.code / "a.pt"), program), run.code / "a.pt")
        return RunResult("done", str(run.path))

    return make_run


def test_checkpoint_part_is_named_as_unread_if_altering_it_has_no_effect(
    failed: Callable[..., tuple], tmp_path: Path
) -> None:
    program: Program = lambda start: float((start["net"] + start["opt_a"]).sum())  # noqa: E731
    experiments, run, after, names = failed(program)
    shown = experiments.shown(run, after, runner(tmp_path, program, names))
    assert shown.cause.startswith(
        "opt_b is in a.pt, and not read at a resume: a run that was started from the same files"
    )
    assert names == ["drill-plain", "drill-other-net", "drill-other-opt_a", "drill-other-opt_b"]
    assert experiments.shown(run, after, runner(tmp_path, program, names)) == shown and len(names) == 4


def test_score_recomputed_after_a_resume_is_not_named_as_unread(failed: Callable[..., tuple], tmp_path: Path) -> None:
    program: Program = lambda start: float((start["net"] + start["opt_a"] + start["opt_b"]).sum())  # noqa: E731
    experiments, run, after, names = failed(program, {SCORE: torch.tensor(0.3)})
    assert experiments.shown(run, after, runner(tmp_path, program, names)).cause == ""


def test_single_differing_part_is_named_as_unread_if_another_is_read(
    failed: Callable[..., tuple], tmp_path: Path
) -> None:
    def program(start: dict[str, torch.Tensor]) -> float:
        return float(start["net"].sum())

    experiments, run, after, names = failed(program)
    assert after.first
    alone = [each for each in after.first.differences if each.key == "opt_b"]
    after = replace(after, first=replace(after.first, differences=alone))
    shown = experiments.shown(run, after, runner(tmp_path, program, names))
    assert shown.cause.startswith("opt_b is in a.pt, and not read")
    assert names == ["drill-plain", "drill-other-opt_b", "drill-other-opt_a", "drill-other-net"]


def test_checkpoint_parts_read_by_the_program_are_not_named(failed: Callable[..., tuple], tmp_path: Path) -> None:
    program: Program = lambda start: float(sum(start[name].sum() for name in PARTS))  # noqa: E731
    experiments, run, after, names = failed(program)
    shown = experiments.shown(run, after, runner(tmp_path, program, names))
    assert not shown.cause
    assert shown.note.startswith("a plain start from the same files ended in the same state: the resume makes the diff")


def test_experiments_name_no_cause_if_the_program_reads_no_checkpoint_part(
    failed: Callable[..., tuple], tmp_path: Path
) -> None:
    program: Program = lambda start: 7.0  # noqa: E731
    experiments, run, after, names = failed(program)
    assert not experiments.shown(run, after, runner(tmp_path, program, names)).cause


def test_plain_start_with_a_different_end_state_stops_the_experiments(
    failed: Callable[..., tuple], tmp_path: Path
) -> None:
    program: Program = lambda start: float(torch.rand(1))  # noqa: E731
    experiments, run, after, names = failed(program)
    assert experiments.shown(run, after, runner(tmp_path, program, names)) == Shown()
    assert names == ["drill-plain"]


def test_experiments_are_impossible_for_noisy_or_long_runs(failed: Callable[..., tuple]) -> None:
    experiments, *_ = failed(lambda start: 7.0)
    reference = experiments.reference
    assert experiments.are_possible
    for other in (replace(reference, spread={}), replace(reference, facts=Facts(took_s=61.0))):
        assert not Experiments(Config(), other).are_possible
