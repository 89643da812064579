"""`clusterdp status`: how a run stands. One squeue, and only if the run's own records know no ending."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any, TextIO

from clusterdp.errors import SlurmError
from clusterdp.operate.attempt_record import AttemptRecord
from clusterdp.operate.event_text import ending, steps
from clusterdp.operate.formatting import Ink, ago, clock, number, shown, span, table
from clusterdp.operate.next_command import advice_lines
from clusterdp.operate.queue import Standing, consult, in_words
from clusterdp.operate.run_history import RunHistory, newest, read_history
from clusterdp.operate.run_state import Verdict
from clusterdp.rundir import RunDir

INK = {
    Verdict.DONE: "green",
    Verdict.RUNNING: "cyan",
    Verdict.WAITING: "yellow",
    Verdict.CANCELLED: "yellow",
}
MANY = 20  # attempts; a preemptible queue can make hundreds


def show_status(run: RunDir, out: TextIO, as_json: bool = False, now: float | None = None) -> None:
    now = time.time() if now is None else now
    history = read_history(run)
    standing = _with_start(history, consult(history), now)
    if as_json:
        json.dump(as_data(history, standing), out, indent=2)
        out.write("\n")
    else:
        out.write("\n".join(as_text(history, standing, now, Ink(out))) + "\n")


def as_text(history: RunHistory, standing: Standing, now: float, ink: Ink) -> list[str]:
    verdict = ink(INK.get(standing.verdict, "red"), standing.verdict.value)
    lines = [f"{ink('bold', history.name)}  {verdict}" + (f" ({standing.why})" if standing.why else "")]
    if history.cancelled and not standing.verdict.over:
        lines[0] += "; cancelled, it is still ending"
    facts = [("run", shown(history.run.path)), *_facts(history, standing, now)]
    lines += [f"{ink('dim', key.ljust(6))} {value}" for key, value in facts]
    if history.attempts:
        head, *rows = attempts_table(history.attempts[-MANY:], standing, now)
        older = len(history.attempts) - MANY
        lines += ["", ink("dim", head), *rows] + ([ink("dim", f"{older} older: --json has them")] if older > 0 else [])
    lines += ["", *advice_lines(history, standing.verdict, ink, but="status")]
    return lines


def attempts_table(attempts: tuple[AttemptRecord, ...], standing: Standing, now: float) -> list[str]:
    rows = [("attempt", "job", "began", "lasted", "steps", "ended")]
    for attempt in attempts:
        last = attempt is newest(attempts)
        until = attempt.ended or (now if last and standing.verdict is Verdict.RUNNING else None)
        rows.append(
            (
                str(attempt.number),
                attempt.name,
                clock(attempt.started, now) if attempt.started else "?",
                span(until - attempt.started) if until and attempt.started else "?",
                f"{attempt.restored or 0}-{attempt.last_step}" if attempt.last_step is not None else "-",
                ending(attempt) or (standing.verdict.value if last else "no ending on record"),
            )
        )
    return table(rows)


def as_data(history: RunHistory, standing: Standing) -> dict[str, Any]:
    """What scripts may rely on: keys are added, never renamed."""
    saved = history.saved
    return {
        "name": history.name,
        "run": str(history.run.path),
        "verdict": standing.verdict.value,
        "why": standing.why,
        "over": standing.verdict.over,
        "job": history.job,
        "jobs": list(history.jobs),
        "state": standing.row.state if standing.row else None,
        "reason": standing.row.reason if standing.row else None,
        "nodes": standing.row.nodes if standing.row else None,
        "submitted": history.submitted,
        "step": history.step,
        "total": history.total,
        "phase": history.phase,
        "saved": {"step": saved[0], "time": saved[1]} if saved else None,
        "steps_lost": history.lost,
        "metrics": history.metrics,
        "measured": history.measured_at,
        "cancelled": history.cancelled,
        "attempts": [asdict(attempt) for attempt in history.attempts],
    }


def _facts(history: RunHistory, standing: Standing, now: float) -> list[tuple[str, str]]:
    facts = []
    if history.job:
        where = standing.row.nodes if standing.row else ""
        facts.append(("job", history.job + (f" on {where}" if where else "")))
    if history.step is not None:
        facts.append(("step", _progress(history, standing)))
    if history.saved:
        step, when = history.saved
        facts.append(("saved", f"step {step}" + (f", {ago(when, now)}" if when else "")))
    if history.metrics:
        heard = f", {ago(history.measured_at, now)}" if history.measured_at else ""
        facts.append(("last", measured(history.metrics) + heard))
    if history.lost:
        facts.append(("lost", f"{steps(history.lost)} had to be trained again"))
    if any(attempt.failed or attempt.cause == "crash" for attempt in history.attempts):
        from clusterdp.operate.failure import find_failure
        from clusterdp.operate.missing_file import left_out

        if said := left_out(history, find_failure(history)):
            facts.append(("file", said))
    return facts


def measured(metrics: dict[str, Any], most: int = 6) -> str:
    """`test_accuracy 0.981  loss 0.0123  lr 0.1`: what people look for stands first; long texts are left to --json."""

    def rank(key: str) -> int:
        return 0 if key.startswith(("test", "val", "eval")) else 1 if key.endswith("loss") else 2

    short = [key for key in sorted(metrics, key=rank) if len(number(metrics[key])) <= 12]
    return "  ".join(f"{key} {number(metrics[key])}" for key in short[:most])


def _progress(history: RunHistory, standing: Standing) -> str:
    step, total, last = history.step or 0, history.total, history.last
    words = f"{step} of {total} ({100 * step // total} %)" if total else str(step)
    words += f", phase {history.phase}" if history.phase else ""
    if total and last and last.rate and step < total and standing.verdict is Verdict.RUNNING:
        words += f", about {span((total - step) / last.rate)} left"
    return words


def _with_start(history: RunHistory, standing: Standing, now: float) -> Standing:
    """squeue says only that a requeued job waits for its time; when that is takes a second question."""
    if standing.row is None or standing.row.reason != "BeginTime" or standing.verdict.over or not history.job:
        return standing
    from clusterdp.slurm import commands

    try:
        start = time.mktime(time.strptime(commands.show_job(history.job)["StartTime"], "%Y-%m-%dT%H:%M:%S"))
    except (SlurmError, KeyError, ValueError):
        return standing
    return Standing(standing.verdict, in_words("BeginTime", start, now), standing.row)
