"""RunView: the page's content about one run."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterdp.batch.files.causes import CAUSES
from clusterdp.errors import ClusterdpError
from clusterdp.operate.account.goodput import HEADS
from clusterdp.operate.account.parts import NAMES, Parts
from clusterdp.operate.account.run_account import AttemptAccount, RunAccount, account_of, brief, hours, percent
from clusterdp.operate.checkpoints.place import locate, look, url_of
from clusterdp.operate.compare.curves import RunCurves
from clusterdp.operate.compare.diff import abbreviated, commit_of, source_record
from clusterdp.operate.html_page.bars import Axis, Bar, Mark, meaning_of, seconds_by_kind
from clusterdp.operate.output.formatting import clock, measured, number
from clusterdp.operate.record.ending import ending_text, not_repeated
from clusterdp.operate.record.run_history import RunHistory, newest
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.record.slurmstepd_notice import ended_by_slurm
from clusterdp.plainfile import read_plain, reading
from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import integer, time_of
from clusterdp.wording import counted, duration, size

MANY = 100  # rows of a table: the newest attempts
TONES = {RunState.DONE: "good", RunState.RUNNING: "busy", RunState.WAITING: "busy", RunState.CANCELLED: "dull"}
MOST_BARS = 100  # rows of the timeline: the newest attempts
MOST_RANKS = 32  # ranks in the table of step times: the slowest
MOST_SAVES = 50
MOST_OF_DIFF = 200_000  # bytes that are shown of the uncommitted changes
PACKAGES = ("torch", "numpy", "clusterdp")


@dataclass(frozen=True)
class TableView:
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class RunView:
    """The texts and the tables about one run."""

    name: str
    folder: str
    state: str
    tone: str  # the CSS class for the state's colour
    why: str
    facts: list[tuple[str, str]]  # (key, value)
    timeline: Timeline | None
    metrics: TableView
    account: TableView
    causes: TableView
    ranks: RankTimes | None
    checkpoints: SavedCheckpoints
    config: str
    source: SourceView


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
    facts += not_repeated(history.attempts)
    if any(attempt.queue_s is not None for attempt in account.attempts):
        facts.append(("in the queue", duration(account.queue_s)))
    if history.submitted:
        facts.append(("submitted", time.strftime("%Y-%m-%d %H:%M", time.localtime(history.submitted))))
    if history.measured_at and history.state is RunState.RUNNING:
        facts.append(("last heard", clock(history.measured_at, now)))
    if history.metrics:
        facts.append(("last", measured(history.metrics, most=4)))
    return facts


def _metrics(curves: RunCurves) -> TableView:
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
    return TableView(head, rows)


def _account(account: RunAccount) -> TableView:
    attempts = [attempt for attempt in account.attempts if attempt.parts.allocated >= 0.05]
    if not attempts:
        return TableView([], [])
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
    return TableView(["attempt", "queue", *(HEADS.get(name, name) for name in shown), "ended", "nodes"], rows)


def _causes(account: RunAccount) -> TableView:
    if not account.unit or not any(each.cause for each in account.by_cause):
        return TableView([], [])
    rows = [
        [
            CAUSES.get(each.cause, each.cause) or "not ended",
            str(each.attempts),
            hours(each.hours),
            hours(each.lost_hours),
        ]
        for each in account.by_cause
    ]
    return TableView(["ended", "attempts", f"{account.unit}-hours", "lost"], rows)


def _config(history: RunHistory) -> str:
    try:
        return read_plain(history.run.config, 1 << 20).decode(errors="replace")
    except OSError as error:
        return f"config.yaml cannot be read: {error.strerror}"


@dataclass(frozen=True)
class Timeline:
    rows: list[Bar]
    ticks: list[str]
    meaning: dict[str, str]
    older: int  # number of older attempts that are not drawn


def timeline(history: RunHistory, account: RunAccount) -> Timeline | None:
    """Returns the timeline of the attempts; None if no attempt has a recorded time."""
    placed = [each for each in account.attempts if each.place.begin]
    shown = placed[-MOST_BARS:]
    begin = min((each.place.queued or each.place.begin for each in shown), default=0.0)
    whole = max((each.place.end for each in shown), default=0.0) - begin
    if whole <= 0:
        return None
    endings = {attempt.name: ending_text(attempt) or "no ending on record" for attempt in history.attempts}
    if history.state is RunState.RUNNING and (last := newest(history.attempts)):
        endings[last.name] = "running"
    axis = Axis(begin, whole)
    rows = [_row(history, each, endings[each.name], axis) for each in shown]
    return Timeline(rows, axis.ticks, meaning_of(rows), len(placed) - len(shown))


def _row(history: RunHistory, attempt: AttemptAccount, ended: str, axis: Axis) -> Bar:
    place = attempt.place
    spans = axis.spans(place.queued, place.begin, seconds_by_kind(attempt))
    saves = [(when, step) for when, step in _saves(history, attempt.name) if place.begin <= when <= place.end]
    marks = [Mark("saving", axis.percent(when), f"step {step} saved") for when, step in saves]
    return Bar(attempt.number, attempt.name, spans, marks, ended, duration(place.seconds))


def _saves(history: RunHistory, attempt: str) -> Sequence[tuple[float, int | None]]:
    own = (event for event in history.events if event.get("event") == "saved" and event.get("attempt") == attempt)
    return [(time_of(event), integer(event.get("step"))) for event in own]


@dataclass(frozen=True)
class RankTime:
    """The mean time that a step takes on one rank."""

    rank: int
    node: str
    ms: float  # milliseconds a step: the sum of `parts`
    parts: dict[str, float]  # part of a step -> its milliseconds
    bars: list[tuple[int, float, float, str]]  # (index of part, left, width, title), in percent of the slowest rank


@dataclass(frozen=True)
class RankTimes:
    attempt: int
    steps: int
    parts: list[str]
    ranks: list[RankTime]
    of: int  # number of all ranks
    diagnosis: list[str]


def rank_times(history: RunHistory) -> RankTimes | None:
    """Returns the rank times of the newest attempt that recorded rank times."""
    for attempt in reversed(history.attempts):
        try:
            found = json.loads(read_plain(history.run.attempt(attempt.name).times))
            return _as_told(attempt.number, found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # no file so far, or the file's content is not clusterdp's
    return None


def _as_told(number: int, found: dict[str, Any]) -> RankTimes | None:
    told = [(rank, each, _ms(each["ms"])) for rank, each in enumerate(found["ranks"])]
    parts = list(dict.fromkeys(name for _, _, ms in told for name in ms))
    most = max(sum(ms.values()) for _, _, ms in told)
    if most <= 0:
        raise ValueError("no time was measured")
    slowest = sorted(told, key=lambda each: -sum(each[2].values()))[:MOST_RANKS]
    ranks = []
    for rank, each, ms in sorted(slowest, key=lambda one: one[0]):
        bars, left = [], 0.0
        for i, name in enumerate(parts):
            width = 100 * ms.get(name, 0.0) / most
            bars.append((i, round(left, 3), round(width, 3), f"{name}: {ms.get(name, 0.0):.2f} ms"))
            left += width
        ranks.append(RankTime(rank, str(each.get("node") or ""), sum(ms.values()), ms, bars))
    return RankTimes(number, int(found["steps"]), parts, ranks, len(told), [str(line) for line in found["diagnosis"]])


def _ms(told: dict[str, Any]) -> dict[str, float]:
    return {str(name): max(0.0, float(ms)) for name, ms in told.items() if float(ms) < 1e9}


@dataclass(frozen=True)
class SavedCheckpoint:
    step: int
    when: str
    size: str
    seconds: str
    attempt: str
    there: str  # `yes` if the checkpoint exists, else `pruned`; empty if unknown


@dataclass(frozen=True)
class SavedCheckpoints:
    rows: list[SavedCheckpoint]  # the newest checkpoint first
    older: int
    note: str


def saved_checkpoints(history: RunHistory, now: float) -> SavedCheckpoints:
    kept, note = _there(history)
    rows = []
    for event in reversed([event for event in history.events if event.get("event") == "saved"]):
        step, seconds, nbytes = integer(event.get("step")), event.get("seconds"), integer(event.get("bytes"))
        if step is None:
            continue
        rows.append(
            SavedCheckpoint(
                step=step,
                when=clock(time_of(event), now),
                size=size(nbytes) if nbytes is not None else "",
                seconds=f"{seconds:.2f} s" if isinstance(seconds, int | float) else "",
                attempt=str(event.get("attempt") or ""),
                there="" if kept is None else "yes" if (step, event.get("attempt")) in kept else "pruned",
            )
        )
    return SavedCheckpoints(rows[:MOST_SAVES], max(0, len(rows) - MOST_SAVES), note)


def _there(history: RunHistory) -> tuple[set[tuple[int, str]] | None, str]:
    """Returns pairs (step, attempt) of the existing checkpoints, and a note for the page. None stands for the pairs if
    the checkpoints cannot be listed."""
    try:
        url = url_of(history.run)
        if "://" in url and not url.startswith("file://"):
            return None, f"They are at {url}, which was not asked."
        commits, damaged = look(locate(str(history.run.path)))
    except (ClusterdpError, OSError, ValueError) as error:
        return None, str(error)
    note = f"{len(damaged)} manifests are damaged: `clusterdp checkpoint ls` says how." if damaged else ""
    return {(info.step, info.attempt) for info in commits}, note


@dataclass(frozen=True)
class SourceView:
    """The source code of a run. Empty if an older version of clusterdp, which did not record it, made the run."""

    facts: list[tuple[str, str]]  # (key, value)
    untracked: list[str]
    diff: str
    cut: bool  # True: `diff` has only the first part of the difference


def source_of(run: RunDir) -> SourceView:
    record = source_record(run)
    told = record.get("git")
    git = told if isinstance(told, dict) else {}
    facts = [("commit", abbreviated(commit_of(record)) or "not in a git repository")] if record else []
    if git.get("branch"):
        facts.append(("branch", str(git["branch"])))
    facts += [(key, str(record[key])) for key in ("user", "host", "dir") if record.get(key)]
    if record.get("python_version"):
        facts.append(("python", str(record["python_version"])))
    packages = record.get("packages")
    if isinstance(packages, dict):
        facts += [(name, str(packages[name])) for name in PACKAGES if name in packages]
    untracked = git.get("untracked")
    try:
        with reading(run.source_diff) as file:
            diff = file.read(MOST_OF_DIFF + 1)
    except OSError:
        diff = b""
    names = [str(name) for name in untracked] if isinstance(untracked, list) else []
    return SourceView(facts, names, diff[:MOST_OF_DIFF].decode(errors="replace"), len(diff) > MOST_OF_DIFF)
