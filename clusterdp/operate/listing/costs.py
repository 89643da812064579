"""`clusterdp goodput --all`: the GPU-hours (core-hours) of all runs, by run, partition, account and cause.

Only run folders are read, and Slurm is not asked. So an attempt without a recorded end, as one that runs, counts until
its last sign of life."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TextIO

from clusterdp.batch.files.causes import CAUSES
from clusterdp.config import read_resolved
from clusterdp.errors import ClusterdpError
from clusterdp.operate.account.run_account import account_of, hours, percent, since
from clusterdp.operate.find.find_run import is_run
from clusterdp.operate.find.since import read_since
from clusterdp.operate.listing.list_runs import find_all
from clusterdp.operate.output.formatting import Colour, shown_path
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.record.slurmstepd_notice import ended_by_slurm
from clusterdp.rundir import RunDir, SweepDir, is_sweep
from clusterdp.rundir.lenient_reads import forget
from clusterdp.wording import counted

MANY = 20  # rows of a table; --csv has all
DEFAULT = "(default)"  # a partition or account that no record names


@dataclass(frozen=True)
class Cost:
    """The allocated hours of a run that ended for one cause, and those of them that are lost (CauseAccount)."""

    run: str
    name: str
    partition: str
    account: str
    cause: str  # empty: it runs, or no end is on record
    unit: str  # GPU or core
    attempts: int
    hours: float
    hours_lost: float


def show_costs(word: str | None, everywhere: bool, as_csv: bool, out: TextIO, err: TextIO) -> None:
    """Prints the costs of the runs of this folder, or of all runs with `everywhere`, as tables or as CSV."""
    begin = read_since(word) if word else 0.0
    found = [cost for run in find_all(everywhere) for cost in _costs_of(Path(run.path), begin, err)]
    if as_csv:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([each.name for each in fields(Cost)])
        writer.writerows([*vars(cost).values()] for cost in found)
        return
    units = [unit for unit in ("GPU", "core") if any(cost.unit == unit for cost in found)]
    blocks = [_as_text([cost for cost in found if cost.unit == unit], word, Colour(out)) for unit in units]
    out.write("\n\n".join(map("\n".join, blocks)) + "\n" if blocks else "No time that was allocated is on record.\n")


def _costs_of(path: Path, begin: float, err: TextIO) -> Iterator[Cost]:
    sweep = SweepDir(path)
    try:
        if not is_run(path):
            return
        runs = [sweep.element(number) for number in sweep.numbers()] if is_sweep(path) else [RunDir(path)]
        for run in runs:
            history = read_history(run, all_metrics=False)
            yield from _costs(history, path, begin)
            forget(run)
    except (OSError, ClusterdpError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        err.write(f"clusterdp: left out: {shown_path(path)}: {said}\n")


def _costs(history: RunHistory, path: Path, begin: float) -> Iterator[Cost]:
    account = since(account_of(history, None, ended_by_slurm(history.run, history.attempts)), begin)
    if not account.unit or not account.total.allocated:
        return
    partition, charged = _charged(history)
    for each in account.by_cause:
        what = (str(path), history.name, partition, charged, each.cause, account.unit)
        yield Cost(*what, each.attempts, each.hours, each.lost_hours)


def _charged(history: RunHistory) -> tuple[str, str]:
    """Returns partition and account of the newest attempt, else those of the config, which may leave them to Slurm."""
    started = next((e for e in reversed(history.events) if e.get("event") == "started"), {})
    found = {key: str(started.get(key) or "") for key in ("partition", "account")}
    if not all(found.values()):
        try:
            resources = read_resolved(history.run.config).get("resources") or {}
        except (OSError, ClusterdpError):
            resources = {}
        found = {key: value or str(resources.get(key) or DEFAULT) for key, value in found.items()}
    return found["partition"], found["account"]


def _as_text(costs: Sequence[Cost], word: str | None, colour: Colour) -> list[str]:
    unit, runs = costs[0].unit, {cost.run for cost in costs}
    whole, lost = sum(cost.hours for cost in costs), sum(cost.hours_lost for cost in costs)
    when = f"since {word}: " if word else ""
    share = f" ({percent(lost / whole)})" if whole else ""
    words = f"{when}{hours(whole)} {unit}-hours in {counted(len(runs), 'run')}, {hours(lost)} lost{share}"
    lines = [colour("bold", words)]
    keys: Mapping[str, Callable[[Cost], str]] = {
        "run": lambda cost: shown_path(Path(cost.run)),
        "partition": lambda cost: cost.partition,
        "account": lambda cost: cost.account,
        "ended": lambda cost: CAUSES.get(cost.cause, cost.cause) or "no ending on record, or running still",
    }
    for head, key in keys.items():
        lines += ["", *_table(head, unit, costs, key, colour)]
    return lines


def _table(head: str, unit: str, costs: Sequence[Cost], key: Callable[[Cost], str], colour: Colour) -> list[str]:
    """Returns a table of the hours by `key`, the largest first."""
    sums: dict[str, tuple[float, float]] = {}
    for cost in costs:
        used, lost = sums.get(key(cost), (0.0, 0.0))
        sums[key(cost)] = used + cost.hours, lost + cost.hours_lost
    ordered = sorted(sums.items(), key=lambda each: each[1], reverse=True)
    rows = [(f"{unit}-hours", "lost", head), *((hours(u), hours(lost), name) for name, (u, lost) in ordered[:MANY])]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    first, *rest = [f"{row[0].rjust(widths[0])}  {row[1].rjust(widths[1])}  {row[2]}" for row in rows]
    more = [colour("dim", f"{len(ordered) - MANY} more: --csv has all")] if len(ordered) > MANY else []
    return [colour("dim", first), *rest, *more]
