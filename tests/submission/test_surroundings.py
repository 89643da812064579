"""Lines of launch.setup and variables of the submitter have no say in what follows an attempt."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.submission.conftest import RunScript, Stubs, cause, ledger, requeues, worker
from tests.waiting import wait_for

OPTIONS = ["set -f", "set -C", "set -e", "set -u", "set -o posix", "set -f -C -e -u -o posix -o pipefail", "IFS=:"]


@pytest.mark.parametrize("setup", OPTIONS)
def test_shell_options_in_launch_setup_do_not_disable_max_crashes(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, setup: str
) -> None:
    values = {"command": ["bash", "-c", "exit 3"], "launch": {"setup": setup}, "restart": {"max_crashes": 1}}
    assert [run_script(values, restart=restart).returncode for restart in range(2)] == [0, 3]
    assert requeues(stubs) == ["requeue 7"]
    assert ledger(tmp_path)[-1] == ("failed", "start")


@pytest.mark.parametrize("environ", [{}, {"POSIXLY_CORRECT": "1"}])
def test_program_runs_once_and_is_done_under_bash_posix_mode(
    run_script: RunScript, tmp_path: Path, environ: dict[str, str]
) -> None:
    program = r'echo "\${POSIXLY_CORRECT-unset}" >>ran'
    setup = "" if environ else "set -o posix"
    done = run_script({"command": ["bash", "-c", program], "launch": {"setup": setup}}, **environ)
    assert (done.returncode, cause(tmp_path)) == (0, "done"), done.stderr
    ran = (tmp_path / "run/code/ran").read_text().split()
    assert ran == ([environ["POSIXLY_CORRECT"]] if environ else ["unset"])


@pytest.mark.parametrize("file", ["exit", "began"])
def test_attempt_files_containing_shell_code_are_read_without_executing_it(
    run_script: RunScript, tmp_path: Path, file: str
) -> None:
    then = tmp_path / "run/attempts/7.0"
    then.mkdir(parents=True)
    for name, text in {
        "chain": "7",
        "cause": "crash" if file == "exit" else "",
        "began": "1 2026-01-01T00:00:00 0 n1",
    }.items():
        (then / name).write_text(f"{text}\n")
    words = "a[$(touch${IFS}" + str(tmp_path) + "/pwned)]"
    (then / file).write_text(f"{words} {words} {words} n1\n")
    done = run_script({"command": ["true"]}, restart=1)
    assert not (tmp_path / "pwned").exists()
    assert cause(tmp_path, "7.1") == "done", done.stderr


@pytest.mark.parametrize("outcome", ["requeue term 5", None])
def test_run_stopped_during_a_preemption_exits_75_and_is_recorded_as_stopped(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, outcome: str | None
) -> None:
    """Since 24.05 Slurm itself requeues a job that ends in its grace time: the next attempt finds the run stopped."""
    values = worker(tmp_path, outcome) if outcome else {"command": ["true"]}
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    srun = stubs.folder / "srun"
    srun.write_text(srun.read_text().replace("exec", "touch $HOME/run/stop; exec", 1))  # while the ranks run
    assert run_script(values).returncode == 75
    again = run_script(values, restart=1)
    assert again.returncode == 75
    assert "was asked to stop" in again.stderr
    assert ledger(tmp_path)[-1] == ("failed", "stopped")


KILL_ALL = """for file in $(grep -lsa "STUBS=$STUBS" /proc/[0-9]*/environ); do
  pid=${file#/proc/} pid=${pid%/environ}
  [ "$pid" = $$ ] || kill -KILL "$pid" 2>/dev/null
done"""


def killed(tmp_path: Path, notice: str) -> dict[str, object]:
    """An entry whose rank writes Slurm's notice into the job's output and kills its script, which leaves no cause."""
    values = worker(tmp_path, "done finished 5")
    python = tmp_path / "python"
    if not python.with_suffix(".was").exists():
        python.with_suffix(".was").write_text(python.read_text())
        line = f"slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT $(date -u +%FT%T) {notice} ***"
        python.write_text(f'#!/bin/bash\necho "{line}" >>{tmp_path}/run/slurm-7.out\n{KILL_ALL}\n')
    else:
        python.write_text(python.with_suffix(".was").read_text())
    return values


def test_time_zone_of_the_submitter_does_not_hide_slurmstepds_preemption_notice(
    run_script: RunScript, tmp_path: Path
) -> None:
    environ = {"TZ": "Asia/Tokyo"}  # slurmd's own is UTC
    run_script(killed(tmp_path, "DUE TO PREEMPTION"), **environ)
    run_script(killed(tmp_path, "DUE TO PREEMPTION"), restart=1, **environ)
    assert cause(tmp_path) == "preempted"


def test_slurm_time_format_variable_does_not_hide_a_preemption(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    stubs.on(
        "scontrol",
        '[ -z "$SLURM_TIME_FORMAT" ] || sed -i "s/PreemptTime=2026[^ ]*/PreemptTime=Thu_00:00/" "$STUBS/job"',
    )
    run_script({"command": ["bash", "-c", "exit 143"]}, SLURM_TIME_FORMAT="%a_%H:%M")
    assert cause(tmp_path) == "preempted"


def test_run_dir_variable_in_launch_setup_does_not_redirect_the_run(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    run_script({"command": ["true"], "launch": {"setup": f"run_dir={tmp_path}/elsewhere"}})
    assert cause(tmp_path) == "done"


def test_restart_wait_is_set_as_start_time_of_the_requeued_job(run_script: RunScript, stubs: Stubs) -> None:
    run_script({"command": ["bash", "-c", "exit 3"], "restart": {"start": {"wait_s": 600}}})
    assert any("StartTime=" in call for call in stubs.calls("scontrol"))


def test_saved_checkpoint_resets_the_doubling_of_restart_waits(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    values = worker(tmp_path, "requeue term 5") | {"restart": {"preempted": {"wait_s": 600}}}
    for restart in range(3):
        run_script(values, restart=restart)
        (tmp_path / f"run/attempts/7.{restart}/saved").write_text("5\n")
    waits = [int(words) for words in stubs.calls("sleep") if words.isdigit() and int(words) > 300]
    assert waits
    assert max(waits) <= 600


def test_cancelled_chain_sends_no_requeue_notice(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    program = ["bash", "-c", 'echo "$CLUSTERDP_EVENT" >>"$STUBS/announced"']
    stubs.on("sleep", '[ "$1" != 10 ] || exec /bin/sleep 10')  # the time that a message may take
    values = killed(tmp_path, f"uid {os.getuid()}") | {
        "restart": {"how": "resubmit", "chain": 2},
        "notify": {"command": program, "on": ["end", "failure", "requeue"]},
    }
    run_script(values)
    stubs.answer("CANCELLED", "None")
    run_script(values, job=8, CLUSTERDP_CHAIN="7", CLUSTERDP_REPLACES="7:7")
    stubs.answer("RUNNING", "None")
    run_script(
        {"command": ["true"], "notify": values["notify"]}, job=9
    )  # a notice that is sent, after those that must not be
    announced = stubs.folder / "announced"
    wait_for("the notice of the end", lambda: announced.exists() and "end" in announced.read_text(), 10)
    assert "requeue" not in announced.read_text()
