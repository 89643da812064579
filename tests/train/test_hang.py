"""A hang on purpose, over real processes: the report names rank, node, step and phase, and the attempt ends as hung.
And what only looks like a hang is left alone."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp import procfs
from clusterdp.rundir import read_events
from tests.torch_version import needs_torch
from tests.train import programs
from tests.train.ranks import Ranks, running, wait_until
from tests.train.runs import Run
from tests.train.test_attempt import children_of

pytestmark = pytest.mark.timeout(300)
SOON = 1.0  # hang_after_s


@contextmanager
def started(folder: Path, entry: str, params: dict[str, Any], size: int = 2, **sections: Any) -> Iterator[Any]:
    """Ranks 0 and 1 are on node n1, 2 and 3 on n2. `environ`, beside the sections of the config: more variables."""
    environ = sections.pop("environ", {})
    sections.setdefault("restart", {"hang_after_s": SOON, "on_hang": "restart"})
    run = Run(folder / "run", f"tests.train.hangs:{entry}", params, **sections)
    program, words = programs.run_worker_on_nodes, str(run.path)
    with running(folder / "ranks", program, words, size=size, env=run.attempt("1.0") | environ) as ranks:
        yield run, ranks


def hung(folder: Path, entry: str, params: dict[str, Any], **options: Any) -> tuple[Run, Ranks]:
    with started(folder, entry, params, **options) as (run, ranks):
        assert all(ranks.join()), ranks.log
    assert run.outcome("1.0") is None
    return run, ranks


def agents_of(run: Run, count: int) -> list[int]:
    """The processes of the nodes' agents."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    found = [pid for pid in pids if b"hang.node_watch" in b"".join(procfs.command(pid))]
    found = [pid for pid in found if procfs.environ(pid).get("CLUSTERDP_RUN_DIR") == str(run.path)]
    assert len(found) == count
    return found


def report(run: Run) -> str:
    return run.dir.attempt("1.0").hang.read_text()


def hang(run: Run) -> dict[str, Any]:
    event = run.event("hang")
    return {name: event[name] for name in ("ranks", "nodes", "step", "phase")}


@pytest.mark.parametrize(
    ("what", "on", "told"),
    [
        ("stop", 0, "rank 0 on n1: step 5, in the step, stopped (by SIGSTOP or a debugger); the others wait in step 5"),
        ("gil", 1, r"rank 1 on n1: step 5, in the step \(hangs.py:\d+ in does\); the others wait in step 5, in the"),
        pytest.param("stop", 2, "rank 2 on n2: step 5, in the step, stopped", marks=pytest.mark.slow),
        pytest.param("loop", 2, r"rank 2 on n2: step 5, in the step \(hangs.py:\d+ in loops_", marks=pytest.mark.slow),
        pytest.param("return", 2, "rank 2 on n2: step 4, at its end", marks=pytest.mark.slow),
        pytest.param("break", 2, "rank 2 on n2: step 4, outside of the loop", marks=pytest.mark.slow),
        pytest.param(
            "collectives", 2, r"rank 2 on n2: step 5, in the step \(hangs.py:\d+ in differ", marks=pytest.mark.slow
        ),
    ],
)
def test_hung_attempt_ends_with_a_report_of_rank_node_step_and_phase(
    tmp_path: Path, what: str, on: int, told: str
) -> None:
    run, ranks = hung(tmp_path, "does", {"what": what, "on": [on]}, size=3 if on == 2 else 2)
    node = f"n{on // 2 + 1}"
    phase = {"return": "end", "break": "program"}.get(what, "step")
    assert hang(run) == {"ranks": [on], "nodes": node, "step": 4, "phase": phase}
    assert run.dir.attempt("1.0").hung.read_text() == f"{node}\n"
    told = told if "\\" in told else re.escape(told)
    assert re.search(rf"No sign of progress for \d+ s: {told}", report(run))
    assert re.search(rf"clusterdp: no sign of progress for \d+ s: {told}", ranks.rank_log(0))
    assert re.search(rf"^{on} +{node} +step ", report(run), re.MULTILINE)
    assert "in _engine_run_backward" in report(run) or what in ("collectives",)


