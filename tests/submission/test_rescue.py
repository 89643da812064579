"""A keeper's rescue of a --no-kill job that goes on without its batch script: the job is requeued, or ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.batch.nodes.keeper import NEEDLESS
from clusterdp.submission.render.script import render
from clusterdp.submission.render.script_spec import make_spec
from clusterdp.submission.snapshot.batch_copy import write_batch
from tests.submission.conftest import Stubs, cause, ledger, requeues

Rescue = Callable[..., int]
ENDED = "update JobId=7 TimeLimit=1"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The run folder of attempt 7.0, whose script began on n0 and is lost; the job goes on with n1."""
    run_dir = tmp_path / "run"
    here = run_dir / "attempts/7.0"
    for folder in (here / "logs", run_dir / "events"):
        folder.mkdir(parents=True)
    write_batch(run_dir / "batch", {})
    (here / "chain").write_text("7\n")
    (here / "began").write_text("1000 1970-01-01T00:16:40 0 n[0-1]\n")
    return run_dir


@pytest.fixture
def rescue(run_dir: Path, stubs: Stubs) -> Rescue:
    """Runs the command of a keeper on n1. Returns its exit code."""

    def run(lost: str = "n0", **restart: object) -> int:
        loaded = config.from_mapping({"command": ["true"], "restart": restart, "resources": {"nodes": 2}})
        rules = render(make_spec(loaded, run_dir, run_dir, sys.executable)).rules
        (run_dir / "batch/rules.json").write_text(json.dumps(rules))
        environ = {"PATH": f"{stubs.folder}:{os.environ['PATH']}", "STUBS": str(stubs.folder)}
        environ |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n0", "SLURMD_NODENAME": "n1"}
        words = ["rescue", str(run_dir), f"--script={run_dir}/job.sbatch", f"--lost={lost}"]
        environ |= {"SLURM_STEP_ID": "1", "SLURM_PROCID": "1", "SLURM_CONF": "/etc/x", "CLUSTERDP_MEMORY": "key"}
        return subprocess.run([sys.executable, "-I", "-S", str(run_dir / "batch"), *words], env=environ).returncode

    return run


def output(run_dir: Path) -> str:
    return (run_dir / "slurm-7.out").read_text()


def test_job_without_its_script_is_requeued_as_node_lost(
    rescue: Rescue, run_dir: Path, stubs: Stubs, tmp_path: Path
) -> None:
    assert rescue() == 0
    assert (requeues(stubs), ledger(tmp_path)) == (["requeue 7"], [("requeued", "node-lost")])
    assert cause(tmp_path) == "node-lost"
    assert (run_dir / "attempts/7.0/avoid").read_text() == "n0\n"
    assert (run_dir / "attempts/7.0/exit").read_text().split()[0] == "-"
    assert "node n0, on which the batch script ran, is lost; n1 acts for it." in output(run_dir)
    assert ENDED not in stubs.calls("scontrol")


@pytest.mark.parametrize(
    ("answer", "lost", "code"),
    [
        ('[ "$2" != job ] || sed -i s/NodeList=n1/NodeList=n0/ $STUBS/job', "n0", NEEDLESS),
        ("exit 1", "n0", 1),
        ("true", "n9", 1),
    ],
)
def test_job_with_a_script_is_left_alone(
    rescue: Rescue, run_dir: Path, stubs: Stubs, tmp_path: Path, answer: str, lost: str, code: int
) -> None:
    stubs.on("scontrol", answer)
    assert rescue(lost) == code
    assert (requeues(stubs), ledger(tmp_path), cause(tmp_path)) == ([], [], None)


def test_silence_on_the_names_of_the_nodes_leaves_the_job_alone(rescue: Rescue, stubs: Stubs) -> None:
    stubs.on("scontrol", '[ "$2" = job ] || ! mkdir $STUBS/once 2>/dev/null || exit 1')
    assert rescue() == 1
    assert requeues(stubs) == []


