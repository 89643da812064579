"""Reads the records of silent nodes, of slow ranks, and of a run without progress."""

from __future__ import annotations

import json
from typing import Any

from clusterdp.batch.files.causes import SILENT
from clusterdp.operate.output.formatting import clock
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.plainfile import read_plain
from clusterdp.rundir.lenient_reads import Record, time_of
from clusterdp.wording import some_of


def hang_of(history: RunHistory, last: AttemptHistory) -> Record | None:
    """Returns the last hang that the attempt reported; None if the attempt has made progress after its last hang."""
    kinds = ("hang", "hang-ended")
    told = [e for e in history.events if e.get("event") in kinds and e.get("attempt") == last.name]
    if not told or told[-1]["event"] == "hang-ended" or (last.measured_at or 0.0) > time_of(told[-1]):
        return None
    return told[-1]


def silent_since(history: RunHistory, last: AttemptHistory) -> dict[str, float]:
    """Returns the nodes that give no sign of life while or when the attempt ends, with the times since when, in seconds
    since 1970."""
    since: dict[str, float] = {}
    for event in history.events:
        if event.get("event") in ("silent", "silent-ended") and event.get("attempt") == last.name:
            for node in str(event.get("nodes")).split(","):
                since.pop(node, None)
                if event["event"] == "silent":
                    since[node] = time_of(event)
    return since


def silent_text(since: dict[str, float], now: float) -> str:
    """Returns text such as `no sign of life from n2 (since 12:03:04): down, ...`."""
    nodes = some_of([f"{node} (since {clock(at, now)})" for node, at in since.items()], 3)
    return f"no sign of life from {nodes}: {SILENT}"


def stragglers_of(history: RunHistory, last: AttemptHistory) -> list[dict[str, Any]]:
    """Returns the slow ranks: their own work takes longer than the median. The times are measured at each save that is
    due by checkpoint.every_s."""
    try:
        found = json.loads(read_plain(history.run.attempt(last.name).times)).get("stragglers", [])
        return [
            {
                "rank": int(each["rank"]),
                "node": str(each["node"]) if each.get("node") else None,
                "more_ms": float(each["more_ms"]),
                "share": float(each["share"]),
                "most_in": str(each["most_in"]),
            }
            for each in found
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []  # no file so far, or the file's content is not clusterdp's


def stragglers_text(found: list[dict[str, Any]]) -> str:
    """Returns text such as `rank 3 on n2 (12.0 ms a step longer than the median, 31 %, most of it in data)`."""
    return some_of([_one(each) for each in found], 3)


def _one(slow: dict[str, Any]) -> str:
    node = f" on {slow['node']}" if slow["node"] else ""
    longer = f"{slow['more_ms']:.1f} ms a step longer than the median, {100 * slow['share']:.0f} %"
    return f"rank {slow['rank']}{node} ({longer}, most of it in {slow['most_in']})"