@needs_torch(2, 11, "flight records lack what is pending on gloo")
@pytest.mark.skipif(not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"), reason="torch has no recorder for gloo")
def test_hang_report_has_the_last_collective_of_each_rank_from_flight_records(
    tmp_path: Path,
) -> None:
    environ = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dump_")}
    environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = str(tmp_path / "request_")
    run, ranks = hung(tmp_path, "records", {"on": [1]}, environ=environ)
    assert run.dir.attempt("1.0").hang.exists(), ranks.log
    rows = {line.split()[0]: line for line in report(run).splitlines() if re.match(r"\d ", line)}
    assert re.search(r"all_reduce \d+ \(pending\)$", rows["0"]), rows
    assert re.search(r"\w+ \d+ \(done\)$", rows["1"]), rows
    assert hang(run)["ranks"] == [1]
    kept = [path.name for path in run.dir.attempt("1.0").flight_records()]
    assert kept == ["flight-record-n1.pickle"]
    assert "flight-record-NODE.pickle" in report(run)


@pytest.mark.slow
def test_surplus_collective_on_one_rank_ends_the_attempt_as_hung(tmp_path: Path) -> None:
    """All wait for each other in one step: it may be that none of them is named."""
    run, _ = hung(tmp_path, "does", {"what": "one more", "on": [2]}, size=3)
    assert run.dir.attempt("1.0").hung.exists()
    assert re.search(r"No sign of progress for \d+ s", report(run))


@pytest.mark.slow
def test_hang_report_has_the_stack_of_a_stuck_loader_worker(tmp_path: Path) -> None:
    run, _ = hung(tmp_path, "reads", {"on": [1]}, size=3)
    assert hang(run) == {"ranks": [1], "nodes": "n1", "step": 4, "phase": "data"}
    mine = report(run).partition("--- rank 1 on n1")[2].partition("\n---")[0]
    assert re.search(r"its process \d+ \(\S+, state R.*in loops_for_ever.*in __getitem__", mine, re.DOTALL)


@pytest.mark.slow
def test_hang_report_of_a_trainer_names_the_backward_pass(tmp_path: Path) -> None:
    run, _ = hung(tmp_path, "goes_backward", {"on": [2]}, size=3)
    assert hang(run) == {"ranks": [2], "nodes": "n2", "step": 4, "phase": "backward"}
    assert "rank 2 on n2: step 5, in backward (hangs.py:" in report(run)
    assert "; the others wait in step 5, in backward" in report(run)


@pytest.mark.slow
def test_default_on_hang_reports_a_hang_first_and_ends_the_attempt_later(tmp_path: Path) -> None:
    with started(tmp_path, "does", {"what": "stop", "on": [1]}, restart={"hang_after_s": 2}) as (run, ranks):
        ranks.reach(run.dir.attempt("1.0").hang.exists, "the report")
        assert not run.dir.attempt("1.0").hung.exists()
        assert all(ranks.join())
    assert run.events.count("hang") == 1
    assert run.dir.attempt("1.0").hung.read_text() == "n1\n"
    assert "the attempt ends as hung if that lasts for 2 s more" in ranks.rank_log(0)


@pytest.mark.slow
def test_collective_timeout_ends_the_attempt_as_hung_under_on_hang_report(tmp_path: Path) -> None:
    options = {"restart": {"hang_after_s": 2, "on_hang": "report"}, "train": {"timeout_s": 7}}
    run, ranks = hung(tmp_path, "does", {"what": "loop", "on": [1]}, **options)
    assert run.events.count("hang") == 1
    assert run.dir.attempt("1.0").hung.read_text() == "n1\n"
    assert "time-out of a collective: another rank did not come to it within train.timeout_s" in ranks.rank_log(0)


@pytest.mark.slow
def test_hang_notes_are_removed_if_a_stopped_rank_continues_after_the_report(tmp_path: Path) -> None:
    options = {"restart": {"hang_after_s": 2, "on_hang": "report"}}
    with started(tmp_path, "steps", {"seconds": 0.05, "count": 40}, **options) as (run, ranks):
        attempt = run.dir.attempt("1.0")
        ranks.reach(lambda: run.step() >= 5, "the fifth step")
        os.kill(ranks.processes[1].pid, signal.SIGSTOP)
        ranks.reach(attempt.hang.exists, "the report")
        os.kill(ranks.processes[1].pid, signal.SIGCONT)
        assert ranks.join() == [0, 0], ranks.log
    assert [path.name for path in attempt.hang_folder.iterdir()] == ["nodes"]
    assert not attempt.hung.exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["first step", "evaluation", "save", "between epochs"])
def test_long_first_step_evaluation_save_or_epoch_gap_is_not_a_hang(tmp_path: Path, what: str) -> None:
    with started(tmp_path, "takes_long", {"what": what, "seconds": 10 * SOON}) as (run, ranks):
        assert ranks.join() == [0, 0], ranks.log
    assert str(run.outcome("1.0")).startswith("done finished ")
    assert "hang" not in run.events


@pytest.mark.slow
@pytest.mark.parametrize("also", ["the ranks", "their watchers"])
def test_suspended_job_is_not_reported_as_a_hang(tmp_path: Path, also: str) -> None:
    with started(tmp_path, "steps", {"seconds": 0.1}, size=3) as (run, ranks):
        ranks.reach(lambda: run.step() >= 5, "the fifth step")
        pids = [process.pid for process in ranks.processes]
        if also == "their watchers":
            pids += agents_of(run, 2)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4 * SOON)  # nothing is to happen
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert ranks.join() == [0] * 3, ranks.log
    assert "hang" not in run.events
    assert not run.dir.attempt("1.0").hung.exists()


@pytest.mark.parametrize("size", [1, 2])
def test_agent_watches_the_ranks_of_its_node_and_ends_with_them(tmp_path: Path, size: int) -> None:
    options = {"restart": {"hang_after_s": 60.0}, "size": size}
    with started(tmp_path, "steps", {"seconds": 0.02, "count": 10**6}, **options) as (run, ranks):
        ranks.reach(lambda: run.step() >= 1, "the first step")
        assert not [child for process in ranks.processes for child in children_of(process.pid)]
        (agent,) = agents_of(run, 1)
        os.kill(agent, signal.SIGTERM)  # Slurm sends a preemption's to all processes
        assert Path(f"/proc/{agent}").exists()
        ranks.processes[0].kill()
        wait_until(lambda: not Path(f"/proc/{agent}/exe").exists(), "the agent's end")
    assert [event["event"] for event in read_events(run.dir)].count("hang") == 0
