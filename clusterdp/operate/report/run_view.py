"""What the page tells of one run."""

from __future__ import annotations

import time
from dataclasses import dataclass

from clusterdp.batch.causes import CAUSES
from clusterdp.operate.account.goodput import HEADS
from clusterdp.operate.account.parts import NAMES, Parts
from clusterdp.operate.account.run_account import RunAccount, account_of
from clusterdp.operate.account.words import brief, hours, percent
from clusterdp.operate.curves import RunCurves
from clusterdp.operate.formatting import clock, number
from clusterdp.operate.report.checkpoints import SavedCheckpoints, saved_checkpoints
from clusterdp.operate.report.rank_times import RankTimes, rank_times
from clusterdp.operate.report.source import Source, source_of
from clusterdp.operate.report.timeline import Timeline, timeline
from clusterdp.operate.run_history import RunHistory
from clusterdp.operate.run_state import RunState
from clusterdp.operate.slurmstepd_notice import ended_by_slurm
from clusterdp.operate.status import measured
from clusterdp.plainfile import read_plain
from clusterdp.wording import counted, duration

MANY = 100  # rows of a table: the newest attempts
TONES = {RunState.DONE: "good", RunState.RUNNING: "busy", RunState.WAITING: "busy", RunState.CANCELLED: "dull"}


@dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class RunView:
    """facts: (what, value). tone: of the state, for its colour."""

    name: str
    folder: str
    state: str
    tone: str
    why: str
    facts: list[tuple[str, str]]
    timeline: Timeline | None
    metrics: Table
    account: Table
    causes: Table
    ranks: RankTimes | None
    checkpoints: SavedCheckpoints
    config: str
    source: Source


def view_of(history: RunHistory, curves: RunCurves, now: float) -> RunView:
    account = account_of(history, None, ended_by_slurm(history.run, history.attempts))
    return RunView(
        name=history.name,
        folder=str(history.run.path),
        state=history.state.value,
        tone=TONES.get(history.state, "bad"),
        why=history.why,
        facts=_facts(history, account, now),
        timeline=timeline(history, account),
        metrics=_metrics(curves),
        account=_account(account),
        causes=_causes(account),
        ranks=rank_times(history),
        checkpoints=saved_checkpoints(history, now),
        config=_config(history),
        source=source_of(history.run),
    )


def _facts(history: RunHistory, account: RunAccount, now: float) -> list[tuple[str, str]]:
    facts, total = [], account.total.allocated
    if history.step is not None:
        done = f"{history.step:,}"
        if history.total:
            done += f" of {history.total:,}"
        facts.append(("steps", done))
    if total:
        kept = account.goodput
        facts.append(("goodput", percent(kept) if kept is not None else "not known"))
        words = duration(total)
        if account.unit:
            words += f", {hours(account.hours)} {account.unit}-hours"
        facts.append(("allocated", words))
    if history.unread:
        facts.append(("not read", history.unread))
    if history.ran or not history.unread:
        facts.append(("attempts", str(len(history.ran))))
    if history.step is not None:
        facts.append(("steps lost", f"{history.lost:,}"))
    if any(attempt.queue_s is not None for attempt in account.attempts):
        facts.append(("in the queue", duration(account.queue_s)))
    if history.submitted:
        facts.append(("submitted", time.strftime("%Y-%m-%d %H:%M", time.localtime(history.submitted))))
    if history.measured_at and history.state is RunState.RUNNING:
        facts.append(("last heard", clock(history.measured_at, now)))
    if history.metrics:
        facts.append(("last", measured(history.metrics, most=4)))
    return facts


def _metrics(curves: RunCurves) -> Table:
    rows = []
    for name, curve in curves.metrics.items():
        line = curve.kept
        row = [name, "-", "-", "-"]
        if len(line):
            least, largest = int(line.values.argmin()), int(line.values.argmax())
            row[1] = number(float(line.values[-1]))
            row[2:] = [f"{number(float(line.values[i]))} at step {line.steps[i]}" for i in (least, largest)]
        odd = curve.not_finite
        rows.append([*row, f"{counted(len(odd), 'time')}, first at step {min(odd)}" if odd else ""])
    head = ["metric", "last", "least", "largest", "NaN or infinite"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return Table(head, rows)


def _account(account: RunAccount) -> Table:
    attempts = [attempt for attempt in account.attempts if attempt.parts.allocated >= 0.05]
    if not attempts:
        return Table([], [])
    shown = [name for name in NAMES if round(getattr(account.total, name), 1)]

    def cells(parts: Parts) -> list[str]:
        return [brief(getattr(parts, name)) for name in shown]

    rows = [
        [
            str(attempt.number),
            brief(attempt.queue_s) if attempt.queue_s is not None else "?",
            *cells(attempt.parts),
            attempt.cause or "-",
            attempt.nodes,
        ]
        for attempt in attempts[-MANY:]
    ]
    whole = account.total.allocated
    rows.append(["all", brief(account.queue_s), *cells(account.total), "", ""])
    rows.append(["%", "", *(f"{100 * getattr(account.total, name) / whole:.1f}" for name in shown), "", ""])
    return Table(["attempt", "queue", *(HEADS.get(name, name) for name in shown), "ended", "nodes"], rows)


def _causes(account: RunAccount) -> Table:
    if not account.unit or not any(each.cause for each in account.by_cause):
        return Table([], [])
    rows = [
        [
            CAUSES.get(each.cause, each.cause) or "not ended",
            str(each.attempts),
            hours(each.hours),
            hours(each.lost_hours),
        ]
        for each in account.by_cause
    ]
    return Table(["ended", "attempts", f"{account.unit}-hours", "lost"], rows)


def _config(history: RunHistory) -> str:
    try:
        return read_plain(history.run.config, 1 << 20).decode(errors="replace")
    except OSError as error:
        return f"config.yaml cannot be read: {error.strerror}"
