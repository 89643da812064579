"""The rank that failed first is the one to read; the others only report that it is gone."""

from __future__ import annotations

import os

import pytest

from clusterdp.batch.files import rank_logs
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.why import match
from clusterdp.operate.why.failure_words import facts
from clusterdp.operate.why.first_failure import find_failure
from tests.operate.builder import AttemptBuilder, RunBuilder

ECHO = "Traceback (most recent call last):\nRuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer\n"
CAUSE = "Traceback (most recent call last):\n  File x\nValueError: the loss is nan\n"


def crashed(builder: RunBuilder, logs: dict[int, str]) -> AttemptBuilder:
    attempt = builder.submitted().attempt()
    for when, (rank, text) in enumerate(logs.items()):
        attempt.printed(text, rank)
        os.utime(attempt.files.rank_log(rank), (when, when))
    return attempt.failed(exit=1)


def test_earlier_lost_connection_is_not_the_first_failure(builder: RunBuilder) -> None:
    crashed(builder, {0: ECHO, 1: ECHO, 2: "step 1\n" + CAUSE, 3: "fine\n"})
    found = find_failure(read_history(builder.run))
    assert found.rank == 2
    assert found.lines[-1] == "ValueError: the loss is nan"


@pytest.mark.parametrize(
    "words",
    [
        ECHO + "clusterdp: this follows from another rank's failure: rank 2: ClusterdpError: loader: ...\n",
        "step 1\nclusterdp: ending rank 0, because another failed: rank 2: ClusterdpError: loader: ...\n",
    ],
)
def test_rank_named_by_its_peers_is_blamed_with_its_last_line(builder: RunBuilder, words: str) -> None:
    crashed(builder, {0: words, 1: ECHO, 2: "step 1\nclusterdp: loader: a worker was killed\n"})
    builder.batch_log("srun: error: n2: task 2: Exited with exit code 1\nsrun: error: n1: task 0: Killed\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.lines[-1]) == (2, "clusterdp: loader: a worker was killed")


def test_named_rank_with_only_a_lost_connection_is_not_blamed(builder: RunBuilder) -> None:
    """Rank 1 died without a word; rank 0 noticed first, and told the others."""
    named = "clusterdp: ending rank 3, because another failed: rank 0: RuntimeError: Connection closed by peer\n"
    crashed(builder, {0: ECHO, 3: named, 2: CAUSE})
    assert find_failure(read_history(builder.run)).rank == 2


def test_truncated_traceback_is_not_the_first_failure(builder: RunBuilder) -> None:
    crashed(builder, {0: "step 1\nTraceback (most recent call last):\n  File x", 1: CAUSE})
    assert find_failure(read_history(builder.run)).rank == 1


def test_rank_with_the_oldest_log_is_blamed_if_several_have_errors(builder: RunBuilder) -> None:
    crashed(builder, {3: CAUSE, 0: CAUSE, 1: CAUSE})
    assert find_failure(read_history(builder.run)).rank == 3


def test_silent_killed_rank_is_found_by_its_srun_message(builder: RunBuilder) -> None:
    crashed(builder, {0: "step 1\n", 1: "step 1\n", 2: "step 1\nstep 2\n"})
    builder.batch_log("srun: error: n1: task 2: Out Of Memory\nsrun: error: n1: tasks 0-1: Terminated\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.said, found.lines) == (2, "Out Of Memory", ["step 1", "step 2"])


def test_killed_rank_is_blamed_before_a_rank_with_a_lost_connection(builder: RunBuilder) -> None:
    crashed(builder, {0: ECHO, 1: "step 1\n"})
    builder.batch_log("srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Killed\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.node, found.evidence, found.said) == (1, "n2", "srun", "Killed")


def test_rank_recorded_by_the_batch_program_is_blamed(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt()
    for rank in (0, 1):
        attempt.printed(CAUSE, rank)
    attempt.failed(exit=1, rank=1, error="ValueError: the loss is nan")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.evidence, found.error) == (1, "record", "ValueError: the loss is nan")


def test_first_message_of_srun_counts_before_those_of_2000_nodes(builder: RunBuilder) -> None:
    crashed(builder, {0: ECHO, 1: "step 1\n"})
    ends = (f"srun: error: n{node}: task {node}: Exited with exit code 1\n" for node in range(2, 2000))
    builder.batch_log("srun: error: n1: task 1: Killed\n" + "".join(ends))
    assert find_failure(read_history(builder.run)).said == "Killed"


def test_error_of_the_torchrun_agent_is_shown_without_rank_logs(builder: RunBuilder) -> None:
    attempt = crashed(builder, {})
    (attempt.files.logs / "node-00001.out").write_text("Traceback (most recent call last):\nno such file: train.py\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.lines[-1]) == (None, "no such file: train.py")


def test_slurm_cancellation_in_a_rank_log_is_not_its_error(builder: RunBuilder) -> None:
    """Slurm 20.11 writes so into the rank's log."""
    crashed(builder, {0: "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-23T08:14:33 ***\n", 1: ""})
    builder.batch_log("srun: error: n2: task 1: Exited with exit code 3\nsrun: error: n1: task 0: Terminated\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.node, found.known and found.known.name) == (1, "n2", "exit-code")


def test_error_far_before_the_end_of_a_log_is_not_blamed(builder: RunBuilder) -> None:
    caught = "ERROR: the event file cannot be flushed, trying again\n" + "".join(f"step {i}\n" for i in range(50))
    crashed(builder, {0: caught, 1: caught})
    builder.batch_log("srun: error: n1: task 1: Killed\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.known and found.known.name) == (1, "killed")


def test_segfault_with_many_thread_stacks_is_found(builder: RunBuilder) -> None:
    stacks = "".join(f"Thread 0x{i:016x} (most recent call first):\n  File x\n\n" for i in range(60))
    crashed(builder, {0: "step 1\n", 1: f"Fatal Python error: Segmentation fault\n\n{stacks}"})
    assert find_failure(read_history(builder.run)).rank == 1


def test_srun_tasks_under_torchrun_are_not_taken_for_ranks(builder: RunBuilder) -> None:
    attempt = crashed(builder, {0: "step 1\n", 1: "step 1\n", 2: "step 1\n", 3: "step 1\n"})
    (attempt.files.logs / "node-00000.out").write_text(
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-23_07:59:46\n  host      : n1\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 20979)  (SIGKILL)\n  error_file: <N/A>\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 20979\n"
    )
    builder.batch_log("srun: error: n1: task 0: Killed\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.known and found.known.name, found.evidence) == (1, "killed", "agent")


def test_failure_without_ranks_shows_the_batch_log(builder: RunBuilder) -> None:
    builder.submitted().batch_log("".join(f"line {i}\n" for i in range(100)))
    found = find_failure(read_history(builder.run))
    assert found.log == builder.run.path / "slurm-7.out"
    assert found.lines == [f"line {i}" for i in range(85, 100)]


def test_fatal_container_line_of_a_rank_is_blamed_before_an_exit_code(builder: RunBuilder) -> None:
    fatal = "FATAL:   could not open image /data/img.sif: no such file"
    crashed(builder, {0: "", 1: f"{fatal}\n"})
    builder.batch_log("srun: error: n1: task 0: Exited with exit code 255\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.error) == (1, fatal)


def test_find_failure_survives_a_run_without_logs(builder: RunBuilder) -> None:
    found = find_failure(read_history(builder.submitted().run))
    assert (found.log, found.lines) == (None, [])


def test_attempt_giving_up_without_ranks_shows_the_failure_of_the_previous_attempt(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").printed(CAUSE, 1).requeued("crash")
    builder.attempt("7.1").failed("gave-up")
    assert find_failure(read_history(builder.run)).rank == 1


def test_attempt_giving_up_after_its_ranks_ran_shows_its_own_failure(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").printed(CAUSE, 1).requeued("asked")
    builder.attempt("7.1").printed(CAUSE, 2).failed("gave-up")
    assert find_failure(read_history(builder.run)).rank == 2


def test_find_failure_reads_only_the_ends_of_thousand_logs(
    builder: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = builder.submitted().attempt()
    for rank in range(1000):
        attempt.printed("noise\n" * 10_000 if rank == 500 else ECHO, rank)
    attempt.printed("noise\n" * 10_000 + CAUSE, 999).failed()
    read = []
    real = rank_logs._read

    def counted(path: str, most: int) -> tuple[bytes, int]:
        read.append(abs(most))
        return real(path, most)

    monkeypatch.setattr(rank_logs, "_read", counted)
    assert find_failure(read_history(builder.run)).rank == 999
    assert len(read) <= 1003
    assert max(read) <= match.LOOK


def test_find_failure_lists_63_follower_ranks_and_counts_unread_logs(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt()
    for rank in range(100):
        attempt.printed(CAUSE if rank == 99 else ECHO, rank)
    attempt.files.error.write_text("n2\n5\nValueError: x\n99\n")
    attempt.failed()
    history = read_history(builder.run)
    found = find_failure(history)
    assert (found.rank, found.followed, found.unread) == (99, tuple(range(63)), 36)
    said = "ranks 0-62 report that another rank is gone; the logs of 36 others were not read"
    assert ("then", said) in facts(history, found)


def test_logs_beyond_64_are_left_unread_beside_a_recorded_rank(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt()
    for rank in range(100):
        attempt.printed("step 1\n" if rank == 99 else ECHO, rank)
    attempt.failed(rank=99, error="srun: n2: task 99: Killed")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.evidence, len(found.followed), found.unread) == (99, "srun", 63, 36)


def test_rank_behind_a_collective_is_found_among_100_ranks(builder: RunBuilder) -> None:
    attempt, timeout = builder.submitted().attempt(), "RuntimeError: Timed out waiting 3000ms for recv operation\n"
    for rank in range(100):
        attempt.printed("step 1\n" if rank == 80 else f"Traceback (most recent call last):\n  File x\n{timeout}", rank)
    attempt.files.error.write_text(f"n1\n5\n{timeout}0\n")
    attempt.failed()
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.behind, found.unread) == (0, (80,), 0)


def test_rank_with_a_segfault_is_blamed_before_errors_of_its_peers(builder: RunBuilder) -> None:
    crashed(builder, {0: "Traceback (most recent call last):\nPeerLost: rank 1\n", 1: "step 1\n"})
    builder.batch_log(
        "srun: error: n1: task 1: Segmentation fault (core dumped)\nsrun: error: n1: task 0: Exited with exit code 1\n"
    )
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.known and found.known.name, found.evidence) == (1, "segfault", "srun")


def test_rank_with_an_error_is_blamed_before_a_silent_exit(builder: RunBuilder) -> None:
    crashed(builder, {0: "step 1\n", 1: CAUSE})
    builder.batch_log(
        "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n1: task 1: Exited with exit code 1\n"
    )
    assert find_failure(read_history(builder.run)).rank == 1


def test_dead_loader_worker_with_an_oom_notice_is_out_of_memory(builder: RunBuilder) -> None:
    died = "Traceback (most recent call last):\nRuntimeError: DataLoader worker (pid(s) 9936) exited unexpectedly\n"
    crashed(builder, {0: ECHO, 1: died})
    builder.batch_log(
        "srun: error: n1: task 1: Exited with exit code 1\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    )
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.known and found.known.name) == (1, "host-out-of-memory")


def test_oom_notice_does_not_replace_a_known_error(builder: RunBuilder) -> None:
    crashed(builder, {0: "Traceback (most recent call last):\nModuleNotFoundError: No module named 'timm'\n"})
    builder.batch_log("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")
    found = find_failure(read_history(builder.run))
    assert found.known
    assert found.known.name == "missing-module"


def test_srun_messages_of_earlier_and_later_attempts_are_ignored(builder: RunBuilder) -> None:
    attempt = crashed(builder, {0: "step 1\n", 1: "step 1\n", 2: "step 1\n"})
    builder.batch_log(
        "srun: error: n1: task 2: Killed\n"
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-31T10:41:09 DUE TO JOB REQUEUE ***\n"
        "srun: error: n1: task 1: Killed\n"
        f"clusterdp: crashed with exit code 137, for the last time: x; see {attempt.files.logs}\n"
        "srun: error: n1: task 0: Killed\n"
    )
    assert find_failure(read_history(builder.run)).rank == 1


def test_rank_of_the_error_note_is_blamed_before_ranks_with_errors(builder: RunBuilder) -> None:
    attempt = crashed(builder, {0: CAUSE, 1: CAUSE, 2: CAUSE})
    attempt.files.error.write_text("n2\n120\nValueError: the loss is nan\n2\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.node, found.step, found.evidence) == (2, "n2", 120, "named")


def test_error_note_with_a_lost_connection_is_ignored(builder: RunBuilder) -> None:
    attempt = crashed(builder, {0: CAUSE, 1: ECHO})
    attempt.files.error.write_text("n1\n120\nRuntimeError: gloo/transport/tcp Connection closed by peer\n1\n")
    assert find_failure(read_history(builder.run)).rank == 0


def test_known_error_of_chained_exceptions_is_named(builder: RunBuilder) -> None:
    chain = (
        "Traceback (most recent call last):\n  File x\nOSError: [Errno 122] Disk quota exceeded: 'm.pt'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File y\nTrainingFailed: at step 7\n"
    )
    crashed(builder, {0: chain})
    found = find_failure(read_history(builder.run))
    assert found.known
    assert (found.known.name, found.lines[0]) == ("quota", "Traceback (most recent call last):")


def test_known_error_caught_long_before_a_traceback_is_ignored(builder: RunBuilder) -> None:
    caught = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n" + "step\n" * 50
    crashed(builder, {0: caught + "Traceback (most recent call last):\n  File x\nKeyError: 'lr'\n"})
    found = find_failure(read_history(builder.run))
    assert (found.error, found.known) == ("KeyError: 'lr'", None)


@pytest.mark.parametrize(
    ("before", "counts"),
    [
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory",
            True,
        ),
        ("../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss: block: [0,0,0] Assertion `t >= 0` failed.", True),
        ("warning: [Errno 2] No such file or directory: 'cache.json'; it is made anew", False),
    ],
)
def test_known_error_line_unlike_a_warning_before_a_traceback_names_the_cause(
    before: str, counts: bool, builder: RunBuilder
) -> None:
    crashed(builder, {0: f"{before}\n{CAUSE.replace('the loss is nan', 'x')}"})
    assert bool(find_failure(read_history(builder.run)).known) is counts


SETUP = "launch.setup: line 2 ended with exit code 1: source /nope/bin/activate"


def test_failed_setup_line_is_the_cause_if_no_rank_started(builder: RunBuilder) -> None:
    builder.batch_log(f"/dev/stdin: line 2: /nope/bin/activate: No such file or directory\nclusterdp: {SETUP}.\n")
    attempt = builder.submitted().attempt()
    attempt.files.error.write_text(f"n2\n\n{SETUP}\n")
    attempt.failed(exit=1)
    history = read_history(builder.run)
    words = dict(facts(history, find_failure(history)))
    assert words["error"] == SETUP
    assert words["cause"].startswith("a line of launch.setup failed")


def test_failed_setup_line_is_shown_beside_the_error_of_the_program(builder: RunBuilder) -> None:
    attempt = crashed(builder, {0: CAUSE})
    attempt.files.setup.write_text("line 1 ended with exit code 3: conda activate mine\n")
    history = read_history(builder.run)
    words = dict(facts(history, find_failure(history)))
    assert words["error"] == "ValueError: the loss is nan"
    assert words["setup"] == "launch.setup: line 1 ended with exit code 3: conda activate mine; it may be why"


@pytest.mark.parametrize("at_the_end", [True, False])
def test_cuda_assertion_is_shown_with_its_traceback(builder: RunBuilder, at_the_end: bool) -> None:
    check = "/pytorch/cuda/Loss.cu:245: nll_loss: block: [0,0,0], thread: [{},0,0] Assertion `t < n_classes` failed.\n"
    says = "CUDA error: device-side assert triggered\n"
    advice = "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable.\n\n"
    traceback = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    loss.backward()\n'
    text = "".join(check.format(thread) for thread in range(32))
    text += f"{traceback}torch.AcceleratorError: {says}{advice}"
    if at_the_end:
        text += f"terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  {says}{advice}"
    crashed(builder, {0: text})
    found = find_failure(read_history(builder.run))
    assert found.known is not None
    assert found.known.name == "device-side-assert"
    assert found.lines[0] == check.format(31).strip()
    assert found.lines[-1] == f"torch.AcceleratorError: {says}".strip()
    assert len(found.lines) == 5


def test_failure_in_a_shared_log_names_its_rank(builder: RunBuilder) -> None:
    texts = {0: ECHO, 1: ECHO, 3: "step 1\n" + CAUSE}
    lines = [
        f"{rank}: {text.splitlines()[at]}" for at in range(4) for rank, text in texts.items() if at < text.count("\n")
    ]
    attempt = builder.submitted().attempt().labelled(*lines).labelled("4: fine", node=1).failed(exit=1)
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.evidence, found.followed) == (3, "log", (0, 1))
    assert found.lines == CAUSE.splitlines()
    assert found.log == attempt.files.logs / "node-00000.log"


def test_srun_message_orders_own_errors_in_shared_logs(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().labelled("0: ValueError: a", "1: ValueError: b")
    attempt.labelled("2: ValueError: c", node=1).failed(exit=1)
    exits = (f"srun: error: n{node}: task {rank}: Exited with exit code 1\n" for node, rank in ((2, 2), (1, 1), (1, 0)))
    builder.batch_log("".join(exits))
    assert find_failure(read_history(builder.run)).rank == 2


def test_rank_killed_before_its_first_line_has_the_log_of_its_node(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().labelled("0: step 1", "2: step 1").labelled("4: step 1", node=1)
    attempt.failed(exit=137)
    builder.batch_log("srun: error: n1: task 3: Killed\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.node, found.said, found.lines) == (3, "n1", "Killed", [])
    assert found.log == attempt.files.logs / "node-00000.log"
