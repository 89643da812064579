"""Finds the attempts and the logs that the user asks for."""

from __future__ import annotations

import os
from pathlib import Path

from clusterdp.batch.files.rank_logs import LogFile, log_files, log_of, ranks_in
from clusterdp.errors import RunError
from clusterdp.operate.logs.choice import Choice, in_words, named
from clusterdp.operate.logs.errors import BATCH
from clusterdp.operate.logs.rank_log import RankLog, same_file
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.log_files import batch_log
from clusterdp.operate.record.run_history import RunHistory, check_read
from clusterdp.rundir import RunDir


def attempts_of(history: RunHistory, choice: Choice) -> tuple[AttemptHistory, ...]:
    """Returns the attempts to print; empty before the first attempt. Raises RunError if the attempt that the user named
    does not exist."""
    if choice.attempt == "all":
        return history.attempts
    attempt = attempt_of(history, choice.attempt)
    return (attempt,) if attempt else ()


def attempt_of(history: RunHistory, wanted: str | None, patient: bool = False) -> AttemptHistory | None:
    """Returns the attempt that `word` names; None before the first attempt. With `patient`, the number of the next
    attempt is not an error."""
    if wanted is None:
        return history.last
    for attempt in history.attempts:
        if wanted in (attempt.name, str(attempt.number)):
            return attempt
    if patient and wanted == str(len(history.attempts) + 1):
        return None
    if not history.attempts:
        check_read(history)
    known = ", ".join(f"{a.number} ({a.name})" for a in history.attempts[-10:]) or "none yet"
    raise RunError(f"--attempt {wanted}: no such attempt. There are: {known}.")


def announcement(attempt: AttemptHistory) -> str:
    return f"attempt {attempt.number} ({attempt.name})"


def chosen_logs(history: RunHistory, attempt: AttemptHistory, choice: Choice, seen: set[Path]) -> list[RankLog]:
    """Returns the logs ordered by rank. If errors of all ranks are wanted, the batch script's log comes last. `seen`
    has the log files of earlier attempts; new files are added to `seen`. Raises RunError if the attempt has logs, but
    no log of a wanted rank."""
    folder = history.run.attempt(attempt.name).logs
    there = logs_in(folder, choice)
    chosen = there if choice.ranks is None else of_one_rank(there, choice)
    chosen = chosen or [log for log in there if log.ranks() or (log.file.is_shared and log.problem())]
    has = [rank for log in there for rank in ranks_in(log.file)] if not chosen else []
    if has and choice.ranks is not None and choice.attempt != "all":
        asked = in_words(rank for low, high in choice.ranks.ranges for rank in range(low, min(high, low + 9999) + 1))
        raise RunError(f"--rank {asked}: attempt {attempt.number} has no log of it. It has those of {named(has)}.")
    if choice.errors and choice.ranks is None:
        chosen.append(batch_script_log(history.run, attempt.job))
    logs = []
    for log in chosen:
        if (file := same_file(log.path)) not in seen:
            seen.add(file)
            logs.append(log)
    return logs


def of_one_rank(logs: list[RankLog], choice: Choice) -> list[RankLog]:
    """Returns the log of the only wanted rank; an empty list if several are wanted, or it has none."""
    if choice.labelled or choice.ranks is None:
        return []
    own = log_of([log.file for log in logs], choice.ranks.ranges[0][0])
    return [log for log in logs if log.file == own]


def batch_script_log(run: RunDir, job: str | None) -> RankLog:
    return RankLog(LogFile(BATCH, str(batch_log(run, job)), False))


def logs_in(folder: Path, choice: Choice) -> list[RankLog]:
    """Returns the logs in a folder, ordered by rank or node. Raises RunError if the user has no permission to list the
    folder."""
    if found := log_files(str(folder)):
        return [RankLog(file, choice.wants) for file in found]
    try:
        os.listdir(folder)
    except PermissionError as error:
        raise RunError(f"{shown_path(folder)}: cannot be read: {error.strerror}. Ask its owner.") from None
    except OSError:  # the folder does not exist yet
        pass
    return []
