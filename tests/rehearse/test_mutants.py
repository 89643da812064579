"""Whole programs with one fault each: a rehearsal finds it, and its words name no other cause."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.rehearse.mutants.table import (
    IN_TEST_ALL,
    MUTANTS,
    NAMED,
    NAMED_WRONGLY,
    NOT_CAUGHT,
    NOT_NAMED,
    Mutant,
)
from tests.rehearse.rehearsing import HERE, job_of, rehearse


def given(name: str) -> object:
    missed = MUTANTS[name].missed
    return pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=missed)) if missed else name


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [given(name) for name in IN_TEST_ALL])
def test_rehearsal_catches_each_mutant_program_and_names_its_fault(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    shutil.copy(HERE / f"mutants/{name}.py", tmp_path)
    job = job_of(f"{name}.py", mutant.ranks, mutant.config)
    row = next(each for each in rehearse(tmp_path, job, [mutant.drill])["drills"] if each["drill"] == mutant.drill)
    assert mutant.outcome(row["verdict"], row["diagnosis"]) == NAMED, row


@pytest.mark.parametrize(
    ("verdict", "diagnosis", "outcome"),
    [
        ("passed", "ema differs", NOT_CAUGHT),
        ("failed", "a task was killed", NOT_NAMED),
        ("failed", "ema differs, and a port is hard-coded", NAMED_WRONGLY),
        ("failed", "ema differs, and it was half written", NAMED),
    ],
)
def test_mutant_outcome_follows_from_verdict_and_diagnosis(verdict: str, diagnosis: str, outcome: str) -> None:
    assert Mutant("preempted", ("failed",), ("ema",), ("half written",)).outcome(verdict, diagnosis) == outcome


def test_mutant_table_lists_every_mutant_program() -> None:
    programs = {path.stem for path in (HERE / "mutants").glob("*.py")} - {"__init__", "table"}
    assert programs == set(MUTANTS)
    assert programs >= set(IN_TEST_ALL)
