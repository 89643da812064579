"""The stderr of srun, and the pause between the first failure and the end of the other tasks."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterdp.batch.act.errors import GRACE_S, Errors
from clusterdp.batch.act.step import LONG_GRACE_S, MISTAKEN, Step
from clusterdp.batch.files.rules import Rules


@pytest.mark.parametrize(("how", "least", "most"), [("Killed", 0, 0.1), ("Exited with exit code 1", 0.3, 0.5)])
def test_others_end_sooner_after_a_kill(how: str, least: float, most: float) -> None:
    errors = Errors()
    os.write(errors.writing, f"srun: error: n1: task 0: {how}\n".encode())
    os.close(errors.writing)
    assert not errors.is_due()
    assert least <= errors.left_s <= most
    errors.close()


def test_first_failure_of_a_task_is_reported_once() -> None:
    errors, reports = Errors(), []
    errors.on_failure = lambda: reports.append(errors.how)
    for said in (
        b"srun: job 7 has been allocated\n",
        b"srun: error: n1: task 0: Killed\n",
        b"srun: error: n2: task 1: Killed\n",
    ):
        os.write(errors.writing, said)
        errors.copy()
    os.close(errors.writing)
    errors.close()
    assert reports == ["Killed"]


@pytest.mark.parametrize(("outcome", "grace_s"), [(None, LONG_GRACE_S), ("stop entry 0\n", GRACE_S)])
def test_step_waits_for_the_outcome_after_a_mistake(tmp_path: Path, outcome: str | None, grace_s: float) -> None:
    if outcome is not None:
        (tmp_path / "outcome").write_text(outcome)
    job = SimpleNamespace(file=lambda name: str(tmp_path / name))
    step = SimpleNamespace(rules=Rules(kind="entry"), job=job, _may_save=lambda has_term: False)
    assert Step._grace_s(step, MISTAKEN, False) == grace_s  # type: ignore[arg-type]
