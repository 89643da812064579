"""The table of known failures: each is found by the output that it was made for, and by it alone."""

from __future__ import annotations

import re

import pytest

from clusterdp.operate.why.match import known
from clusterdp.operate.why.signature import Signature
from clusterdp.operate.why.signatures import SIGNATURES


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda each: each.name)
def test_example_of_each_signature_is_recognized_as_its_own_failure(signature: Signature) -> None:
    found = known(signature.example)
    assert found is not None
    assert found.name == signature.name


@pytest.mark.parametrize("shell", ["task", "agent", "worker", "bash", "sh", "/usr/bin/bash"])
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("exec: cd: not found", "shell-only"),
        ("exec: A=1: not found", "shell-only"),
        ("exec: train: not found", "command-not-found"),
        ("./train.sh: No such file or directory", "command-not-found"),
        ("./train.py: Permission denied", "not-executable"),
    ],
)
def test_failed_program_start_in_a_step_shell_is_recognized(shell: str, line: str, name: str) -> None:
    found = known(f"{shell}: line 19: {line}")
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("why", ["", " DUE TO TASK FAILURE", " DUE to SIGNAL Terminated"])
def test_cancelled_step_notice_of_each_slurm_release_is_a_consequence(why: str) -> None:
    found = known(f"[2026-11-24T14:02:41.113] error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-24T14:02:41{why} ***")
    assert found is not None
    assert (found.name, found.consequence) == ("step-cancelled", True)


def test_failed_step_notice_after_a_killed_batch_script_is_a_consequence() -> None:
    found = known("slurmstepd-n1: error: *** STEP 7.0 ON n1 FAILED (non-zero exit code or other failure mode) ***")
    assert found is not None
    assert (found.name, found.consequence) == ("step-cancelled", True)


def test_signatures_have_unique_names_and_complete_texts() -> None:
    assert len({each.name for each in SIGNATURES}) == len(SIGNATURES) >= 25
    for each in SIGNATURES:
        assert re.fullmatch(r"[a-z0-9-]+", each.name)
        assert each.cause and not each.cause.endswith("."), each.name
        assert each.remedy.endswith("."), each.name
