"""An attempt over several ranks, from the environment to the outcome: what ends how, on all ranks, without a hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import read_events
from clusterdp.train.process.attempt import follows, report_failure
from docs.tools.failure_examples import EXAMPLES
from tests.ports import free_port
from tests.train import programs
from tests.train.ranks import Ranks, rank_environ, running
from tests.train.runs import Run

JOBS = "tests.train.jobs"
EVERY_TEN = {"every_steps": 10, "every_s": None, "async_save": False}  # as many as there should be, and when


def one(run: Run, name: str = "1.0", size: int = 2) -> Ranks:
    """A whole attempt."""
    with running(
        run.path / "ranks" / name, programs.run_worker, str(run.path), size=size, env=run.attempt(name)
    ) as ranks:
        ranks.join()
        return ranks


def children_of(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listing.stdout.split()]


def test_attempt_has_outcome_done_after_its_entry_function_returns(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:train", {"epochs": 2}, checkpoint=EVERY_TEN)
    ranks = one(run)
    assert ranks.join() == [0, 0], ranks.log
    assert run.outcome("1.0") == "done finished 24"
    assert run.events == ["saved", "saved", "saved", "finished"]
    assert run.saved("1.0") == 24
    assert run.metrics[0]["total"] == 24
    assert (run.dir.claims / "000001").read_text().startswith("1.0 ")


def test_run_resumed_after_preemption_equals_the_uninterrupted_run_bitwise(tmp_path: Path) -> None:
    """Over 2 ranks, in the middle of an epoch, with dropout, BatchNorm, fp16, a moving loss scale, loader workers."""
    params = {"epochs": 1, "batch_size": 16, "workers": 1, "step_delay_s": 0.02}
    whole = Run(tmp_path / "whole", "clusterdp.recipes.digits:main", {**params, "step_delay_s": 0.0})
    assert one(whole).join() == [0] * 2

    run = Run(tmp_path / "run", "clusterdp.recipes.digits:main", params)
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), env=run.attempt("1.0"), size=2) as ranks:
        ranks.reach(lambda: run.step() >= 5, "the fifth step")
        victim = ranks.processes[1].pid
        assert victim
        workers = children_of(victim)
        assert workers
        for pid in workers:  # Slurm signals the children of the tasks, too
            os.kill(pid, signal.SIGTERM)
        reached = run.step()
        ranks.reach(lambda: run.step() >= reached + 5, "batches that the worker had not prefetched")
        os.kill(victim, signal.SIGTERM)
        assert ranks.join() == [0] * 2, ranks.log
    word, reason, step = str(run.outcome("1.0")).split()
    assert (word, reason) == ("requeue", "term")
    assert 5 <= int(step) < 44
    assert run.saved("1.0") == int(step)
    assert run.events == ["signal", "saved", "stopped"]

    assert one(run, "1.1").join() == [0] * 2
    assert run.event("restored")["step"] == int(step)
    assert run.outcome("1.1") == "done finished 44"
    assert run.last("digest") == whole.last("digest")


def test_digest_of_a_trained_run_differs_with_another_seed(tmp_path: Path) -> None:
    runs = [
        Run(tmp_path / str(seed), "clusterdp.recipes.digits:main", {"epochs": 1, "amp": "fp32"}, train={"seed": seed})
        for seed in (0, 1)
    ]
    for run in runs:
        assert one(run, size=1).join() == [0]
    assert runs[0].last("digest") != runs[1].last("digest")


def test_sigterm_on_one_rank_during_evaluation_saves_and_stops_all_ranks(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:is_stopped_while_it_evaluates")
    ranks = one(run, size=3)
    assert ranks.join() == [0] * 3, ranks.log
    assert run.outcome("1.0") == "requeue term 8"
    assert run.saved("1.0") == 8


@pytest.mark.parametrize("where", ["window", "evaluation"])
def test_job_stop_on_one_rank_saves_and_ends_the_run_without_requeue(tmp_path: Path, where: str) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:asks_for_its_end", {"where": where})
    ranks = one(run, size=3)
    assert ranks.join() == [0] * 3, ranks.log
    word, reason, step = str(run.outcome("1.0")).split()
    assert (word, reason, int(step)) == ("stop", "user", run.saved("1.0"))
    assert run.event("signal")["name"] == "job.stop: the loss has diverged"
    assert run.event("stopped")["reason"] == "user"


def test_job_stop_before_the_first_loop_ends_the_run_without_requeue(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:asks_for_its_end", {"where": "before"})
    ranks = one(run, size=2)
    assert ranks.join() == [0] * 2, ranks.log
    assert str(run.outcome("1.0")).startswith("stop user ")


def test_stop_file_in_the_run_folder_saves_and_ends_all_ranks(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:train", {"epochs": 1000, "delay_s": 0.01})
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), env=run.attempt("1.0"), size=2) as ranks:
        ranks.reach(lambda: run.step() >= 5, "the fifth step")
        run.dir.stop.touch()
        assert ranks.join() == [0] * 2, ranks.log
    assert run.outcome("1.0") == f"stop user {run.saved('1.0')}"
    assert run.event("signal")["name"] == "clusterdp stop"


@pytest.mark.parametrize("others", ["waiting", "busy"])
def test_exception_on_one_rank_ends_all_ranks_and_is_in_every_log(tmp_path: Path, others: str) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:raises_on", {"rank": 2, "others": others})
    ranks = one(run, size=3)
    assert ranks.join() == [1] * 3
    assert run.outcome("1.0") is None
    assert 'raise ValueError("a bad\\nsample")' in ranks.rank_log(2)
    for rank in (0, 1):
        assert "failure: rank 2: ValueError: a bad" in ranks.rank_log(rank) or (
            "another failed: rank 2: ValueError: a bad" in ranks.rank_log(rank)
        )


def test_rank_log_has_the_chained_cause_of_an_exception(tmp_path: Path) -> None:
    ranks = one(Run(tmp_path / "run", f"{JOBS}:raises_for_a_reason"), size=1)
    assert ranks.join() == [1]
    assert "KeyError: 'the reason'" in ranks.log
    assert "RuntimeError: the failure" in ranks.log


def test_rank_killed_by_sigkill_ends_all_ranks_without_an_outcome(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:is_killed_on", {"rank": 1})
    ranks = one(run, size=3)
    assert ranks.join() == [1, -signal.SIGKILL, 1]
    assert run.outcome("1.0") is None
    assert not run.dir.attempt("1.0").error.exists(), "a lost connection follows from the death of another rank"


@pytest.mark.parametrize("name", ["gloo-peer-gone", "nccl-peer-gone", "nccl-aborted", "store-gone", "connection-lost"])
def test_lost_peer_connections_known_to_why_are_attributed_to_another_rank(name: str) -> None:
    _, _, said = EXAMPLES[name].partition(": ")
    assert follows(RuntimeError(said))
    raised_while_handled = ValueError("the loss is nan")
    raised_while_handled.__context__ = RuntimeError(said)
    assert follows(raised_while_handled)
    assert not follows(ConnectionResetError(104, "Connection reset by peer")), "of a server that the program asks"


def test_attempt_overtaken_by_a_newer_claim_commits_no_further_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:loses_its_claim", checkpoint=EVERY_TEN)
    ranks = one(run)
    assert ranks.join() == [0, 0], ranks.log
    assert run.outcome("1.0") == "overtaken claim 10"
    assert run.saved("1.0") == 5
    assert len(list(run.dir.checkpoints.glob("*/MANIFEST*"))) == 1


@pytest.mark.parametrize("ends", ["done", "stopped"])
def test_overtaken_attempt_without_saves_has_outcome_overtaken(tmp_path: Path, ends: str) -> None:
    """One that saves nothing any more, and so would not notice."""
    run = Run(tmp_path / "run", f"{JOBS}:ends_overtaken", {"ends": ends})
    ranks = one(run)
    assert ranks.join() == [0, 0], ranks.log
    assert run.outcome("1.0") == "overtaken claim 0"
    assert "finished" not in run.events


def test_cancelled_run_trains_no_step(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:train")
    run.dir.cancelled.touch()
    assert one(run).join() == [0, 0]
    assert run.outcome("1.0") == "stop cancelled 0"
    assert run.metrics == []


def test_attempt_with_differently_ending_ranks_fails_without_an_outcome(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:ends_differently")
    ranks = one(run)
    assert ranks.join() == [1, 1]
    assert "another rank ended differently" in ranks.rank_log(0)
    assert run.outcome("1.0") is None


@pytest.mark.parametrize(
    ("entry", "params", "line"),
    [
        ("no_such_module:main", {}, "entry: there is no module 'no_such_module' here"),
        (f"{JOBS}:trian", {}, f"entry: {JOBS} has no function 'trian'. Did you mean train?"),
        (f"{JOBS}:train", {"epoch": 3}, "params.epoch: train() takes no such parameter. Did you mean params.epochs?"),
    ],
)
def test_wrong_entry_or_params_print_one_line_and_stop_the_run(
    tmp_path: Path, entry: str, params: dict[str, int], line: str
) -> None:
    run = Run(tmp_path / "run", entry, params)
    ranks = one(run)
    assert ranks.join() == [2, 2]
    assert run.outcome("1.0") == "stop entry 0"
    for rank in (0, 1):
        assert ranks.rank_log(rank).startswith(f"clusterdp: {line}")
        assert ranks.rank_log(rank).count("\n") == 1


@pytest.mark.parametrize(
    ("on", "saved", "outcome"),
    [
        ([0, 1], False, "stop entry 0"),
        ([0], False, "stop entry 0"),
        ([1], False, None),
        ([0, 1], True, None),
    ],
)
def test_config_error_stops_the_run_only_on_rank_0_before_any_save(
    tmp_path: Path, on: list[int], saved: bool, outcome: str | None
) -> None:
    """Such as a package that is not installed: each attempt would wait in the queue for nothing. Where rank 0 does
    without it, or the run has saved before, a node may be to blame."""
    run = Run(tmp_path / "run", f"{JOBS}:is_mistaken", {"on": on})
    if saved:
        before = RunDir(tmp_path / "run").attempt("0.9")
        before.path.mkdir(parents=True)
        before.saved.write_text("7\n")
    ranks = one(run)
    assert ranks.join() == [2 if rank in on else 1 for rank in (0, 1)], ranks.log
    assert run.outcome("1.0") == outcome
    assert "clusterdp: lr: is odd. Make it even." in ranks.rank_log(on[0])


@pytest.mark.parametrize("left_out", [["optimizer", "scheduler"], ["optimizer"], []])
def test_used_optimizer_and_scheduler_outside_the_state_are_named_once(tmp_path: Path, left_out: list[str]) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:forgets", {"left_out": left_out})
    ranks = one(run, size=1)
    assert ranks.join() == [0], ranks.log
    found = [str(event["what"]) for event in read_events(RunDir(tmp_path / "run")) if event["event"] == "forgotten"]
    named = ["the Adam of model/weight, model/bias", "the StepLR of model/weight, model/bias"]
    assert [what.partition(" is used")[0] for what in found] == named[: len(left_out)]
    assert all(what in ranks.rank_log(0) for what in found)


@pytest.mark.parametrize("kept", [False, True])
def test_used_generators_outside_the_state_are_named_once(tmp_path: Path, kept: bool) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:draws_numbers", {"kept": kept})
    ranks = one(run, size=1)
    assert ranks.join() == [0], ranks.log
    found = [str(event["what"]) for event in read_events(RunDir(tmp_path / "run")) if event["event"] == "forgotten"]
    named = ["mixup (numpy.Generator, jobs.py:", "augment.rng (random.Random, jobs.py:"]
    assert [what.rpartition(":")[0].partition(":")[0] + ":" for what in found] == ([] if kept else named), found


@pytest.mark.parametrize(
    ("kind", "step", "error"),
    [
        ("function", 0, "hidden/f: a builtin_function_or_method cannot be saved"),
        ("hidden", 1, "hidden/h (rank 1 beside rank 0). Make it equal, as job.mean(x)"),
        ("object", 1, "optimizer/state/0/note: a object cannot be saved"),
    ],
)
def test_unsavable_state_ends_the_run_at_its_first_step(tmp_path: Path, kind: str, step: int, error: str) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:saves_late", {"kind": kind})
    ranks = one(run)
    assert ranks.join() == [5, 5], ranks.log
    assert run.outcome("1.0") == "stop entry 0"
    assert error in ranks.rank_log(0)
    failed = [event["step"] for event in read_events(RunDir(tmp_path / "run")) if event["event"] == "save-failed"]
    assert failed == [step] * step


@pytest.mark.parametrize("remedy", [None, "per_rank", "mean"])
def test_state_of_one_rank_stops_the_run_unless_a_remedy_is_used(tmp_path: Path, remedy: str) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:scores_differently", {"remedy": remedy})
    before = RunDir(tmp_path / "run").attempt("0.9")
    before.path.mkdir(parents=True)
    before.saved.write_text("7\n")  # no machine is to blame, also if the run has saved before
    ranks = one(run)
    assert ranks.join() == ([0, 0] if remedy else [5, 5]), ranks.log
    assert run.outcome("1.0") == ("done finished 3" if remedy else "stop entry 0")
    if not remedy:
        assert "best/accuracy: it is not the same here as on rank 0" in ranks.rank_log(0)
        failed = [event for event in read_events(RunDir(tmp_path / "run")) if event["event"] == "save-failed"]
        assert [event["step"] for event in failed] == [1]
        assert "job.per_rank(best)" in str(failed[0]["error"])


@pytest.mark.parametrize("saved", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_attribute_error_stops_the_run_only_before_the_first_save(tmp_path: Path, saved: bool) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:has_a_bug")
    if saved:
        before = RunDir(tmp_path / "run").attempt("0.9")
        before.path.mkdir(parents=True)
        before.saved.write_text("7\n")
    ranks = one(run)
    assert ranks.join() == [1, 1], ranks.log
    assert run.outcome("1.0") == (None if saved else "stop entry 0")
    assert "AttributeError: 'JobHandle' object has no attribute 'lopo'" in ranks.rank_log(0)
    assert "Traceback" in ranks.rank_log(0)


def test_report_failure_ignores_sigchld_of_a_dead_loader_worker() -> None:
    """Torch's handler of SIGCHLD would raise in the wait for another rank's failure."""

    def first_failure(is_certain: bool) -> None:
        os.kill(os.getpid(), signal.SIGCHLD)

    group: Any = SimpleNamespace(control=SimpleNamespace(first_failure=first_failure, fail=lambda said: None))

    def raise_it(number: int, frame: object) -> None:
        raise RuntimeError("DataLoader worker (pid 77) is killed by signal: Killed.")

    before = signal.signal(signal.SIGCHLD, raise_it)
    try:
        assert report_failure(ValueError("a bad sample"), group, None) == 1
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.slow
def test_missing_shared_library_fails_the_attempt_without_stopping_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", f"{JOBS}:lacks_a_library")
    ranks = one(run)
    assert ranks.join() == [1, 1], ranks.log
    assert run.outcome("1.0") is None


@pytest.mark.slow
def test_torch_compile_without_a_cpp_compiler_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    run = Run(tmp_path / "run", f"{JOBS}:compiles", {})
    command = [sys.executable, "-m", "clusterdp.train.worker", str(run.path)]
    environ = {**os.environ, **rank_environ(0, 1, free_port()), **run.attempt("1.0")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("clusterdp: train.compile: there is no C++ compiler here")
    assert done.stderr.count("\n") == 1
    assert run.outcome("1.0") == "stop entry 0"


def test_second_unnamed_loop_stops_the_run_even_after_a_save(tmp_path: Path) -> None:
    """Any other attempt would train no more than this one."""
    run = Run(tmp_path / "run", "tests.train.jobs:trains_twice")
    ranks = one(run)
    assert ranks.join() == [2, 2], ranks.log
    assert run.saved("1.0") == 3
    assert run.outcome("1.0") == "stop entry 0"
    for rank in (0, 1):
        assert 'Give it one: job.loop(..., name="finetune")' in ranks.rank_log(rank)
    assert "Traceback" not in ranks.log