@pytest.mark.parametrize(
    ("state", "reason", "restarts"),
    [("CANCELLED", "None", 0), ("COMPLETING", "TimeLimit", 0), ("SUSPENDED", "None", 0), ("RUNNING", "None", 1)],
)
def test_ended_or_requeued_job_is_left_alone(
    rescue: Rescue, stubs: Stubs, tmp_path: Path, state: str, reason: str, restarts: int
) -> None:
    stubs.answer(state, reason, restarts=restarts)
    assert rescue() == 1
    assert (requeues(stubs), ledger(tmp_path), cause(tmp_path)) == ([], [], None)


@pytest.mark.parametrize("state", ["CANCELLED", "SUSPENDED"])
def test_job_cancelled_or_suspended_at_the_same_moment_is_left_alone(
    rescue: Rescue, stubs: Stubs, tmp_path: Path, state: str
) -> None:
    cancelled = f"sed -i s/JobState=RUNNING/JobState={state}/ $STUBS/job"
    stubs.answer("RUNNING", "None", requeue="Job has already finished", code=1)
    stubs.on("scontrol", f'[ "$1" != requeue ] || {cancelled}')
    assert rescue() == 1
    assert (len(requeues(stubs)), ledger(tmp_path), cause(tmp_path)) == (1, [], None)
    assert (ENDED in stubs.calls("scontrol"), stubs.calls("scancel")) == (False, [])


@pytest.mark.parametrize(("mark", "expected"), [("cancelled", "cancelled"), ("stop", "stopped")])
def test_run_ended_by_its_user_leaves_no_job_behind(
    rescue: Rescue, run_dir: Path, stubs: Stubs, tmp_path: Path, mark: str, expected: str
) -> None:
    (run_dir / mark).touch()
    assert rescue() == 0
    assert (requeues(stubs), cause(tmp_path)) == ([], expected)
    assert stubs.calls("scancel") == ["7"]


def test_finished_run_leaves_no_job_behind(rescue: Rescue, run_dir: Path, stubs: Stubs, tmp_path: Path) -> None:
    (run_dir / "attempts/7.0/outcome").write_text("done - 9\n")
    assert rescue() == 0
    assert (requeues(stubs), ledger(tmp_path)) == ([], [("finished", "done")])
    assert stubs.calls("scancel") == ["7"]


def test_next_job_replaces_a_job_without_its_script_if_requeue_is_forbidden(
    rescue: Rescue, stubs: Stubs, tmp_path: Path, run_dir: Path
) -> None:
    stubs.on("sbatch", "env | cut -d= -f1 >$STUBS/sbatch.env")
    assert rescue(how="resubmit") == 0
    given = (stubs.folder / "sbatch.env").read_text().split()
    kept = [name for name in given if name.startswith(("SLURM", "CLUSTERDP_M"))]
    assert kept == ["SLURM_CONF"], "those of the step would reach the next job"
    (call,) = stubs.calls("sbatch")
    assert "--dependency=afterany:7" in call and "CLUSTERDP_CHAIN=7" in call
    assert ledger(tmp_path) == [("submitted", None), ("requeued", "node-lost")]
    assert ENDED in stubs.calls("scontrol"), "it would wait for the end of this job"
    assert not stubs.calls("scancel"), "it would not start after a scancel"


@pytest.mark.parametrize(
    ("event", "requeued", "cancelled"),
    [("restarted", ["requeue 7"], []), ("finished", [], ["7"]), ("requeued", [], [])],
)
def test_last_event_of_an_ended_attempt_decides_the_rescue(
    rescue: Rescue, run_dir: Path, stubs: Stubs, tmp_path: Path, event: str, requeued: list[str], cancelled: list[str]
) -> None:
    (run_dir / "attempts/7.0/cause").write_text("crash\n")
    told = {"time": 5.0, "event": event, "attempt": "7.0"}
    (run_dir / "events/7.0-batch.jsonl").write_text(json.dumps(told, separators=(",", ":")) + "\n")
    assert rescue() == 0
    assert (requeues(stubs), stubs.calls("scancel")) == (requeued, cancelled)
    assert cause(tmp_path) == "crash"
    assert cause(tmp_path, "7.0.1") == ("node-lost" if requeued else None)
    assert (ENDED in stubs.calls("scontrol")) is (event == "requeued"), "a new job replaces this one"


