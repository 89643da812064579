"""`clusterdp status`: prints the state of a run. squeue is asked once, and only if the records contain no end of the
run."""

from __future__ import annotations

import json
import time
from typing import Any, TextIO

from clusterdp.batch.files.causes import FAULTS
from clusterdp.errors import SlurmError
from clusterdp.operate.account.run_account import account_so_far, goodput_line
from clusterdp.operate.output.formatting import Colour, ago, clock, measured, shown_path
from clusterdp.operate.output.terminal import ENDLESS, filled, width_of
from clusterdp.operate.queue.pending_reasons import reason_text
from clusterdp.operate.queue.run_status import RunStatus, current_status
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.ending import ending_text, not_repeated
from clusterdp.operate.record.next_command import next_command_lines
from clusterdp.operate.record.note import read_note
from clusterdp.operate.record.run_history import RunHistory, newest, read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.record.standstill import hang_of, silent_since, silent_text, stragglers_of, stragglers_text
from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import time_of
from clusterdp.wording import counted, duration, table

STILL_ENDING = "; cancelled, it is still ending"
GIVES_WAY = ("job", "lasted", "began", "steps", "ranks")  # a narrow terminal leaves these columns out, in this order
LONG_ENDING = 28  # characters; a longer ending may take several lines
MANY = 20  # attempts that are shown; a run in a preemptible queue may have hundreds


def show_status(run: RunDir, out: TextIO, as_json: bool = False, now: float | None = None) -> None:
    now = time.time() if now is None else now
    history = read_history(run)
    status = _with_start(history, current_status(history), now)
    if as_json:
        json.dump(as_data(history, status), out, indent=2)
        out.write("\n")
    else:
        out.write("\n".join(as_text(history, status, now, Colour(out), width_of(out))) + "\n")


def as_text(history: RunHistory, status: RunStatus, now: float, colour: Colour, columns: int = ENDLESS) -> list[str]:
    lines = status_lines(history, status, now, colour, columns)
    return [*lines, "", *next_command_lines(history, status.state, colour, columns, but="status")]


def status_lines(history: RunHistory, status: RunStatus, now: float, colour: Colour, columns: int) -> list[str]:
    """Returns the state, facts and attempts of the run as lines to print."""
    state = colour(status.state.colour, status.state.value)
    state += f" ({status.why})" if status.why else ""
    if history.cancelled and not status.state.over:
        again = f"`clusterdp cancel {shown_path(history.run.path)}` again"
        state += f"; marked as cancelled, but Slurm was not told: {again}" if history.untold else STILL_ENDING
    elif history.asked_to_stop and not status.state.over:
        state += "; asked to stop, which it does after the next steps"
    lines = filled(f"{colour('bold', history.name)}  ", state, columns)
    facts = [("run", shown_path(history.run.path)), *_facts(history, status, now)]
    for key, words in facts:
        lines += filled(colour("dim", key.ljust(6)) + " ", words, columns)
    if history.attempts:
        head, *rows = attempts_table(history.attempts[-MANY:], status, now, columns)
        older = len(history.attempts) - MANY
        lines += ["", colour("dim", head), *rows] + (
            [colour("dim", f"{older} older: --json has them")] if older > 0 else []
        )
    return lines


def attempts_table(
    attempts: tuple[AttemptHistory, ...], status: RunStatus, now: float, columns: int = ENDLESS
) -> list[str]:
    """Returns the lines of the table of attempts. On a narrow terminal the endings stay, and other columns are left
    out."""
    rows: list[tuple[str, ...]] = [("attempt", "job", "began", "lasted", "steps", "ranks", "ended")]
    for attempt in attempts:
        last = attempt is newest(attempts)
        until = attempt.ended or (now if last and status.state is RunState.RUNNING else None)
        rows.append(
            (
                str(attempt.number),
                attempt.name,
                clock(attempt.started, now) if attempt.started else "?",
                duration(until - attempt.started) if until and attempt.started else "?",
                f"{attempt.restored or 0}-{attempt.last_step}" if attempt.last_step is not None else "-",
                f"{attempt.ranks[0]} -> {attempt.ranks[1]}" if attempt.ranks else "",
                ending_text(attempt) or (status.state.value if last else "no ending on record"),
            )
        )
    if not any(attempt.ranks for attempt in attempts):
        rows = [(*row[:-2], row[-1]) for row in rows]
    needed = min(LONG_ENDING, max(len(row[-1]) for row in rows))
    for head in GIVES_WAY:
        if head in rows[0] and max(map(len, table([row[:-1] for row in rows]))) + 2 + needed > columns:
            at = rows[0].index(head)
            rows = [row[:at] + row[at + 1 :] for row in rows]
    begins = table([(*row[:-1], "|") for row in rows])
    return [line for begin, row in zip(begins, rows, strict=True) for line in filled(begin[:-1], row[-1], columns)]


