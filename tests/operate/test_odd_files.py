"""A run folder in which somebody has put what does not belong there: nothing waits for it, and what is not known is
not guessed. test_fuzz.py throws dice at the same; these are the cases that have a name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterdp.cli import main
from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.change.cancel import cancel
from clusterdp.operate.change.resume_check import check_resumable
from clusterdp.operate.find.find_run import find_run
from clusterdp.operate.queue.run_status import current_status
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.status.follow import follow
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir, append_line, read_lines
from clusterdp.rundir.lenient_reads import ends_of, read_ledger, words
from clusterdp.rundir.tail import Tail, last_bytes
from clusterdp.slurm import commands
from clusterdp.slurm.commands import job_states
from clusterdp.submission.resume import plan_again
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue

KINDS: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
}
odd = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@odd
def test_readers_neither_read_nor_block_on_pipes_folders_devices_and_looping_links(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    path = tmp_path / "x"
    make(path)
    assert words(path) == []
    assert ends_of(path) == ({}, ())
    assert list(read_lines(path)) == []
    assert last_bytes(path) == b""
    assert Tail(path).read(final=True) == ""
    for use in (read_plain, lambda path: append_line(path, {})):
        with pytest.raises(OSError, match=r"not a plain file|directory|symbolic links|No such device"):
            use(path)


def test_read_plain_refuses_huge_files(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="it has more than 67,108,864 bytes"):
        read_plain(tmp_path / "x")


def test_resume_with_a_pipe_as_config_is_a_one_line_error(builder: RunBuilder) -> None:
    builder.run.config.unlink()
    os.mkfifo(builder.run.config)
    with pytest.raises(RunError, match=r"config.yaml: cannot be read: not a plain file"):
        plan_again(builder.run, None, ())


@pytest.mark.parametrize("make", [os.mkfifo, KINDS["a link to itself"]])
@pytest.mark.parametrize("name", ["events", "events/7.0-rank0.jsonl", "attempts"])
def test_unreadable_ledger_or_attempts_folder_is_named_in_status(
    name: str, make: Callable[[Path], Any], builder: RunBuilder, queue: FakeQueue
) -> None:
    path = builder.run.path / name
    path.parent.mkdir(exist_ok=True)
    make(path)
    history = read_history(builder.run)
    assert name in history.why and "cannot be read" in history.why
    assert "cannot be read" in current_status(history).why
    assert "cannot be read" in next(follow(builder.run)).status.why


def test_resume_and_cancel_fail_if_the_ledger_is_unreadable(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted()
    (builder.run.events / "8.0-batch.jsonl").mkdir()
    with pytest.raises(SlurmError, match=r"8.0-batch.jsonl: cannot be read.*not known whether job 7 is over"):
        check_resumable(builder.run)
    with pytest.raises(SlurmError, match=r"8.0-batch.jsonl: cannot be read.*no attempt starts any more"):
        cancel(builder.run)
    assert builder.run.cancelled.exists()


@pytest.mark.parametrize("job", ["--me", "7 8", "²", "٣", "", "7\n", None, 7, ["7"], "1_2_3"])
def test_invalid_job_ids_in_the_ledger_are_ignored(job: object, builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().event("submitted", "submit-x", "submit", job=job)
    queue.write("squeue", "echo '7|RUNNING|None|n1'; echo '--me|RUNNING|None|n1'")
    assert read_history(builder.run).jobs == ("7",)
    cancel(builder.run)
    assert [line for line in queue.asked if line.startswith("scancel")] == ["scancel 7"]


@pytest.mark.parametrize("call", [commands.cancel, commands.requeue, commands.show_job, lambda job: job_states([job])])
def test_slurm_commands_refuse_invalid_job_ids(call: Callable[[str], Any], queue: FakeQueue) -> None:
    with pytest.raises(SlurmError, match="'--me': is not a job id"):
        call("--me")
    assert queue.asked == []


def test_find_run_does_not_take_a_superscript_digit_for_a_job_id() -> None:
    with pytest.raises(RunError, match="no such run folder"):
        find_run("²")


@pytest.mark.parametrize("said", ["hello", "7|RUNNING", "7|running|None|n1", "²|RUNNING|None|n1", "\x1b[2J", "8|9|0|1"])
@pytest.mark.parametrize("has_header", [False, True])
def test_malformed_squeue_answer_leaves_the_recorded_state(
    said: str, has_header: bool, builder: RunBuilder, queue: FakeQueue
) -> None:
    builder.submitted().attempt()
    queue.answers(said) if has_header else queue.write("squeue", f"echo '{said}'\n")
    if has_header and "|" not in said:
        assert current_status(read_history(builder.run)).state is RunState.VANISHED, "Slurm's header, and no row"
        return
    status = current_status(read_history(builder.run))
    assert status.state is RunState.RUNNING
    assert status.why.startswith("as last recorded; squeue: answered ")
    with pytest.raises(SlurmError, match="not known whether job 7 is over"):
        check_resumable(builder.run)


def test_pending_rest_of_a_job_array_makes_its_run_waiting(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted()
    queue.answers("7_[2-9%4]|PENDING|JobArrayTaskLimit|")
    assert current_status(read_history(builder.run)).state is RunState.WAITING


@pytest.mark.parametrize("line", ["[" * 100_000, '{"step": 1' + "0" * 5000 + "}", "\xff\xfe", "null", "[1]"])
def test_malformed_ledger_and_metric_lines_are_skipped(line: str, builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt()
    for path in (builder.run.metrics / "7.0.jsonl", builder.run.events / "7.0-batch.jsonl"):
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="latin-1") as file:
            file.write(line + "\n")
    attempt.trained(1, 3)
    assert read_history(builder.run).step == 3
    assert len(list(read_lines(builder.run.events / "7.0-batch.jsonl"))) == 1


def test_malformed_event_values_are_dropped(builder: RunBuilder) -> None:
    builder.submitted().attempt()
    odd = {"event": ["x"], "attempt": {}, "of": 1, "nodes": None, "time": float("nan"), "dir": "\0", "name": "\ud800"}
    with (builder.run.events / "x.jsonl").open("a") as file:
        file.write(json.dumps(odd) + "\n")
    events, unread = read_ledger(builder.run)
    assert [event for event in events if not event.keys() - {"time"}] and not unread
    next(follow(builder.run))


def test_impossibly_large_step_is_ignored(builder: RunBuilder) -> None:
    builder.submitted().attempt().measured(step=10**4000, total=1e300).measured(step=3)
    assert read_history(builder.run).step == 3


def test_logs_all_reports_a_pipe_and_prints_the_readable_log(
    builder: RunBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = builder.submitted().attempt().printed("hello\n", 1)
    os.mkfifo(attempt.files.rank_log(0))
    assert main(["logs", "--all", str(builder.run.path)]) == 0
    out = capsys.readouterr().out
    assert "rank-00000.out: cannot be read: not a plain file" in out and "hello" in out


def test_overlong_run_path_is_a_one_line_error(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "x" * 300]) == 4
    assert capsys.readouterr().err.endswith("x: File name too long. Look at that path.\n")


def test_find_failure_ignores_absurd_rank_numbers_in_logs(builder: RunBuilder, queue: FakeQueue) -> None:
    from clusterdp.operate.why.first_failure import find_failure

    attempt = builder.submitted().attempt().failed(exit=1).printed("ValueError: x\n", 0)
    builder.batch_log(f"srun: error: n1: task {'9' * 5000}: Killed\n")
    attempt.printed(f"clusterdp: another failed: rank {'9' * 5000}: x\n", 1)
    assert find_failure(read_history(RunDir(builder.run.path))).rank == 0


@pytest.mark.parametrize("name", ["events", "attempts"])
def test_logs_plot_goodput_report_and_list_name_an_unreadable_run_subfolder(
    name: str, builder: RunBuilder, queue: FakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `status` does."""
    os.mkfifo(builder.run.path / name)
    for verb, *others in (["logs"], ["logs", "--attempt", "1"], ["plot"], ["goodput"]):
        main([verb, "runs/digits", *others])
        out, err = capsys.readouterr()
        assert f"{name}/: cannot be read: " in out + err, verb
    assert main(["report", "runs/digits", "-o", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert f"{name}/: cannot be read" in page and ">attempts<" not in page
    assert main(["list"]) == 0
    assert f"clusterdp: runs/digits/{name}/: cannot be read" in capsys.readouterr().err