@pytest.mark.parametrize("restart", [{}, {"how": "resubmit"}])
def test_second_rescue_leaves_the_job_to_the_first(
    rescue: Rescue, run_dir: Path, stubs: Stubs, tmp_path: Path, restart: dict[str, object]
) -> None:
    assert rescue(**restart) == 0
    before = (requeues(stubs), stubs.calls("sbatch"), ledger(tmp_path))
    assert rescue(**restart) == 1
    assert (requeues(stubs), stubs.calls("sbatch"), ledger(tmp_path)) == before
    assert os.listdir(run_dir / "attempts") == ["7.0"]


def test_old_rescue_is_repeated(rescue: Rescue, run_dir: Path, stubs: Stubs) -> None:
    (run_dir / "attempts/7.0/rescue").touch()
    assert rescue() == 1
    os.utime(run_dir / "attempts/7.0/rescue", (1, 1))
    assert rescue() == 0
    assert (run_dir / "attempts/7.0/rescue").read_text().startswith("n1 ")
    assert requeues(stubs) == ["requeue 7"]


def test_earlier_end_of_the_run_ends_the_job(rescue: Rescue, run_dir: Path, stubs: Stubs, tmp_path: Path) -> None:
    earlier = run_dir / "attempts/6.0"
    earlier.mkdir()
    (earlier / "chain").write_text("7\n")
    (earlier / "cause").write_text("done\n")
    assert rescue() == 0
    assert (requeues(stubs), stubs.calls("scancel"), cause(tmp_path)) == ([], ["7"], "done")


def test_silent_controller_leaves_the_job_to_the_next_rescue(
    rescue: Rescue, run_dir: Path, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", requeue="Unable to contact slurm controller", code=1)
    stubs.on(
        "scontrol", '[ "$1" != requeue ] || touch $STUBS/down.now; [ ! -e $STUBS/down.now ] || { echo no >&2; exit 1; }'
    )
    assert rescue() == 1
    assert (stubs.calls("scancel"), ENDED in stubs.calls("scontrol")) == ([], False)
    assert not (run_dir / "attempts/7.0/rescue").exists()


def test_claim_of_another_rescue_is_not_removed(rescue: Rescue, run_dir: Path, stubs: Stubs) -> None:
    claim = run_dir / "attempts/7.0/rescue"
    stubs.answer("RUNNING", "None", requeue="Unable to contact slurm controller", code=1)
    answers = f'[ "$1" != requeue ] || {{ touch $STUBS/down.now; echo n2 5 >{claim}; }}'
    stubs.on("scontrol", answers + "; [ ! -e $STUBS/down.now ] || { echo no >&2; exit 1; }")
    assert rescue() == 1
    assert claim.read_text() == "n2 5\n"


@pytest.mark.parametrize(("code", "ends"), [("0 9 1009", True), ("1 9 1009", False), ("- 9 1009", False)])
def test_recorded_exit_code_of_a_command_decides_whether_it_is_done(
    rescue: Rescue, run_dir: Path, stubs: Stubs, tmp_path: Path, code: str, ends: bool
) -> None:
    (run_dir / "attempts/7.0/exit").write_text(f"{code}\n")
    assert rescue() == 0
    assert cause(tmp_path) == ("done" if ends else "node-lost")
    assert (run_dir / "attempts/7.0/exit").read_text().split()[0] == code.split()[0]
    assert (requeues(stubs), stubs.calls("scancel")) == (([], ["7"]) if ends else (["requeue 7"], []))
