"""What the batch script makes of the nodes' own words before the ranks start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterdp import config
from clusterdp.errors import ConfigError
from tests.submission.conftest import RunScript, Stubs, cause, last_event, ledger, requeues
from tests.submission.test_policies import nodes, updates

# An srun whose tasks say what is in $STUBS/said, and a worker that leaves a trace.
PYTHON = """#!/bin/bash
case "$*" in
  *train.preflight*)
    echo "$MASTER_PORT" >>"$STUBS/ports"; cat "$STUBS/said"; [ ! -e "$STUBS/fault" ] || . "$STUBS/fault" ;;
  *) touch "$STUBS/ran"; echo "done finished 5" >"$CLUSTERDP_RUN_DIR/attempts/$CLUSTERDP_ATTEMPT/outcome" ;;
esac
"""
GOOD = "preflight n1 ok 1.0\npreflight n2 ok 1.0\n"
BAD = 'preflight n1 ok 1.0\npreflight n2 failed GPU 2 gives a "wrong" product\n'


@pytest.fixture
def job(stubs: Stubs, tmp_path: Path) -> dict[str, Any]:
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    stubs.expands("n1", "n2")
    nodes(stubs, "n1", "n2", "n3")
    return {"entry": "a:b", "resources": {"nodes": 2}, "launch": {"python": str(python), "preflight": True}}


def test_passed_preflight_starts_the_ranks(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any]
) -> None:
    (stubs.folder / "said").write_text(GOOD + "preflight n2 says 4 KiB took 2.0 s\n")
    done = run_script(job)
    assert cause(tmp_path) == "done", done.stderr
    assert (stubs.folder / "ran").exists()
    assert [name for name, _ in ledger(tmp_path)][:2] == ["started", "preflight"]
    assert "clusterdp: preflight: n2: 4 KiB took 2.0 s" in done.stderr
    first, second = (stubs.folder / "srun.args").read_text().split("--nodes=2 ")[1:]
    assert "--ntasks-per-node=1 " in first
    assert "clusterdp.train.worker" in second


def test_preflight_of_a_range_runs_on_the_given_nodes(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any]
) -> None:
    (stubs.folder / "said").write_text(GOOD)
    run_script(job | {"resources": {"nodes": "1-4"}, "train": {"global_batch_size": 8}}, SLURM_JOB_NUM_NODES="2")
    assert cause(tmp_path) == "done"
    first, second = (stubs.folder / "srun.args").read_text().split("--nodes=2 --ntasks=2 ")[1:]
    assert ("train.preflight" in first, "train.worker" in second) == (True, True)


def test_node_failing_the_preflight_is_excluded_and_the_job_requeued(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any]
) -> None:
    (stubs.folder / "said").write_text(BAD)
    done = run_script(job)
    assert cause(tmp_path) == "preflight", done.stderr
    assert not (stubs.folder / "ran").exists()
    assert requeues(stubs) == ["requeue 7"]
    assert updates(stubs) == ["update JobId=7 ExcNodeList=n2"]
    assert (tmp_path / "run/attempts/7.0/avoid").read_text() == "n2\n"
    assert "clusterdp: preflight: n2: GPU 2 gives a  wrong  product" in done.stderr
    said = (tmp_path / "run/events/7.0-batch.jsonl").read_text()
    assert '"failures":["n2: GPU 2 gives a  wrong  product"]' in said


def has_three_nodes(stubs: Stubs) -> None:
    stubs.expands("n1", "n2", "n3")


def test_node_lost_in_the_preflight_is_avoided_and_the_job_requeued(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any]
) -> None:
    has_three_nodes(stubs)
    said = "srun: error: Node failure on n2\nsrun: error: n1: task 0: Killed\nsrun: error: n3: task 2: Killed\n"
    (stubs.folder / "said").write_text(said)
    of_job = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "1"}
    run_script({**job, "resources": {"nodes": 2, "spare_nodes": 1}, "restart": {"in_place": True}}, **of_job)
    assert (cause(tmp_path), requeues(stubs)) == ("preflight", ["requeue 7"]), "n3 was not checked"
    assert (tmp_path / "run/attempts/7.0/avoid").read_text() == "n2\n"
    assert '"failures":["n2: srun has lost it"]' in (tmp_path / "run/events/7.0-batch.jsonl").read_text()


@pytest.mark.parametrize("bad", ["n2", "n3"])
def test_spare_node_takes_the_place_of_one_failing_the_preflight(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any], bad: str
) -> None:
    has_three_nodes(stubs)
    said = [f"preflight {node} {'failed x' if node == bad else 'ok 1.0'}\n" for node in ("n1", "n2", "n3")]
    (stubs.folder / "said").write_text("".join(said))
    of_job = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "1"}  # no keepers
    run_script({**job, "resources": {"nodes": 2, "spare_nodes": 1}, "restart": {"in_place": True}}, **of_job)
    assert cause(tmp_path) == "done"
    left = ["n1", "n3"] if bad == "n2" else ["n1", "n2"]
    assert (tmp_path / "run/attempts/7.0/hosts").read_text().split() == left
    assert (tmp_path / "run/attempts/7.0/avoid").read_text() == f"{bad}\n"
    assert requeues(stubs) == []
    steps = (stubs.folder / "srun.args").read_text()
    assert steps.startswith("--nodes=3 --ntasks=3 ")
    assert f"\n--nodelist={','.join(left)} --overlap --nodes=2 --ntasks=2 " in steps
    events = (tmp_path / "run/events/7.0-batch.jsonl").read_text()
    assert f'"event":"placed","attempt":"7.0","nodes":"{",".join(left)}"' in events


def test_more_bad_nodes_than_spare_ones_requeue_the_job(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any]
) -> None:
    has_three_nodes(stubs)
    (stubs.folder / "said").write_text("preflight n1 ok 1.0\npreflight n2 failed x\npreflight n3 failed y\n")
    of_job = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "1"}
    run_script({**job, "resources": {"nodes": 2, "spare_nodes": 1}, "restart": {"in_place": True}}, **of_job)
    assert (cause(tmp_path), requeues(stubs)) == ("preflight", ["requeue 7"])
    assert not (stubs.folder / "ran").exists()


@pytest.mark.parametrize(
    ("said", "avoided"),
    [
        ("preflight n1 ok 1.0\n", "n2\n"),
        ("preflight n1 failed x\npreflight n2 failed y\n", "n1 n2\n"),
        ("srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure\n", "n2\n"),
        ("srun: error: n2: task 1: Exited with exit code 9\nsrun: error: n1: task 0: Terminated\n", "n2\n"),
        ("Traceback: no module clusterdp\n", None),  # the preflight's own fault, not that of all nodes
        (GOOD + "preflight - failed the all-reduce failed\n", None),
    ],
)
def test_failed_preflight_excludes_only_the_nodes_at_fault(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any], said: str, avoided: str | None
) -> None:
    (stubs.folder / "said").write_text(said)
    run_script(job)
    avoid = tmp_path / "run/attempts/7.0/avoid"
    assert (cause(tmp_path), avoid.read_text() if avoid.exists() else None) == ("preflight", avoided)


def test_restart_preflight_limit_ends_the_run(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any]
) -> None:
    (stubs.folder / "said").write_text(BAD)
    job["restart"] = {"preflight": {"limit": 1, "avoid_node": False}, "max_crashes": 0}
    assert [run_script(job, restart=restart).returncode for restart in range(2)] == [0, 1]
    assert last_event(tmp_path, "7.1")["reason"].endswith("where restart.preflight.limit is 1")
    assert updates(stubs) == []


def test_failed_preflight_of_a_node_in_resources_nodelist_ends_the_run(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any]
) -> None:
    (stubs.folder / "said").write_text(BAD)
    job["resources"]["nodelist"] = "n[1-2]"
    done = run_script(job)
    assert (done.returncode, requeues(stubs)) == (1, []), done.stderr
    assert last_event(tmp_path, "7.0")["reason"] == "n2 failed the preflight, and resources.nodelist asks for it"


def test_preemption_during_the_preflight_excludes_no_node(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any]
) -> None:
    (stubs.folder / "said").write_text("")
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    run_script(job)
    assert cause(tmp_path) == "preempted"
    assert updates(stubs) == []
    assert not (tmp_path / "run/attempts/7.0/avoid").exists()


def test_preflight_with_a_taken_port_is_retried_on_another_port(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, job: dict[str, Any]
) -> None:
    (stubs.folder / "said").write_text("The server socket has failed: EADDRINUSE\n")
    (stubs.folder / "fault").write_text(f"printf '{GOOD}' >$STUBS/said")
    run_script(job)
    assert cause(tmp_path) == "done"
    first, second = (stubs.folder / "ports").read_text().split()
    assert first != second


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"command": "true"}, "launch.preflight: needs clusterdp on the nodes"),
        ({"entry": "a:b", "backend": "submitit"}, "launch.preflight: submitit writes its own script"),
    ],
)
def test_launch_preflight_is_refused_for_command_jobs_and_for_submitit(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config.from_mapping({**values, "launch": {"preflight": True}})
