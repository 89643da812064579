"""`clusterdp logs`: what the ranks printed, whole or as it comes, across attempts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

from clusterdp.errors import RunError
from clusterdp.operate.attempt_history import AttemptHistory
from clusterdp.operate.follow import Pace
from clusterdp.operate.follow import follow as follow_run
from clusterdp.operate.formatting import shown_path
from clusterdp.operate.log_files import batch_log, rank_logs
from clusterdp.operate.run_history import RunHistory, read_history
from clusterdp.operate.run_state import BROKEN_PIPE, INTERRUPTED
from clusterdp.operate.terminal import for_logs
from clusterdp.operate.why.first_failure import find_failure
from clusterdp.plainfile import open_plain
from clusterdp.rundir import RunDir
from clusterdp.rundir.tail import Tail, last_lines

BATCH_LINES = 30
FINE = frozenset({"", "done", "preempted", "timeout", "requeued"})  # causes that need no word of the batch script


def logs(
    run: RunDir,
    rank: int | None = None,
    every: bool = False,
    attempt: str | None = None,
    follow: bool = False,
    out: TextIO | None = None,
    pace: Pace | None = None,
) -> int:
    """`every`: all ranks, each line with its own; else `rank`, by default 0. `attempt`: a name (`123.1`) or a number
    (`2`), by default the newest. Returns an exit code."""
    out = for_logs(out or sys.stdout)
    wanted = None if every else (rank or 0)
    try:
        if follow:
            _follow(run, out, wanted, attempt, pace or Pace())
        else:
            _print(read_history(run), out, wanted, attempt)
        out.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader is gone. Python would complain once more when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        return BROKEN_PIPE
    return 0


def _print(history: RunHistory, out: TextIO, rank: int | None, wanted: str | None) -> None:
    attempt = _choose(history, wanted)
    there = rank_logs(history.run.attempt(attempt.name).logs) if attempt else []
    chosen = [(number, log) for number, log in there if rank in (None, number)]
    if attempt and there and not chosen:
        ranks = f"ranks {there[0][0]} to {there[-1][0]}"
        raise RunError(f"--rank {rank}: attempt {attempt.number} has no log of it. It has those of {ranks}.")
    width = len(str(there[-1][0])) if there else 0
    for number, log in chosen:
        _copy(log, out, _label(number, width) if rank is None else "")
    if attempt is None or not there or attempt.cause not in FINE:
        _print_batch(history, out, attempt, rank, alone=not there)


def _print_batch(
    history: RunHistory, out: TextIO, attempt: AttemptHistory | None, rank: int | None, alone: bool
) -> None:
    """The end of the batch script's log. It is all there is if no rank began; else it is printed if something
    failed."""
    batch = batch_log(history.run, attempt.job if attempt else history.job)
    if alone and not batch.exists():
        begun = "nothing was printed yet" if attempt else "no attempt has begun"
        raise RunError(f"{shown_path(history.run.path)}: no logs, for {begun}. `-f` waits for them.")
    if not alone and batch.exists():
        out.write(f"==> the batch script: {shown_path(batch)} <==\n")
    out.write("".join(f"{line}\n" for line in last_lines(batch, BATCH_LINES)))
    culprit = find_failure(history).rank if attempt is history.last else None
    if culprit is not None and rank not in (None, culprit):
        out.write(
            f"==> rank {culprit} failed first: clusterdp logs {shown_path(history.run.path)} --rank {culprit} <==\n"
        )


def _follow(run: RunDir, out: TextIO, rank: int | None, wanted: str | None, pace: Pace) -> None:
    """Print what comes until the run is over, or the wanted attempt. A new attempt is announced by one line."""
    files: dict[Path, Tail] = {}  # all ever seen: with submitit the attempts of a job share one, by symbolic links
    tails: dict[int, Tail] = {}
    begun: list[str] = []
    for update in follow_run(run, pace):
        for attempt in _to_show(update.history, wanted, begun):
            if attempt.name not in begun:
                _drain(tails, out, rank is None, final=True)
                tails.clear()
                if begun:
                    out.write(f"==> attempt {attempt.number} ({attempt.name}) <==\n")
                begun.append(attempt.name)
            for number, log in rank_logs(run.attempt(attempt.name).logs):
                if rank in (None, number):
                    tails[number] = files.setdefault(Path(os.path.realpath(log)), Tail(log))
            over = update.over or (wanted is not None and bool(attempt.cause))
            _drain(tails, out, rank is None, final=over)
            out.flush()
            if over and wanted is not None:
                return
    last = update.history.last
    if not files or (last and last.cause not in FINE):
        _print_batch(update.history, out, last, rank, alone=not files)


def _to_show(history: RunHistory, wanted: str | None, begun: list[str]) -> tuple[AttemptHistory, ...]:
    """The one that was shown last and what came after it; at first the newest."""
    if wanted is not None:
        attempt = _choose(history, wanted, patient=True)
        return (attempt,) if attempt else ()
    at = next((i for i, attempt in enumerate(history.attempts) if begun and attempt.name == begun[-1]), -1)
    return history.attempts[at:]


def _drain(tails: dict[int, Tail], out: TextIO, labelled: bool, final: bool) -> None:
    width = len(str(max(tails, default=0)))
    for rank, tail in tails.items():
        _copy_tail(tail, out, _label(rank, width) if labelled else "", final)


def _copy(log: Path, out: TextIO, label: str) -> None:
    try:
        os.close(open_plain(log))
    except OSError as error:
        out.write(f"==> {shown_path(log)}: cannot be read: {error.strerror} <==\n")
    _copy_tail(Tail(log), out, label, final=True)


def _copy_tail(tail: Tail, out: TextIO, label: str, final: bool) -> None:
    while text := tail.read(final):
        lines = text.removesuffix("\n").split("\n")
        out.write("".join(f"{label}{line}\n" for line in lines) if label else text)


def _label(rank: int, width: int) -> str:
    return f"[{rank:>{width}}] "  # flush right, as `srun --label` has it


def _choose(history: RunHistory, wanted: str | None, patient: bool = False) -> AttemptHistory | None:
    """The attempt to show; None while there is none. RunError if there is no such attempt."""
    if wanted is None:
        return history.last
    for attempt in history.attempts:
        if wanted in (attempt.name, str(attempt.number)):
            return attempt
    if patient and wanted == str(len(history.attempts) + 1):
        return None
    known = ", ".join(f"{a.number} ({a.name})" for a in history.attempts[-10:]) or "none yet"
    raise RunError(f"--attempt {wanted}: no such attempt. There are: {known}.")
