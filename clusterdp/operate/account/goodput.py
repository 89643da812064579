"""`clusterdp goodput`: prints the account of a run's time."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, TextIO

from clusterdp.batch.files.causes import CAUSES
from clusterdp.operate.account.parts import NAMES
from clusterdp.operate.account.run_account import AttemptAccount, RunAccount, account_so_far, brief, hours, percent
from clusterdp.operate.output.formatting import Colour, shown_path
from clusterdp.operate.output.terminal import width_of
from clusterdp.operate.queue.run_status import RunStatus, current_status
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.rundir import RunDir
from clusterdp.rundir.names import LOCAL
from clusterdp.wording import counted, duration

HEADS = {
    "startup": "start-up",
    "kept": "steps",
    "evaluation": "eval",
}  # printed names of the columns that have another name in Parts
MANY = 20  # the table has at most the last 20 attempts
NOTES = {
    "running": "running: its program does not say what it does; job.loop() does",
    "unseen": "unseen: since the last sign of life of an attempt that was killed, or that has not told yet",
}


def show_goodput(run: RunDir, out: TextIO, as_json: bool = False, now: float | None = None) -> None:
    history = read_history(run)
    status = current_status(history)
    account = account_so_far(history, status, time.time() if now is None else now)
    if as_json:
        json.dump(as_data(history, status, account), out, indent=2)
        out.write("\n")
    else:
        out.write("\n".join(as_text(history, status, account, Colour(out), width_of(out))) + "\n")


def as_data(history: RunHistory, status: RunStatus, account: RunAccount) -> dict[str, Any]:
    """Returns the values that --json prints; json.schema.json describes them. A value that is unknown is None."""
    unit = {"GPU": "GPU-hours", "core": "core-hours"}.get(account.unit)
    known = bool(unit)
    return {
        "name": history.name,
        "run": str(history.run.path),
        "state": status.state.value,
        "goodput": account.goodput,
        "unit": unit,
        "hours": account.hours if known else None,
        "hours_lost": account.lost_hours if known else None,
        "queue_s": account.queue_s,
        "allocated_s": account.total.allocated,
        "parts_s": account.total._asdict(),
        "causes": [
            {
                "cause": each.cause or None,
                "attempts": each.attempts,
                "hours": each.hours if known else None,
                "hours_lost": each.lost_hours if known else None,
            }
            for each in account.by_cause
        ],
        "attempts": [_attempt_data(attempt) for attempt in account.attempts],
    }


def _attempt_data(attempt: AttemptAccount) -> dict[str, Any]:
    place = attempt.place
    return {
        "name": attempt.name,
        "number": attempt.number,
        "cause": attempt.cause or None,
        "nodes": attempt.nodes,
        "cores": place.cpus,
        "gpus": place.gpus,
        "started_at": place.begin or None,
        "ended_at": None if place.runs else place.end or None,
        "end_on_record": place.on_record and not place.runs,
        "queue_s": attempt.queue_s,
        "allocated_s": place.seconds,
        "parts_s": attempt.parts._asdict(),
        "steps": attempt.steps,
        "steps_lost": attempt.steps_lost,
        "done_again_s": attempt.again_s,
    }


def as_text(history: RunHistory, status: RunStatus, account: RunAccount, colour: Colour, columns: int) -> list[str]:
    state = colour(status.state.colour, status.state.value)
    lines = [f"{colour('bold', history.name)}  {state}"]
    facts = [("run", shown_path(history.run.path)), *_facts(account)]
    lines += [f"{colour('dim', key.ljust(9))}  {value}" for key, value in facts]
    if not account.total.allocated:
        nothing = f"{history.unread}." if history.unread else "Nothing is on record yet of time that was allocated."
        return [*lines, "", nothing]
    head, *rows = _attempts_table(account, columns)
    lines += ["", colour("dim", head), *rows]
    if len(_shown(account)) > MANY:
        lines.append(colour("dim", f"{len(_shown(account)) - MANY} older: --json has them"))
    if account.unit:
        head, *rows = _causes_table(account)
        lines += ["", colour("dim", head), *rows]
    return [*lines, *_notes(account, colour)]


def _facts(account: RunAccount) -> list[tuple[str, str]]:
    total, goodput = account.total, account.goodput
    facts = []
    if goodput is not None:
        steps = sum(attempt.steps - attempt.steps_lost for attempt in account.attempts)
        facts.append(("goodput", f"{percent(goodput)} of the allocated time became steps, {steps} of them"))
    elif total.allocated:
        facts.append(("goodput", "not known: its program does not say which time became steps"))
    if total.allocated:
        words = f"{duration(total.allocated)} in {counted(len(_shown(account)), 'attempt')}"
        if account.unit:
            words += f", {hours(account.hours)} {account.unit}-hours"
        facts.append(("allocated", words))
    if any(attempt.steps_lost for attempt in account.attempts):
        lost = sum(attempt.steps_lost for attempt in account.attempts)
        facts.append(("lost", f"{counted(lost, 'step')}, which took {duration(total.lost)}"))
    if any(attempt.queue_s is not None for attempt in account.attempts):
        facts.append(("queue", f"{duration(account.queue_s)} waited, which is not allocated time"))
    return facts


def _shown(account: RunAccount) -> list[AttemptAccount]:
    """Returns the attempts, but not those that ended at once because the run was already over."""
    return [attempt for attempt in account.attempts if attempt.parts.allocated >= 0.05]


def _attempts_table(account: RunAccount, columns: int) -> list[str]:
    """Returns the table's lines, at most `columns` characters wide if possible: nodes are left out, then gaps
    shrink."""
    shown = [name for name in NAMES if round(getattr(account.total, name), 1)]
    head = ("", "queue", *(HEADS.get(name, name) for name in shown), "ended", "nodes")
    rows = [head]
    for attempt in _shown(account)[-MANY:]:
        spent = (brief(getattr(attempt.parts, name)) for name in shown)
        queue = brief(attempt.queue_s) if attempt.queue_s is not None else "?"
        rows.append(
            (
                str(attempt.number),
                queue,
                *spent,
                attempt.cause or ("running" if attempt.place.runs else "?"),
                attempt.nodes,
            )
        )
    total, whole = account.total, account.total.allocated
    rows.append(("all", brief(account.queue_s), *(brief(getattr(total, name)) for name in shown), "", ""))
    rows.append(("%", "", *(f"{100 * getattr(total, name) / whole:.1f}" for name in shown), "", ""))
    full = _aligned(rows)
    if max(map(len, full)) <= columns:
        return full
    short = _aligned([row[:-1] for row in rows])
    return short if max(map(len, short)) <= columns else _aligned([row[:-1] for row in rows], gap=1)


def _aligned(rows: Sequence[Sequence[str]], gap: int = 2) -> list[str]:
    """Aligns the numbers before the column "ended" to the right, and every other column to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = range(1, rows[0].index("ended"))
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if i in numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def _causes_table(account: RunAccount) -> list[str]:
    rows = [("attempts", f"{account.unit}-hours", "lost", "ended")]
    runs = any(attempt.place.runs for attempt in account.attempts)
    for each in account.by_cause:
        words = CAUSES.get(each.cause, each.cause) or ("running still" if runs else "no ending on record")
        rows.append((str(each.attempts), hours(each.hours), hours(each.lost_hours), words))
    return _aligned(rows)


def _notes(account: RunAccount, colour: Colour) -> list[str]:
    notes = [text for name, text in NOTES.items() if round(getattr(account.total, name), 1)]
    if account.lost_hours and account.unit:
        notes.append("lost hours: lost steps, unseen time, and the start-up and restore of the attempt after")
    open_ends = [a for a in account.attempts if a.cause and not a.place.on_record]
    if open_ends:
        numbers = ", ".join(str(a.number) for a in open_ends)
        job = open_ends[-1].name.partition(".")[0]
        asks = "" if job == LOCAL else f": `sacct --duplicates -j {job}` may know it"
        notes.append(f"the end of attempt {numbers} is not on record{asks}")
    return ["", *(colour("dim", note) for note in notes)] if notes else []
