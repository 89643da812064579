"""compared_with(): what a drill's run left otherwise beside its end state, and what of it was compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from clusterdp.rehearse.judge import compared
from clusterdp.rehearse.judge.compared import Compared, compared_with, sentence_of
from clusterdp.rehearse.judge.reference import Reference
from clusterdp.rehearse.run_spec import Facts
from clusterdp.rehearse.state import of_files
from clusterdp.rundir import RunDir

FAULT = 1_000.0


def left(path: Path, ema: float = 1.0, lines: str = "123") -> RunDir:
    """The run folder of a program that writes last.pt, its end state, and other files."""
    run = RunDir(path)
    run.code.mkdir(parents=True)
    torch.save({"w": torch.ones(3), "step": 9}, run.code / "last.pt")
    torch.save({"w": torch.full((3,), ema)}, run.code / "ema.pt")
    torch.save({"w": torch.rand(3)}, run.code / "noise.pt")
    (run.code / "metrics.csv").write_text("".join(f"{line}\n" for line in [*lines, f"time {path.name}"]))
    (run.code / "curve.png").write_bytes(b"x")
    return run


def found(tmp_path: Path, run: RunDir, patterns: tuple[str, ...] = ("last.pt",)) -> Compared:
    first, again = (left(tmp_path / name) for name in ("first", "again"))
    state = of_files(first.code, ["last.pt"])
    return compared_with(Reference(first.path, Facts(), state, patterns, again=again.path), run, FAULT)


@pytest.mark.parametrize(
    ("ema", "lines", "said"),
    [
        (1.0, "1223", []),
        (2.0, "123", ["ema.pt differs in 1 value"]),
        (1.0, "3", ["metrics.csv lacks 2 lines"]),
    ],
)
def test_compared_with_reports_changed_values_and_missing_lines_in_other_files(
    tmp_path: Path, ema: float, lines: str, said: list[str]
) -> None:
    run = left(tmp_path / "run", ema, lines)
    assert found(tmp_path, run).other == said


def test_compared_with_skips_files_already_in_the_end_state(tmp_path: Path) -> None:
    assert found(tmp_path, left(tmp_path / "run", 2.0), ("last.pt", "*ema.pt", "metrics.csv")).other == []


def test_compared_with_reports_a_missing_file(tmp_path: Path) -> None:
    run = left(tmp_path / "run")
    (run.code / "ema.pt").unlink()
    assert found(tmp_path, run).other == ["ema.pt is missing"]


def test_compared_with_reports_a_second_log_of_a_known_name_as_new(tmp_path: Path) -> None:
    run = left(tmp_path / "run")
    for name in ("version_1/metrics.csv", "version_1/events.csv"):
        (run.code / name).parent.mkdir(exist_ok=True)
        (run.code / name).write_text("4\n")
    assert found(tmp_path, run).other == ["version_1/metrics.csv is new"]


def test_compared_with_lists_compared_files_and_reasons_for_skipped_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = left(tmp_path / "run")
    os.utime(run.code / "ema.pt", (FAULT - 1, FAULT - 1))
    told = found(tmp_path, run)
    assert told.what == [
        "last.pt: 2 values, 1 of them tensors",
        "ema.pt: 1 value, 1 of them tensors",
        "metrics.csv: 3 lines",
    ]
    assert told.left_out_words == (
        "curve.png (neither logs nor arrays)",
        "ema.pt (not written again after the fault)",
        "noise.pt (other in each undisturbed run)",
    )
    assert sentence_of(told.what[:1], told.left_out_words[:1]) == (
        "Compared: last.pt: 2 values, 1 of them tensors. Not compared: curve.png (neither logs nor arrays)."
    )
    monkeypatch.setattr(compared, "LARGEST", 10)
    left_out = compared_with(
        Reference(tmp_path / "first", Facts(), of_files(run.code, ["last.pt"]), ("last.pt",), again=tmp_path / "again"),
        run,
        FAULT,
    ).left_out
    assert left_out[compared.LARGE] == ["ema.pt", "metrics.csv", "noise.pt"]


def test_compared_with_does_not_list_files_older_than_the_run(tmp_path: Path) -> None:
    run = left(tmp_path / "run")
    first = left(tmp_path / "first")
    os.utime(first.code / "curve.png", (FAULT, FAULT))
    state = of_files(first.code, ["last.pt"])
    reference = Reference(first.path, Facts(), state, ("last.pt",), again=left(tmp_path / "b").path, began=FAULT + 1)
    assert compared.OTHER_KIND not in compared_with(reference, run, FAULT).left_out
