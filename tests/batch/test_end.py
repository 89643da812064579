"""What follows the end of an attempt: by the ranks' word, by Slurm's, or by what the program died of."""

from __future__ import annotations

import re

import pytest

from clusterdp.batch.act.check_nodes import first_dead, result_of
from clusterdp.batch.decide import evidence
from clusterdp.batch.decide.decisions import Decision, End, Leave, Requeue
from clusterdp.batch.decide.end import Ended, by_fault, by_nodes, by_slurm, by_the_ranks
from clusterdp.batch.decide.evidence import Failure, Fault, failure_of, fault_of, is_repeated, mistake_of, without_kills
from clusterdp.batch.decide.history import History
from clusterdp.batch.decide.policy import avoided, not_launched
from clusterdp.batch.files.causes import of_outcome
from clusterdp.batch.files.rules import Policy, Rules
from clusterdp.batch.processes import slurm
from clusterdp.batch.processes.slurm import state_of

ENTRY = Rules(kind="entry", max_crashes=1)
COMMAND = Rules(kind="command", max_crashes=1, max_no_progress=2)


def named(decision: Decision) -> str:
    kind = type(decision).__name__
    return f"{kind} {decision.cause}" if isinstance(decision, (End, Requeue)) else kind


@pytest.mark.parametrize(
    ("word", "reason", "expected"),
    [
        ("done", "finished", "End done 0"),
        ("stop", "cancelled", "End cancelled 1"),
        ("stop", "claim", "End overtaken 1"),
        ("overtaken", "claim", "End overtaken 1"),
        ("stop", "user", "End stopped 75"),
        ("stop", "entry", "End stopped 2"),
        ("stop", "config", "End stopped 1"),
        ("requeue", "term", ""),
        ("", "", ""),
    ],
)
def test_rank_outcome_ends_the_run_unless_it_is_requeue_or_missing(word: str, reason: str, expected: str) -> None:
    found = by_the_ranks(Ended(0, 5, word, reason))
    assert " ".join(f"{named(end)} {end.code}" for end in found) == expected


@pytest.mark.parametrize(
    ("now", "ended", "rules", "expected"),
    [
        (slurm.ENDING, Ended(9, 5), ENTRY, "Leave"),
        (slurm.REQUEUED, Ended(0, 5), COMMAND, "Leave"),
        (slurm.UNKNOWN, Ended(0, 5), COMMAND, "End unknown failed 75"),
        (slurm.PREEMPTED, Ended(0, 5), COMMAND, "Requeue preempted"),
        (slurm.PREEMPTED, Ended(137, 5), ENTRY, "Requeue preempted"),
        (slurm.TIME_LIMIT, Ended(0, 5), COMMAND, "Requeue timeout"),
        (slurm.RUNNING, Ended(0, 5, "requeue", "time"), ENTRY, "Requeue timeout"),
        (slurm.RUNNING, Ended(0, 5, "requeue", "term"), ENTRY, "Requeue signal"),
        (slurm.RUNNING, Ended(0, 5), COMMAND, "End done finished 0"),
        (slurm.RUNNING, Ended(0, 5), ENTRY, ""),
        (slurm.RUNNING, Ended(75, 5), COMMAND, "Requeue asked"),
        (slurm.RUNNING, Ended(75, 90, "requeue", "grown", saved=True), ENTRY, "Requeue grown"),
        (slurm.RUNNING, Ended(75, 5), ENTRY, ""),
        (slurm.RUNNING, Ended(9, 5), COMMAND, ""),
    ],
)
def test_job_state_in_slurm_decides_before_the_exit_code_of_the_step(
    now: str, ended: Ended, rules: Rules, expected: str
) -> None:
    found = by_slurm(ended, now, History(), rules)
    ends = [f" {end.event} {end.code}" if isinstance(end, End) else "" for end in found]
    assert " ".join(named(each) + end for each, end in zip(found, ends, strict=True)) == expected


def test_node_with_failed_task_launch_is_named_and_counted_as_node_lost() -> None:
    rules = ENTRY._replace(policies={"node-lost": Policy(limit=1)})
    for ended, expected in (((), "Requeue node-lost"), (("node-lost",), "End gave-up")):
        found = by_nodes(["n2"], Ended(233, 1), History(ended=ended), rules)
        assert named(found) == expected
        assert "lost n2: a failed node" in found.said