def _facts(history: RunHistory, status: RunStatus, now: float) -> list[tuple[str, str]]:
    facts = []
    if note := read_note(history.run):
        facts.append(("note", note))
    if history.job:
        where, last = status.row.nodes if status.row else "", newest(history.attempts)
        where = last.where if where and last is not None and last.most_nodes else where
        facts.append(("job", history.job + (f" on {where}" if where else "")))
    if history.step is not None:
        facts.append(("step", _progress(history, status, now)))
    if history.saved:
        step, when = history.saved
        facts.append(("saved", f"step {step}" + (f", {ago(when, now)}" if when else "")))
    if history.metrics:
        heard = f", {ago(history.measured_at, now)}" if history.measured_at else ""
        facts.append(("last", measured(history.metrics) + heard))
    facts += [("size", _size(each)) for each in history.attempts if each.ranks][-1:]
    if avoided := [node for attempt in history.attempts for node in attempt.avoid]:
        facts.append(("avoids", ", ".join(dict.fromkeys(avoided))))
    last = newest(history.attempts)
    if last is not None and not status.state.over:
        if not last.cause and (silent := silent_since(history, last)):
            facts.append(("silent", silent_text(silent, now)))
        if hang := hang_of(history, last):
            facts.append(("hang", str(hang.get("reason"))))
        if slow := stragglers_of(history, last):
            facts.append(("slow", stragglers_text(slow)))
    facts += not_repeated(history.attempts)
    if history.lost:
        facts.append(("lost", f"{counted(history.lost, 'step')} had to be trained again"))
    if words := goodput_line(account_so_far(history, status, now)):
        facts.append(("time", words))
    if last is not None and (last.failed or last.cause in FAULTS or status.state is RunState.GAVE_UP):
        facts += _why(history)
    return facts


def _size(attempt: AttemptHistory) -> str:
    (was, ranks), (before, samples) = attempt.ranks or (0, 0), attempt.samples
    step = f"; a step had {before} samples, and has {samples}" if before and samples else ""
    step = f"; a step has {samples} samples, as before" if before == samples > 0 else step
    return f"{ranks} ranks since attempt {attempt.number}, {was} before{step}"


def _why(history: RunHistory) -> list[tuple[str, str]]:
    """Returns the cause of the last failure. The modules that find a cause are imported late, because they load
    slowly."""
    from clusterdp.operate.why.failure_words import cause_line, left_out
    from clusterdp.operate.why.first_failure import recorded_failure

    failure = recorded_failure(history)
    if failure is None:
        return []
    facts = [("why", words)] if (words := cause_line(failure)) else []
    return facts + ([("file", said)] if (said := left_out(history, failure)) else [])


def _progress(history: RunHistory, status: RunStatus, now: float) -> str:
    step, total = history.step or 0, history.total
    words = f"{step} of {total} ({100 * step // total} %)" if total else str(step)
    words += f", phase {history.phase}" if history.phase else ""
    if (left := left_s(history, status, now)) is not None:
        words += f", about {duration(left)} left"
    return words


def left_s(history: RunHistory, status: RunStatus, now: float) -> float | None:
    """Returns the remaining time of the training in seconds, estimated from its last speed. Returns None if the time is
    unknown, or if the training should have ended by now and the run does something else."""
    step, total, last = history.step or 0, history.total, history.last
    if total and last and last.rate and step < total and status.state is RunState.RUNNING:
        left = (total - step) / last.rate - max(0.0, now - (history.measured_at or now))
        return left if left > 0 else None
    return None


