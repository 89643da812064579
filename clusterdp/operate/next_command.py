"""What to type next, by how a run stands."""

from __future__ import annotations

from clusterdp.operate.formatting import Ink, shown
from clusterdp.operate.run_history import RunHistory
from clusterdp.operate.run_state import Verdict


def next_commands(history: RunHistory, verdict: Verdict) -> list[tuple[str, str]]:
    """(command, what it is for), the likeliest first."""
    run = shown(history.run.path)
    logs = (f"clusterdp logs {run}", "what rank 0 printed")
    status = (f"clusterdp status {run}", "each attempt and why it ended")
    where = f"from step {history.saved[0]}" if history.saved else "with it"
    resume = (f"clusterdp resume {run}", f"goes on {where}")
    trains_on = [(f"clusterdp resume {run} params.epochs=..", "trains on")] if history.entry and history.step else []
    return {
        Verdict.WAITING: [(f"clusterdp watch {run}", "follows it to its end"), (f"clusterdp cancel {run}", "")],
        Verdict.RUNNING: [
            (f"clusterdp watch {run}", "follows it to its end"),
            (f"clusterdp logs {run} -f", "what rank 0 prints"),
        ],
        Verdict.DONE: [logs, status, *trains_on],
        Verdict.FAILED: [logs, status, resume],
        Verdict.GAVE_UP: [logs, status, resume],
        Verdict.STOPPED: [logs, status, resume],
        Verdict.VANISHED: [logs, (f"sacct -j {history.job}", "if your site keeps accounts, how it ended"), resume],
        Verdict.CANCELLED: [status, resume],
    }[verdict]


def advice_lines(history: RunHistory, verdict: Verdict, ink: Ink, but: str = "") -> list[str]:
    """`but`: the verb that the reader has just used."""
    rows = [row for row in next_commands(history, verdict) if row[0].split()[1] != but]
    width = max(len(command) for command, _ in rows)
    if width > 56:  # a long path would push the words over the edge
        return [f"  {command}" for command, _ in rows]
    return [f"  {command.ljust(width)}  {ink('dim', what)}".rstrip() for command, what in rows]