def test_repeated_exit_75_within_a_minute_ends_the_run() -> None:
    short = History(short=1)
    assert [named(each) for each in by_slurm(Ended(75, 59), slurm.RUNNING, short, COMMAND)] == ["End gave-up"]
    assert [named(each) for each in by_slurm(Ended(75, 60), slurm.RUNNING, short, COMMAND)] == ["Requeue asked"]


def test_second_preemption_ends_the_run_if_its_limit_is_one() -> None:
    rules = ENTRY._replace(policies={"preempted": Policy(limit=1)})
    for ended, expected in (((), "Requeue preempted"), (("preempted",), "End gave-up")):
        found = by_slurm(Ended(0, 5), slurm.PREEMPTED, History(ended=ended), rules)
        assert [named(each) for each in found] == [expected]


CRASH = Fault("crash", "crashed")


@pytest.mark.parametrize(
    ("ended", "earlier", "repeated", "expected"),
    [
        (Ended(3, 5), History(), False, "Requeue crash"),
        (Ended(3, 5), History(), True, "End crash"),
        (Ended(3, 5), History(ended=("start",)), False, "End crash"),
        (Ended(3, 5), History(ended=("timeout",) * 9), False, "Requeue crash"),
        (Ended(127, 5), History(), False, "Requeue crash"),
        (Ended(127, 5), History(missing=1), False, "End crash"),
        (Ended(126, 5), History(missing=1), False, "End crash"),
        (Ended(127, 5, in_setup=True), History(missing=1), False, "Requeue crash"),
        (Ended(0, 5), History(), False, "Requeue crash"),
        (Ended(0, 5), History(), True, "End crash"),
    ],
)
def test_failed_attempt_is_requeued_unless_its_error_repeats_or_limit_is_exceeded(
    ended: Ended, earlier: History, repeated: bool, expected: str
) -> None:
    decision = by_fault(ended, CRASH, Failure("ValueError: x"), earlier, ENTRY, lambda: repeated)
    assert named(decision) == expected
    assert f"crashed with exit code {ended.code}" in decision.said
    if isinstance(decision, End):
        assert (decision.event, decision.code) == ("failed", ended.code or 1)
        assert decision.details["error"] == "ValueError: x"
        assert ("reason" in decision.details) == (not earlier.faults)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("JobId=7 JobState=RUNNING Reason=None PreemptTime=None Restarts=2", slurm.RUNNING),
        ("JobId=7 JobState=RUNNING Reason=None PreemptTime=2026-01-01T00:00:00 Restarts=2", slurm.PREEMPTED),
        ("JobId=7 JobState=COMPLETING Reason=TimeLimit Restarts=2", slurm.TIME_LIMIT),
        ("JobId=7 JobState=COMPLETING Reason=None Restarts=2", slurm.ENDING),
        ("JobId=7 JobState=PENDING Reason=None Restarts=2", slurm.ENDING),
        ("JobId=7 JobState=RUNNING Reason=None Restarts=3", slurm.REQUEUED),
        ("slurm_load_jobs error: Invalid job id specified", slurm.ENDING),
        ("JobId=7 JobName=JobState=RUNNING JobState=CANCELLED Restarts=2 Comment=a JobState=RUNNING", slurm.ENDING),
    ],
)
def test_job_state_is_derived_from_the_scontrol_fields(fields: str, expected: str) -> None:
    assert state_of(slurm.fields_of(fields), 2) == expected


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("done finished", "done"),
        ("stop cancelled", "cancelled"),
        ("stop claim", "overtaken"),
        ("stop user", "stopped"),
        ("overtaken claim", "overtaken"),
        ("requeue time", "timeout"),
        ("requeue term", "preempted"),
        (" ", ""),
    ],
)
def test_cause_of_an_attempt_is_derived_from_its_rank_outcome(outcome: str, expected: str) -> None:
    assert of_outcome(*outcome.split(" ")) == expected


