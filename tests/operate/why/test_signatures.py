"""The table of known failures: each is found by the output that it was made for, and by it alone."""

from __future__ import annotations

import re

import pytest

from clusterdp.operate.why.match import errors, known
from clusterdp.operate.why.signature import Signature
from clusterdp.operate.why.signatures import SIGNATURES
from docs.tools.failure_examples import EXAMPLES


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda each: each.name)
def test_example_of_each_signature_is_recognized_as_its_own_failure(signature: Signature) -> None:
    found = known(EXAMPLES[signature.name])
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


@pytest.mark.parametrize(("code", "name"), [(134, "abort"), (135, "bus-error"), (137, "killed"), (139, "segfault")])
def test_signal_is_recognized_in_the_exit_code_of_a_container(code: int, name: str) -> None:
    """Apptainer with a namespace of processes (--containall) and shells end with 128 and the signal."""
    found = known(f"srun: error: n2: task 2: Exited with exit code {code}")
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
    assert [each.name for each in SIGNATURES] == list(EXAMPLES)
    for each in SIGNATURES:
        assert re.fullmatch(r"[a-z0-9-]+", each.name)
        assert each.cause and not each.cause.endswith("."), each.name
        assert each.remedy.endswith("."), each.name


# A word that stands in a path or in a message below an error is no evidence: the name of the failure, empty if unknown
FALSE_FRIENDS = {
    "ModuleNotFoundError: No module named 'httpx2' (/lib/huggingface_hub/utils/_http.py, line 12)": "missing-module",
    "entry: p does not import: ModuleNotFoundError: No module named 'x' (/e/huggingface_hub/a.py, line 1).": (
        "missing-module"
    ),
    "FileNotFoundError: [Errno 2] No such file or directory: '/d/huggingface.co/oom_kill event/a'": "missing-file",
    "FileNotFoundError: [Errno 2] No such file or directory: '/d/wandb: ERROR login/x'": "missing-file",
    "PermissionError: [Errno 13] Permission denied: '/data/No space left on device/x'": "permission",
    "ValueError: cannot parse '/data/CUDA out of memory/log.txt'": "",
    "KeyError: '/runs/Too many open files/a'": "",
    "ValueError: bad row in /data/ImportError/read.py": "",
    "WARNING:root:Permission denied: cache; going on without": "",
    "2026-11-28 10:00:00,123 - hub - WARNING - https://huggingface.co/x: Max retries exceeded": "",
    "/env/lib/x.py:12: UserWarning: loss is nan in 1 of 9 heads": "",
    "INFO: error rate 0.1, No space left on device was seen 0 times": "",
    "[W1206 18:44:12.715 socket.cpp:460] [c10d] Connection refused, retrying": "",
    "n1:4711:4800 [0] NCCL INFO connect: Connection refused, retrying": "",
    "DEBUG urllib3: Temporary failure in name resolution": "",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable": "",
    "ValueError: 3 unused parameters in the config": "",
    "caught PermissionError and went on": "",
    "KeyError: 'FileNotFoundError'": "",
    "AssertionError: huggingface_hub is too old": "",
    "RuntimeError: module ImportError_handler failed": "",
    "ValueError: URLError is not a field": "",
    "epoch 3: loss is info-nce": "",
}


@pytest.mark.parametrize("line", FALSE_FRIENDS)
def test_word_in_a_path_or_warning_is_not_a_known_failure(line: str) -> None:
    found = known(line)
    assert (found.name if found else "") == FALSE_FRIENDS[line]


def test_log_line_below_an_error_is_not_an_error() -> None:
    assert not list(errors(b"step 1\nWARNING: error: cannot reach the tracker\nINFO Error: 0.12\n"))
