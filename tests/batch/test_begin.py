"""may_start: which attempts start, which do not, and after what pause. What earlier attempts come to."""

from __future__ import annotations

import json

import pytest

from clusterdp.batch.attempts import Attempt, last_event
from clusterdp.batch.decisions import End, Start
from clusterdp.batch.history import History, history_of
from clusterdp.batch.policy import exhausted, may_start, pause_s
from clusterdp.batch.rules import Policy, Rules

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


def test_restart_pause_is_zero_after_its_time_has_passed() -> None:
    assert pause_s(History(row=("preempted",), over_at=1000), "preempted", RULES, now=1101) == 0


@pytest.mark.parametrize(
    ("earlier", "more", "limit"),
    [
        (history("crash", "crash"), 0, ""),
        (history("crash", "crash"), 1, "max_crashes"),
        (history("memory"), 1, "restart.memory.limit"),
        (history("timeout", "timeout"), 0, ""),
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