@pytest.mark.parametrize(
    ("end", "said", "expected"),
    [
        ("MemoryError", "", "memory"),
        ("", "srun: error: n1: task 0: Out Of Memory", "memory"),
        ("", "echo: task 0: Out Of Memory", "crash"),
        ("OSError: [Errno 28] No space left on device", "", "disk"),
        ("MemoryError\nNo space left on device", "", "disk"),
        ("RuntimeError: CUDA error: out of memory", "", "memory"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "", "memory"),
        ("NCCL WARN Error: failed to extend /dev/shm/nccl-hxT to 3303, error: No space left on device", "", "crash"),
        ("a checkpoint was not saved (1 in a row): No space left on device", "", "crash"),
    ],
)
def test_memory_or_disk_fault_is_taken_from_the_last_matching_log_line(end: str, said: str, expected: str) -> None:
    assert fault_of([end], said, False, 61, True).cause == expected


def test_crash_is_classified_as_start_only_within_a_minute_and_without_progress() -> None:
    ended = ((59, False), (59, True), (60, False))
    causes = [fault_of([], "", False, took, started).cause for took, started in ended]
    assert causes == ["start", "crash", "crash"]
    assert fault_of(["MemoryError"], "", True, 5, False).cause == "hung"


def test_alike_lines_of_many_ranks_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    class Search:
        def finditer(self, line: str) -> list[re.Match[str]]:
            searched.append(line)
            return []

        search = finditer

    for name in ("OUT_OF_MEMORY", "ERROR"):
        monkeypatch.setattr(evidence, name, Search())
    fault_of(["a step of this test alone\nRuntimeError: of this test alone"] * 1000, "", False, 61, True)
    assert len(searched) == 4


WATCHDOG = "[rank0]:[E1206 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL("
GLOO = "RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([WATCHDOG, ""], "hung"),
        ([GLOO, "RuntimeError: Connection reset by peer"], "hung"),
        ([WATCHDOG, "ValueError: the mistake of a rank"], "crash"),
        ([WATCHDOG, "MemoryError"], "memory"),
        (["", ""], "crash"),
    ],
)
def test_collective_timeout_without_another_error_counts_as_hung(ends: list[str], expected: str) -> None:
    assert fault_of(ends, "", False, 61, True).cause == expected


GONE = "RuntimeError: Connection reset by peer"


@pytest.mark.parametrize(
    ("note", "said", "logs", "expected"),
    [
        (["n2", "9", "ValueError: x"], "", {}, Failure("ValueError: x", "n2", "9")),
        (["n2", "9", "ValueError: x", "3"], "", {}, Failure("ValueError: x", "n2", "9", rank=3)),
        ([], "", {0: GONE, 1: "ValueError: y"}, Failure("ValueError: y", rank=1)),
        ([], "", {2: "ValueError: y", 1: "ValueError: z"}, Failure("ValueError: y", rank=2)),
        ([], "srun: error: n2: task 1: Killed", {0: GONE}, Failure("", "n2", "", "srun: n2: task 1: Killed", 1)),
        (
            [],
            "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Killed",
            {0: GONE},
            Failure("", "n2", "", "srun: n2: task 1: Killed", 1),
        ),
        (
            [],
            "srun: error: n1: task 0: Terminated\nsrun: error: n2: task 1: Exited with exit code 1",
            {0: GONE, 1: "ValueError: y"},
            Failure("ValueError: y", "n2", "", "srun: n2: task 1: Exited with exit code 1", 1),
        ),
        (
            [],
            "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Exited with exit code 1",
            {1: "ValueError: y", 0: "step 1"},
            Failure("ValueError: y", "n2", "", "srun: n1: task 0: Exited with exit code 1", 1),
        ),
        (
            [],
            "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Exited with exit code 1",
            {1: GONE, 0: GONE},
            Failure(reported="srun: n1: task 0: Exited with exit code 1"),
        ),
    ],
)
def test_first_failed_rank_is_blamed_for_the_failure(
    note: list[str], said: str, logs: dict[int, str], expected: Failure
) -> None:
    assert failure_of(note, said, logs) == expected


def test_torchrun_task_ids_are_not_taken_for_ranks() -> None:
    said = "srun: error: n2: task 1: Exited with exit code 1"
    found = failure_of([], said, {3: "ValueError: y", 1: "ValueError: z"}, by_agents=True)
    assert (found.error, found.node, found.rank) == ("ValueError: y", "n2", 3)


