"""An attempt that has been replaced: given up for lost, on a node that was cut off, while a later attempt has the run.

It may live on for hours. Whatever it finds out, it has no say about the run; nor has its batch script.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.submission.conftest import RunScript, Stubs, cause, ledger, requeues, worker

WORDS = [
    None,
    "done finished 9",
    "stop entry 0",
    "stop cancelled 0",
    "stop claim 4",
    "overtaken claim 4",
    "requeue term 5",
]


def attempt(tmp_path: Path, name: str, cause: str = "", outcome: str | None = None, chain: str = "7") -> Path:
    """The folder of an attempt that is over."""
    folder = tmp_path / "run/attempts" / name
    (folder / "logs").mkdir(parents=True)
    (folder / "chain").write_text(f"{chain}\n")
    if cause:
        (folder / "cause").write_text(f"{cause}\n")
    if outcome:
        (folder / "outcome").write_text(f"{outcome}\n")
    return folder


def before_it_ends(tmp_path: Path, lines: str) -> None:
    python = tmp_path / "python"
    python.write_text(python.read_text().replace("#!/bin/bash\n", f"#!/bin/bash\n{lines}\n"))


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("outcome", WORDS)
def test_attempt_already_recorded_as_lost_ends_without_requeue_or_new_record(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, outcome: str | None, code: int
) -> None:
    stubs.answer("RUNNING", "None", restarts=1)
    values = worker(tmp_path, outcome, code)
    before_it_ends(tmp_path, f"echo lost >{tmp_path}/run/attempts/7.0/cause")
    done = run_script(values)
    assert requeues(stubs) == []
    assert cause(tmp_path) == "lost"
    assert ledger(tmp_path) == [("started", None)]
    assert done.stderr.endswith("job 7 has been requeued: attempt 7.0 no longer acts for it.\n")


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "PENDING"])
@pytest.mark.parametrize("outcome", [None, "requeue term 5"])
def test_replaced_attempt_does_not_requeue_a_job_requeued_by_slurm(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, state: str, outcome: str | None
) -> None:
    stubs.answer(state, "None", restarts=4)
    done = run_script(worker(tmp_path, outcome), restart=3)
    assert requeues(stubs) == []
    assert cause(tmp_path, "7.3") is None
    assert "attempt 7.3 no longer acts for it" in done.stderr


def test_array_task_queries_scontrol_show_job_with_its_own_task_id(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", restarts=2)
    run_script(worker(tmp_path, None), SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="2")
    assert stubs.calls("scontrol")[-1] == "show job 7_2"
    assert requeues(stubs) == []


@pytest.mark.parametrize("said", WORDS)
@pytest.mark.parametrize("given", ["lost", ""])
def test_final_outcome_of_an_old_attempt_ends_the_run_unless_recorded_lost(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, said: str | None, given: str
) -> None:
    """Unless nobody had given it up: then it was the last one when it spoke."""
    attempt(tmp_path, "7.0", given, said)
    attempt(tmp_path, "7.1", "preempted")
    before = worker(tmp_path, "requeue term 5")
    done = run_script(before, restart=2)
    final = given == "" and said is not None and said.split()[0] in ("done", "stop") and "claim" not in said
    assert requeues(stubs) == ([] if final else ["requeue 7"]), done.stderr


def test_legacy_stop_claim_outcome_does_not_end_the_run(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    attempt(tmp_path, "7.0", "stopped", "stop claim 404")
    assert run_script(worker(tmp_path, "done finished 9"), restart=1).returncode == 0
    assert cause(tmp_path, "7.1") == "done"


def test_overtaken_attempt_exits_1_without_requeue_and_is_recorded_as_overtaken(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    """Such as the first of two jobs that were submitted by hand."""
    assert run_script(worker(tmp_path, "overtaken claim 4")).returncode == 1
    assert requeues(stubs) == []
    assert cause(tmp_path) == "overtaken"
    assert ledger(tmp_path)[-1] == ("failed", "overtaken")


def test_overtaken_attempts_spend_no_restart_budget(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    for restart in range(3):
        attempt(tmp_path, f"7.{restart}", "overtaken", "overtaken claim 4")
    values = worker(tmp_path, None, code=9) | {"restart": {"max_no_progress": 1, "max_crashes": 1}}
    done = run_script(values, restart=3)
    assert requeues(stubs) == ["requeue 7"], done.stderr


def test_late_attempt_records_no_cause_for_newer_attempts(run_script: RunScript, tmp_path: Path) -> None:
    attempt(tmp_path, "7.1")
    attempt(tmp_path, "7.2", "crash")
    run_script(worker(tmp_path, "done finished 9"))
    assert cause(tmp_path, "7.1") is None


def test_done_outcome_after_a_time_limit_requeue_ends_the_run(run_script: RunScript, tmp_path: Path) -> None:
    """At the time limit the script requeues first; the ranks may still come to their end before they are killed."""
    attempt(tmp_path, "7.0", "timeout", "done finished 9")
    done = run_script(worker(tmp_path, None, code=9), restart=1)
    assert done.returncode == 0
    assert cause(tmp_path, "7.1") == "done"


@pytest.mark.parametrize(
    ("other", "files", "state", "script", "ends"),
    [
        ("6.0", ["began"], "RUNNING", "job.sbatch", True),
        ("6.0.1", ["began"], "SUSPENDED", "job.sbatch", True),
        ("6.0", [], "RUNNING", "job.sbatch", True),  # both begin now
        ("8.0", ["began"], "RUNNING", "job.sbatch", True),
        ("8.0", [], "RUNNING", "job.sbatch", False),  # it ends itself
        ("6.0", ["began", "cause"], "RUNNING", "job.sbatch", False),
        ("6.0", ["began"], "FAILED", "job.sbatch", False),
        ("6.0", ["began"], "RUNNING", "../job.sbatch", False),  # a job of another cluster
    ],
)
def test_second_job_of_a_running_command_ends_without_a_record(
    run_script: RunScript,
    stubs: Stubs,
    tmp_path: Path,
    other: str,
    files: list[str],
    state: str,
    script: str,
    ends: bool,
) -> None:
    folder = attempt(tmp_path, other, chain=other.partition(".")[0])
    for name in files:
        (folder / name).write_text("lost\n")
    stubs.answer(state, "None")
    with (stubs.folder / "job").open("a") as job:
        job.write(f"   Command={tmp_path}/run/{script}\n")
    done = run_script({"command": ["touch", f"{tmp_path}/ran"]})
    assert (tmp_path / "ran").exists() is not ends
    assert (tmp_path / "run/attempts/7.0").exists() is not ends
    assert (done.returncode == 4) is ends
    if ends:
        assert ledger(tmp_path) == []
        assert done.stderr.endswith(f"`scancel {other.partition('.')[0]}` first.\n")