def _with_start(history: RunHistory, status: RunStatus, now: float) -> RunStatus:
    """Returns the status with the start time of a requeued job: scontrol shows this time, but squeue does not."""
    if status.row is None or status.row.reason != "BeginTime" or status.state.over or not history.job:
        return status
    from clusterdp.slurm import commands

    try:
        start = time.mktime(time.strptime(commands.show_job(history.job)["StartTime"], "%Y-%m-%dT%H:%M:%S"))
    except (SlurmError, KeyError, ValueError):
        return status
    return RunStatus(status.state, reason_text("BeginTime", start, now), status.row)


def as_data(history: RunHistory, status: RunStatus) -> dict[str, Any]:
    """Returns the values that --json prints for a run. json.schema.json has the names, types and units of all keys of
    each verb.

    `state` is the run's state, `slurm_state` the job's state in squeue. Keys of times end in _at (seconds since 1970),
    keys of durations end in _s. A value that is unknown is None."""
    last = newest(history.attempts)
    return {
        **in_brief(history, status),
        "hang": _hang_data(history, last) if last else None,
        "silent": _silent_data(history, last) if last and not last.cause else [],
        "stragglers": stragglers_of(history, last) if last else [],
        "attempts": [_attempt_data(attempt) for attempt in history.attempts],
    }


def in_brief(history: RunHistory, status: RunStatus) -> dict[str, Any]:
    """Returns the part of as_data() that `clusterdp list --json` prints, too."""
    row, (saved_step, saved_at) = status.row, history.saved or (None, None)
    return {
        "name": history.name,
        "run": str(history.run.path),
        "state": status.state.value,
        "why": status.why,
        "over": status.state.over,
        "job": history.job,
        "jobs": list(history.jobs),
        "slurm_state": row.state if row else None,
        "slurm_reason": row.reason if row else None,
        "nodes": row.nodes if row else None,
        "submitted_at": history.submitted,
        "step": history.step,
        "total": history.total,
        "phase": history.phase,
        "saved_step": saved_step,
        "saved_at": saved_at,
        "steps_lost": history.lost,
        "metrics": history.metrics,
        "measured_at": history.measured_at,
        "cancelled": history.cancelled,
        "asked_to_stop": history.asked_to_stop,
        "note": read_note(history.run),
    }


def _hang_data(history: RunHistory, last: AttemptHistory) -> dict[str, Any] | None:
    told = hang_of(history, last)
    keys = ("reason", "ranks", "nodes", "step", "phase")
    return told and {"told_at": time_of(told), **{key: told.get(key) for key in keys}}


def _silent_data(history: RunHistory, last: AttemptHistory) -> list[dict[str, Any]]:
    return [{"node": node, "since_at": at} for node, at in silent_since(history, last).items()]


def _attempt_data(attempt: AttemptHistory) -> dict[str, Any]:
    return {
        "name": attempt.name,
        "number": attempt.number,
        "ran": attempt.ran,
        "cause": attempt.cause or None,
        "why": attempt.why,
        "exit": attempt.exit,
        "outcome": attempt.outcome or None,
        "requeued": attempt.requeued,
        "restarted": attempt.restarted,
        "started_at": attempt.started,
        "ended_at": attempt.ended,
        "heard_at": attempt.heard_at,
        "printed_at": attempt.printed_at,
        "nodes": attempt.nodes,
        "avoids": list(attempt.avoid),
        "first_step": attempt.first_step,
        "last_step": attempt.last_step,
        "restored_step": attempt.restored,
        "resized": attempt.ranks and {"ranks": list(attempt.ranks), "step_samples": list(attempt.samples)},
        "witness": attempt.verdict or None,
        "differs": attempt.differs,
        "saved_step": attempt.saved,
        "saved_at": attempt.saved_at,
        "steps_lost": attempt.lost,
        "steps_per_s": attempt.rate,
        "total": attempt.total,
        "phase": attempt.phase,
        "metrics": attempt.metrics,
        "measured_at": attempt.measured_at,
    }