def test_requeue_details_record_the_failed_rank_if_it_is_known() -> None:
    for rank, expected in ((3, {"exit": 3, "error": "x", "rank": 3}), (None, {"exit": 3, "error": "x"})):
        decision = by_fault(Ended(3, 5), CRASH, Failure("x", rank=rank), History(), ENTRY, lambda: False)
        assert isinstance(decision, Requeue) and decision.details == expected


def test_same_error_on_another_node_counts_as_repeated_despite_different_addresses() -> None:
    failures = [
        Failure(f"RuntimeError: no device at 0x{n}f on n{n}, 10.0.0.{n}:{n}234{n} rank {n}", f"n{n}") for n in (1, 2)
    ]
    first, second = (mistake_of(failure, 5, []) for failure in failures)
    assert first and second and first.what == second.what
    assert is_repeated(second, [first], others=True)
    assert not is_repeated(first, [first], others=True), "another node is left to try"
    assert is_repeated(first, [first], others=False)
    late = second._replace(brief=False)
    assert not is_repeated(late, [first], others=True)
    assert is_repeated(late._replace(step="9"), [first._replace(step="9")], others=True)


@pytest.mark.parametrize(
    ("wanted", "usable", "needed", "always", "must", "expected"),
    [
        (["n1"], ["n1", "n2", "n3"], 2, "", [], "n1"),
        (["n1", "n2"], ["n1", "n2", "n3"], 2, "", [], "n1"),
        (["n1", "n2"], ["n1", "n2"], 2, "m9", [], "m9"),
        (["down1"], ["n1", "n2"], 2, "", [], "down1"),
        (["n1"], ["n1", "n2", "n3"], 2, "n1", [], "n1"),
        (["n1"], ["n1", "n2", "n3"], 2, "", ["n1"], ""),
    ],
)
def test_bad_nodes_are_excluded_while_enough_remain_for_the_job(
    wanted: list[str], usable: list[str], needed: int, always: str, must: list[str], expected: str
) -> None:
    assert avoided(wanted, usable, needed, always, must) == expected


def test_nodes_with_failed_task_launch_are_listed_once() -> None:
    line = "srun: error: Task launch for StepId=7.0 failed on node {}: Communication connection failure\n"
    assert not_launched(line.format("n2") + line.format("n1") + line.format("n2")) == ["n1", "n2"]


@pytest.mark.parametrize(
    ("output", "bad", "failures"),
    [
        ("preflight n1 ok\npreflight n2 ok\n", [], {}),
        ("preflight n1 ok\npreflight n2 failed x\n", ["n2"], {"n2": "x"}),
        ("preflight n1 ok\n", ["n2"], {"n2": "left no result"}),
        ("no module\n", [], {"n1": "left no result", "n2": "left no result"}),
        ("srun: error: n2: task 1: Killed\n", ["n2"], {"n2": "its task has died: Killed"}),
        ("preflight n1 ok\npreflight n2 ok\npreflight - failed y\n", [], {"-": "y"}),
    ],
)
def test_preflight_marks_failed_or_silent_nodes_bad_unless_all_are_silent(
    output: str, bad: list[str], failures: dict[str, str]
) -> None:
    dead = [node for node in first_dead(output).split(",") if node]
    result = result_of(output, ["n1", "n2"], dead)
    assert (result.bad, result.failures) == (bad, failures)


def test_ending_job_is_left_to_slurm_with_its_exit_code() -> None:
    assert by_slurm(Ended(9, 5), slurm.ENDING, History(), ENTRY) == (Leave(9),)


def test_reports_of_tasks_killed_by_the_batch_program_are_left_out() -> None:
    killed = "srun: error: n2: tasks 1-2: Killed"
    ended = "srun: error: n1: task 0: Exited with exit code 1\nsrun: forcing job termination\n"
    again = "clusterdp: the port was taken; once more with 10071.\nsrun: error: n2: task 3: Killed"
    said = without_kills(f"{ended}{killed}\n{again}")
    assert said == ended + again
    logs = {0: "DistNetworkError: EADDRINUSE", 1: "", 2: ""}
    assert failure_of([], f"{ended}{killed}", logs).rank == 1
    assert failure_of([], without_kills(f"{ended}{killed}"), logs).rank is None
