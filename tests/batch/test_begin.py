"""may_start: which attempts start, which do not, and after what pause. What earlier attempts come to."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterdp.batch import main
from clusterdp.batch.decide.attempts import Attempt, last_event, read_attempts
from clusterdp.batch.decide.decisions import End, Start
from clusterdp.batch.decide.history import History, history_of, step_to_begin_at
from clusterdp.batch.decide.policy import exhausted, may_start, pause_s
from clusterdp.batch.files.job import job_of
from clusterdp.batch.files.record import Record
from clusterdp.batch.files.rules import Policy, Rules

RULES = Rules(
    kind="entry",
    max_crashes=2,
    max_no_progress=3,
    policies={"preempted": Policy(wait_s=100), "memory": Policy(limit=1), "node-lost": Policy(limit=10, avoid=True)},
)


def history(*causes: str, **more: object) -> History:
    return History(ended=causes, row=causes)._replace(**more)


@pytest.mark.parametrize(
    ("earlier", "marks", "expected"),
    [
        (History(), (False, False), Start()),
        (History(), (True, False), "cancelled"),
        (History(), (False, True), "stopped"),
        (History(), (True, True), "cancelled"),
        (history("crash", "start"), (False, False), Start()),
        (history("crash", "start", "hung"), (False, False), "gave-up"),
        (history("memory"), (False, False), Start()),
        (history("memory", "memory"), (False, False), "gave-up"),
        (history("timeout", idle=2), (False, False), Start()),
        (history("timeout", idle=3), (False, False), "gave-up"),
        (End("done", "finished", 0), (True, True), "done"),
    ],
)
def test_may_start_refuses_only_finished_cancelled_stopped_or_exhausted_runs(
    earlier: History | End, marks: tuple[bool, bool], expected: Start | str
) -> None:
    decision = may_start(earlier, RULES, *marks, now=1000)
    assert (decision.cause if isinstance(decision, End) else decision) == expected


def test_command_job_starts_after_99_attempts_without_a_checkpoint() -> None:
    assert may_start(history("asked", idle=99), RULES._replace(kind="command"), False, False, 0) == Start()


def test_start_after_a_preemption_waits_for_the_rest_of_the_pause() -> None:
    decision = may_start(history("preempted", over_at=950), RULES, False, False, now=1000)
    assert decision == Start(50, "restart.preempted.wait_s: this attempt begins in 50 s.")


@pytest.mark.parametrize(
    ("row", "pause"),
    [
        (("preempted",), 100),
        (("preempted", "preempted"), 200),
        (("preempted", "crash", "preempted"), 100),
        (("preempted",) * 9, 3600),
        ((), 0),
    ],
)
def test_restart_pause_doubles_with_consecutive_preemptions_up_to_one_hour(row: tuple[str, ...], pause: int) -> None:
    assert pause_s(History(row=row, over_at=1000), "preempted", RULES, now=1000) == pause


@pytest.mark.parametrize(("cause", "pause"), [("preempted", 100), ("crash", 0)])
def test_restart_pause_stays_as_asked_if_the_clock_was_ahead(cause: str, pause: int) -> None:
    assert pause_s(History(row=(cause,), over_at=1140), cause, RULES, now=1000) == pause


def test_restart_pause_is_zero_after_its_time_has_passed() -> None:
    assert pause_s(History(row=("preempted",), over_at=1000), "preempted", RULES, now=1101) == 0


@pytest.mark.parametrize(
    ("earlier", "more", "limit"),
    [
        (history("crash", "crash"), 0, ""),
        (history("crash", "crash"), 1, "max_crashes"),
        (history("memory"), 1, "restart.memory.limit"),
        (history("timeout", "timeout"), 0, ""),
        (history("timeout", "timeout"), 1, "max_attempts"),
        (history("timeout", "timeout", "timeout"), 0, "max_attempts"),
        (history("timeout", spent_s=7199), 0, ""),
        (history("timeout", spent_s=7200), 0, "max_hours"),
    ],
)
def test_exhausted_restart_limit_is_named_only_if_no_attempt_is_left(earlier: History, more: int, limit: str) -> None:
    rules = RULES._replace(max_attempts=3, max_hours=2.0)
    why = exhausted(earlier, earlier.ended[-1], rules, more)
    assert limit in why and bool(why) == bool(limit)


def attempt(cause: str, word: str = "", reason: str = "", **more: object) -> Attempt:
    return Attempt("7.0", cause, word, reason)._replace(**more)


FAILED = json.dumps({"time": 1, "event": "failed", "attempt": "7.0", "cause": "crash", "exit": 3, "error": "x"})


@pytest.mark.parametrize(
    ("last", "cause", "code"),
    [
        (attempt("done", "done", "finished"), "done", 0),
        (attempt("timeout", "done", "finished"), "done", 0),
        (attempt("cancelled"), "cancelled", 1),
        (attempt("preempted", "stop", "cancelled"), "cancelled", 1),
        (attempt("stopped", "stop", "user"), "stopped", 75),
        (attempt("stopped"), "stopped", 75),
        (attempt("stopped", "requeue", "term"), "stopped", 75),
        (attempt("stopped", "stop", "entry"), "stopped", 1),
        (attempt("crash", last_event=FAILED), "crash", 1),
    ],
)
def test_attempt_history_keeps_a_final_end_with_its_cause_and_exit_code(last: Attempt, cause: str, code: int) -> None:
    over = history_of([attempt("timeout"), last], "7")
    assert isinstance(over, End)
    assert (over.cause, over.code) == (cause, code)


def test_last_event_ignores_a_notification_after_the_failure() -> None:
    told = json.dumps({"time": 2, "event": "told", "attempt": "7.0"}, separators=(",", ":"))
    assert last_event(f"{FAILED}\n{told}\n") == FAILED
    assert last_event(f"{told}\n") == ""


@pytest.mark.parametrize(
    "last",
    [
        attempt("crash"),
        attempt("crash", last_event=FAILED.replace("failed", "requeued")),
        attempt("start", last_event=FAILED),
        attempt("crash", last_event="{"),
        attempt("crash", last_event="[]"),
        attempt("lost"),
        attempt("unknown"),
        attempt("overtaken", "overtaken", "claim"),
        attempt("stopped", "stop", "claim"),
        attempt("bad-node"),
    ],
)
def test_attempt_history_leaves_the_run_open_after_a_nonfinal_attempt(last: Attempt) -> None:
    assert isinstance(history_of([last], "7"), History)


def test_attempt_history_counts_faults_idle_attempts_seconds_bad_nodes_and_chained_jobs() -> None:
    asked = attempt("asked", code="75", took=5)
    found = history_of(
        [
            attempt("crash", took=100, saved=True),
            attempt("crash", code="127", took=1, avoid=("n2",)),
            attempt("overtaken"),
            asked,
            asked._replace(name="8.0", took=10, over_at=99, avoid=("n1",)),
        ],
        "9",
    )
    assert isinstance(found, History)
    assert found.ended == ("crash", "crash", "asked", "asked")
    assert (found.faults, found.idle, found.spent_s, found.short, found.missing) == (2, 3, 16, 2, 0)
    assert (found.since, found.bad, found.over_at, found.links) == (("7.0",) * 3 + ("8.0",), ("n1", "n2"), 99, 3)


def test_saved_checkpoint_resets_consecutive_ends_spent_time_and_idle_attempts() -> None:
    found = history_of([attempt("timeout", took=9), attempt("timeout", took=9, saved=True)], "7")
    assert isinstance(found, History)
    assert (found.row, found.spent_s, found.idle) == (("timeout",), 0, 0)


FIRST = ("5.0", "5", True)  # the job before `resume --from 10`, which begins with job 7
NEXT = {"SLURM_JOB_ID": "8", "CLUSTERDP_CHAIN": "7", "CLUSTERDP_REPLACES": "7:7"}
LAST = {"SLURM_JOB_ID": "9", "CLUSTERDP_CHAIN": "7", "CLUSTERDP_REPLACES": "8:8"}
AGAIN = {"SLURM_RESTART_COUNT": "1"}
ELEMENT = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", **AGAIN}
LOST = ""  # Slurm has requeued it: no cause is on record
BEGINNINGS: dict[str, tuple[list[tuple[str, str, bool] | tuple[str, str, bool, str]], dict[str, str], int | None]] = {
    "submit": ([], {}, 10),
    "resume --from": ([FIRST], {}, 10),
    "resume --from once more": ([FIRST, ("6.0", "6", True)], {}, 10),
    "the same script by hand": ([FIRST, ("6.0", "6", True)], {}, 10),
    "requeued by us": ([FIRST, ("7.0", "7", True)], AGAIN, None),
    "requeued by us before a save": ([FIRST, ("7.0", "7", False)], AGAIN, 10),
    "requeued by Slurm": ([FIRST, ("7.0", "7", True, LOST)], AGAIN, None),
    "requeued by Slurm before a save": ([FIRST, ("7.0", "7", False, LOST)], AGAIN, 10),
    "rescued": ([FIRST, ("7.0", "7", True, "node-lost")], AGAIN, None),
    "in place": ([FIRST, ("7.0", "7", True, "crash")], {"life": "1"}, None),
    "in place before a save": ([FIRST, ("7.0", "7", False, "crash")], {"life": "1"}, 10),
    "on a spare node": ([FIRST, ("7.0", "7", False), ("7.0.1", "7", True, "node-lost")], {"life": "2"}, None),
    "resubmitted": ([FIRST, ("7.0", "7", True)], NEXT, None),
    "resubmitted before a save": ([FIRST, ("7.0", "7", False)], NEXT, 10),
    "resubmitted twice": ([FIRST, ("7.0", "7", True), ("8.0", "7", False)], LAST, None),
    "resubmitted and requeued": ([FIRST, ("7.0", "7", False), ("8.0", "7", True)], {**NEXT, **AGAIN}, None),
    "overtaken": ([FIRST, ("7.0", "7", True, "overtaken")], AGAIN, None),
    "an element of an array": ([("7_3.0", "7_3", True)], ELEMENT, None),
    "an element beside another": ([("7_2.0", "7_2", True), ("7_3.0", "7_3", False)], ELEMENT, 10),
}


@pytest.mark.parametrize("way", BEGINNINGS)
def test_jobs_of_a_resume_go_back_to_its_step_until_a_save(way: str, tmp_path: Path) -> None:
    earlier, environ, step = BEGINNINGS[way]
    told = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", **environ}
    job = job_of(str(tmp_path), "job.sbatch", told)._replace(life=int(environ.get("life", 0)))
    for name, chain, saved, *cause in earlier:
        folder = tmp_path / "attempts" / name
        folder.mkdir(parents=True)
        texts = {"chain": chain, "saved": "20" if saved else "", "cause": [*cause, "preempted"][0]}
        for file, text in texts.items():
            if text:
                (folder / file).write_text(text + "\n")
    slurm: Any = SimpleNamespace(down_nodes=lambda nodes: [])
    attempts = read_attempts(job, RULES, Record(job), slurm)
    assert step_to_begin_at(10, attempts) == step
    assert step_to_begin_at(None, attempts) is None, "a resume without --from, and a first submit"


@pytest.mark.parametrize(
    ("rules", "nodes"),
    [
        (Rules(nodes=2), 4),  # sbatch --nodes=4 on the script
        (Rules(nodes=3, spare_nodes=1), 3),
        (Rules(nodes=2, sizes=[2, 3, 4]), 4),
        (Rules(nodes=2, sizes=[2, 3], spare_nodes=1), 3),
    ],
)
def test_nodes_of_the_ranks_come_from_the_allocation(
    rules: Rules, nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"JOB_ID": "7", "JOB_NODELIST": "n[1-4]", "JOB_NUM_NODES": "4"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(main, "read_rules", lambda folder: rules)
    monkeypatch.setattr(main, "Children", lambda environ: SimpleNamespace(environ=environ))
    attempt = main.prepare(main.Words("run", str(tmp_path), {}, []))
    assert attempt.rules.nodes == nodes
