"""A controller that does not answer: it fails over, or is started anew. That takes many minutes."""

from __future__ import annotations

from pathlib import Path

from tests.submission.conftest import RunScript, Stubs, cause, ledger, requeues, worker

SILENT = 'case "$*" in "show job"*) echo "Unable to contact slurm controller" >&2; exit 1 ;; esac'


def waited_s(stubs: Stubs) -> int:
    return sum(int(pause) for pause in stubs.calls("sleep"))


def test_unreachable_slurm_controller_is_retried_for_half_an_hour_before_exit_75(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.on("scontrol", SILENT)
    done = run_script(worker(tmp_path, "requeue term 5"))
    assert done.returncode == 75
    assert 1800 <= waited_s(stubs) < 1900
    assert requeues(stubs) == []
    assert cause(tmp_path) == "unknown"
    assert ledger(tmp_path)[-1] == ("failed", "unknown")
    said = [line for line in done.stderr.splitlines() if "no answer from Slurm's controller" in line]
    assert 10 < len(said) < 40
    assert "has not answered for 30 minutes" in done.stderr.splitlines()[-1]
    assert f"clusterdp resume {tmp_path}/run` goes on with it." in done.stderr


def test_slurm_controller_answering_after_15_minutes_still_gets_the_requeue(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.on("scontrol", f'if [ "$(grep -c . "$STUBS/sleep.calls")" -lt 24 ]; then {SILENT}\nfi')
    (stubs.folder / "sleep.calls").touch()
    assert run_script(worker(tmp_path, "requeue term 5")).returncode == 0
    assert waited_s(stubs) > 1000
    assert requeues(stubs) == ["requeue 7"]
    assert cause(tmp_path) == "signal"


def test_job_id_unknown_to_slurm_is_neither_retried_nor_requeued(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.on("scontrol", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    run_script(worker(tmp_path, "requeue term 5"))
    assert waited_s(stubs) == 0
    assert requeues(stubs) == []
    assert cause(tmp_path) is None
