"""The stderr of srun, and the pause between the first failure and the end of the other tasks."""

from __future__ import annotations

import os

import pytest

from clusterdp.batch.act.errors import Errors


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
