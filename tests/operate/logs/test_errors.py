from __future__ import annotations

import io
from pathlib import Path

import pytest

from clusterdp.batch.files.rank_logs import LogFile
from clusterdp.operate.logs.errors import BATCH, ErrorFinder, ErrorReport
from clusterdp.operate.logs.printer import Printer
from clusterdp.operate.logs.rank_log import RankLog

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in main
    step()

ValueError: nan
"""


def found(folder: Path, *logs: str, last: int | None = None, batch: str = "") -> str:
    report, out = ErrorReport(), io.StringIO()
    for rank, text in enumerate([*logs, batch] if batch else logs):
        path = folder / f"{rank}.out"
        path.write_text(text)
        log = LogFile(BATCH if batch and rank == len(logs) else rank, str(path), False)
        report.add(ErrorFinder(RankLog(log)).errors(final=True))
    printer = Printer(out, labelled=True)
    report.print(printer, last)
    printer.flush()
    return out.getvalue()


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-23 08:00:00,123 ERROR train: no such file",
        "CRITICAL:root:x",
        "[FATAL] x",
        "RuntimeError: CUDA error: device-side assert triggered",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "n1:123:456 [3] NCCL WARN Call to connect returned Connection refused",
        "[rank1]:[E1123 08:00:00.123456789 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught a timeout",
        "ncclSystemError: System call failed",
        "srun: error: n1: task 3: Killed",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0",
        "terminate called after throwing an instance of 'c10::Error'",
        "clusterdp: another failed: rank 3: ValueError: nan",
    ],
)
def test_logs_errors_finds_error_lines(line: str, tmp_path: Path) -> None:
    assert found(tmp_path, f"step 1\n{line}\nstep 2\n") == f"rank 0: {line}\n"


@pytest.mark.parametrize(
    "line",
    [
        "step 1  error 0.3",
        "NCCL INFO Bootstrap: Using eth0",
        "NCCL_DEBUG=ERROR",
        "log level=ERROR",
        "0 errors",
        "INFO: TERRORS",
        "clusterdp: batch: 8 a rank",
        "the CUDA toolkit has 12.4",
    ],
)
def test_logs_errors_ignores_harmless_lines(line: str, tmp_path: Path) -> None:
    assert found(tmp_path, f"{line}\n") == ""


def test_logs_errors_prints_chained_tracebacks_whole(tmp_path: Path) -> None:
    whole = f"12:00:00 ERROR step failed\n{TRACEBACK}\nDuring handling of the above exception, another\n\n{TRACEBACK}"
    assert found(tmp_path, f"a\n{whole}after\n") == f"rank 0: {whole}\n"
    second = TRACEBACK.replace("nan", "inf")
    assert found(tmp_path, TRACEBACK + second) == f"rank 0: {TRACEBACK}\nrank 0: {second}\n"


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File x
  | ExceptionGroup: two (1 sub)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    | ValueError: 1
    +------------------------------------
"""


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"[rank0]: {line}".rstrip() + "\n" for line in TRACEBACK.splitlines()),
        "Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent call first):\n  File x, line 1 in f\n",
        GROUP,
    ],
)
def test_logs_errors_prints_rank_prefixed_fatal_and_group_tracebacks_whole(text: str, tmp_path: Path) -> None:
    assert found(tmp_path, f"a\n{text}step 2\n") == f"rank 0: {text}\n"


def test_logs_errors_groups_the_same_error_of_several_ranks(tmp_path: Path) -> None:
    def log(rank: int) -> str:
        return f"[rank{rank}]: RuntimeError: CUDA error on cuda:{rank % 8}, rank {rank}, at 0x7f{rank:04x}\n"

    logs = [log(rank) for rank in range(12)]
    logs[5] = "fine\n"
    logs[7] += "ERROR other\nERROR other\n"
    assert found(tmp_path, *logs) == f"ranks 0-4,6-11: {logs[0]}rank 7 (2 times): ERROR other\n"


def test_logs_errors_separates_errors_with_different_numbers(tmp_path: Path) -> None:
    assert found(tmp_path, "ERROR index 7\n", "ERROR index 8\n") == "rank 0: ERROR index 7\nrank 1: ERROR index 8\n"


def test_logs_errors_prints_errors_by_rank(tmp_path: Path) -> None:
    long = "x" * 300_000 + "\n" + TRACEBACK
    assert found(tmp_path, long, "ERROR b\n") == f"rank 0: {TRACEBACK}\nrank 1: ERROR b\n"
    assert found(tmp_path, long, "ERROR b\n", last=1) == "==> 1 earlier; -n all shows them <==\nrank 1: ERROR b\n"


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-23T08:00:0{} ERROR x",
        "2026-11-23 08:00:0{},123 ERROR x",
        "11/23/2026 08:00:0{} - ERROR - x",
        "[rank0]:[E1123 08:00:0{}.000000000 ProcessGroupNCCL.cpp:632] x",
        "2026-11-23T08:00:0{}Z ERROR x",
        "[08:00:0{}] ERROR x",
    ],
)
def test_logs_errors_groups_the_same_error_at_other_times(line: str, tmp_path: Path) -> None:
    assert found(tmp_path, line.format(1) + "\n", line.format(2) + "\n") == f"ranks 0-1: {line.format(1)}\n"


def test_logs_errors_labels_errors_of_the_batch_script(tmp_path: Path) -> None:
    line = "srun: error: n1: task 0: Killed\n"
    assert found(tmp_path, "fine\n", batch=line) == f"batch script: {line}"


def test_logs_errors_shortens_huge_lines_and_removes_progress_bars(tmp_path: Path) -> None:
    text = " 1%\r 2%\r\0\0ERROR x\n" + "ERROR " + "x" * 1_000_000 + "\n" + "\xff" * 10 + "\n"
    lines = found(tmp_path, text).splitlines()
    assert lines[0] == "rank 0: ERROR x"
    assert lines[1].endswith("x... (998,006 more characters)") and len(lines) == 2


def test_error_finder_returns_a_traceback_written_in_pieces_whole(tmp_path: Path) -> None:
    path = tmp_path / "0.out"
    finder = ErrorFinder(RankLog(LogFile(0, str(path), False)))
    path.write_text("")
    seen = []
    for end in (20, 50, 60, 90, len(TRACEBACK)):
        path.write_text(TRACEBACK[:end])
        seen += list(finder.errors(final=False))
    assert seen == []
    (error,) = finder.errors(final=False)
    assert "\n".join([*error.lines, ""]) == TRACEBACK
