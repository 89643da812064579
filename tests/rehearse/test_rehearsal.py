"""Rehearsal: how many runs it makes, and when it ends early. Each run is made by hand."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from clusterdp.config import Config, from_mapping
from clusterdp.errors import ConfigError, RunError
from clusterdp.rehearse import one_run
from clusterdp.rehearse import rehearsal as rehearsal_module
from clusterdp.rehearse.drills.table import drill_of
from clusterdp.rehearse.judge.reference import Reference, end_state
from clusterdp.rehearse.one_run import CUT_SHORT
from clusterdp.rehearse.rehearsal import NOISE_RUNS, Rehearsal, Screen, values_of
from clusterdp.rehearse.run_spec import Facts, RunResult, RunSpec
from clusterdp.rundir import RunDir


class Silent:
    def __getattr__(self, name: str) -> Any:
        return lambda *words: None


def rehearsal_of(folder: Path, state: str, *names: str) -> tuple[Rehearsal, list[str]]:
    """With runs that end in this state and leave files of these names, and the runs it makes."""
    made: list[str] = []
    config = Config(command=["python", "train.py"], params={"steps": 100})
    config.rehearse.params = {"steps": 10}
    rehearsal = Rehearsal(config, folder, folder, (), cast(Screen, Silent()), 5.0, 1)

    def run(shown: str, name: str, overrides: list[str], **more: Any) -> RunResult:
        made.append(name)
        run = RunDir(folder / name)
        run.code.mkdir(parents=True)
        for file in names:
            (run.code / file).write_text(json.dumps({"loss": 1.0 + len(made) / 1000}))
            os.utime(run.code / file, (time.time() - 0.01,) * 2)  # the last tick of a kernel with 100 a second
        return RunResult(state, str(run.path), facts=Facts(steps=100, took_s=20.0, start_s=1.0))

    rehearsal._run = run  # type: ignore[method-assign]
    return rehearsal, made


def test_error_inside_one_drill_leaves_the_verdicts_of_the_others(tmp_path: Path) -> None:
    rehearsal, _ = rehearsal_of(tmp_path, "done", "a.json")
    usual = rehearsal._run

    def run(shown: str, name: str, overrides: list[str], **more: Any) -> RunResult:
        if name == "rank-killed":
            raise IsADirectoryError(21, "Is a directory", "out")
        return replace(usual(shown, name, overrides, **more), inapplicable="not here")

    rehearsal._run = run  # type: ignore[method-assign]
    rehearsal.config.rehearse.compare = ["a.json"]
    rehearsal.drills = [drill_of(name) for name in ("rank-killed", "node-lost")]
    failed, other = rehearsal.run()
    assert (failed.verdict, other.verdict) == ("not landed", "not applicable")
    assert failed.said.startswith("the drill could not be made: [Errno 21] Is a directory: 'out'")
    assert "IsADirectoryError" in (tmp_path / "rank-killed.log").read_text()


def test_two_unrelated_checkpoints_stop_the_rehearsal_after_its_first_run(tmp_path: Path) -> None:
    rehearsal, made = rehearsal_of(tmp_path, CUT_SHORT, "a.pt", "b.pt")
    with pytest.raises(ConfigError, match=r"^rehearse\.compare: is not set, and there are .*a\.pt"):
        rehearsal.run()
    assert made == ["undisturbed"]


@pytest.mark.parametrize(
    ("names", "refused"), [(("a.pt", "b.pt"), True), (("a.pt",), False), (("a.json", "b.json"), False)]
)
def test_first_run_ends_early_only_if_two_unrelated_checkpoints_appear(
    names: tuple[str, ...], refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are told by the run that is looked at, 15 s after the first of them."""
    monkeypatch.setattr(rehearsal_module, "STEPS_S", 0.0)
    rehearsal, _ = rehearsal_of(tmp_path, "done")
    reached: list[int] = []

    def run(shown: str, name: str, overrides: list[str], *, look: Any, **more: Any) -> RunResult:
        code = RunDir(tmp_path / name).code
        code.mkdir(parents=True)
        for file in names:
            (code / file).write_text("{}")
        for step in (1, 2):
            look(step)
            reached.append(step)
        raise RunError("the end of the run")

    rehearsal._run = run  # type: ignore[method-assign]
    with pytest.raises(ConfigError if refused else RunError):
        rehearsal.run()
    assert 2 not in reached if refused else 2 in reached


@pytest.mark.parametrize("pattern", ["logs:(", "/", "out/**x/*.pt"])
def test_invalid_compare_pattern_is_refused_before_any_run(pattern: str, tmp_path: Path) -> None:
    rehearsal, made = rehearsal_of(tmp_path, "done")
    rehearsal.config.rehearse.compare = [pattern]
    with pytest.raises(ConfigError, match=r"^rehearse\.compare: "):
        rehearsal.run()
    assert made == []


def test_two_metrics_files_do_not_stop_the_rehearsal_after_its_first_run(tmp_path: Path) -> None:
    rehearsal, made = rehearsal_of(tmp_path, CUT_SHORT, "a.json", "b.json")
    with pytest.raises(RunError, match="undisturbed, the job ended as cut-short"):  # made by hand, as the first one
        rehearsal.run()
    assert made == ["undisturbed", "undisturbed-short"]


def test_noise_is_measured_once_with_five_undisturbed_runs(tmp_path: Path) -> None:
    rehearsal, made = rehearsal_of(tmp_path, "done", "a.json")
    state = end_state(RunDir(Path(rehearsal._run("", "undisturbed", []).folder)), ("a.json",))
    other = end_state(RunDir(Path(rehearsal._run("", "undisturbed-again", []).folder)), ("a.json",))
    assert state and other
    reference = Reference(tmp_path, Facts(), state, ("a.json",))
    reference.add(other)
    two = dict(reference.spread or {})
    for _ in range(2):
        rehearsal._measure_noise("rank-killed", reference)
    assert (len(made), reference.runs) == (NOISE_RUNS, NOISE_RUNS)
    assert reference.equal == "within the spread of 5 undisturbed runs"
    assert reference.spread and reference.spread["loss"] == pytest.approx(4 * two["loss"], rel=0.1)


def test_drill_for_local_ranks_submits_no_job_elsewhere(tmp_path: Path) -> None:
    spec = RunSpec("x", {}, [], str(tmp_path / "run"), str(tmp_path), cluster="slurm", drill="node-replaced")
    assert one_run.run(spec, lambda step, words: None).inapplicable == "the ranks run on other machines"


def test_override_without_a_fitting_config_makes_a_drill_inapplicable(tmp_path: Path) -> None:
    values = values_of(from_mapping({"command": "true", "restart": {"in_place": False}}))
    spec = RunSpec("x", values, ["resources.spare_nodes=1"], str(tmp_path / "run"), str(tmp_path), drill="node-lost")
    said = one_run.run(spec, lambda step, words: None).inapplicable
    assert "resources.spare_nodes: needs restart.in_place: true" in said
    with pytest.raises(ConfigError):
        one_run.run(replace(spec, drill=""), lambda step, words: None)
