"""`clusterdp why`: why a run waits, failed, or is over, printed or as JSON."""

from __future__ import annotations

import json
import time
from typing import Any, TextIO

from clusterdp.operate.output.formatting import Colour, shown_path
from clusterdp.operate.output.terminal import ENDLESS, filled, width_of
from clusterdp.operate.queue.pending_reasons import explain
from clusterdp.operate.queue.run_status import WAITS, current_status
from clusterdp.operate.record.next_command import next_command_lines
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.why import failure_words
from clusterdp.operate.why.explanation import Explanation, explanation
from clusterdp.operate.why.first_failure import Failure
from clusterdp.rundir import RunDir


def show_why(run: RunDir, out: TextIO, as_json: bool = False, now: float | None = None) -> None:
    now = time.time() if now is None else now
    history = read_history(run)
    found = explanation(history, current_status(history), now)
    if as_json:
        json.dump(as_data(found), out, indent=2)
        out.write("\n")
        return
    out.write("\n".join(as_text(found, Colour(out), width_of(out))) + "\n")


def as_text(found: Explanation, colour: Colour, columns: int = ENDLESS) -> list[str]:
    history, state = found.history, found.status.state
    named = colour(state.colour, state.value)
    lines = [f"{colour('bold', history.name)}  {named}"]
    for key, words in [("run", shown_path(history.run.path)), *found.facts]:
        lines += filled(colour("dim", key.ljust(6)) + " ", words, columns)
    if found.failure is not None and state is not RunState.WAITING:
        lines += ["", *_log_lines(found.failure, colour)]
        if (behind := found.failure.behind) and found.failure.evidence != "hang":
            lines.append(f"  that of rank {behind[0]}: {_logs_of(history, behind[0])}")
        elif rank := found.failure.rank:  # rank 0's is the default
            what = "what it printed" if found.failure.evidence == "hang" else "all of it"
            lines.append(f"  {what}: {_logs_of(history, rank)}")
    return [*lines, "", *next_command_lines(history, state, colour, columns, but="why")]


def _logs_of(history: RunHistory, rank: int) -> str:
    return f"clusterdp logs {shown_path(history.run.path)} --rank {rank}"


def _log_lines(failure: Failure, colour: Colour) -> list[str]:
    """The lines of the log that say most."""
    if failure.log is None:
        return ["No log was written."]
    lines = [f"{shown_path(failure.log)}:"]
    nothing = "  (it is empty)" if failure.rank is None else f"  (rank {failure.rank} printed nothing)"
    return lines + ([f"  {colour('dim', '|')} {line}" for line in failure.lines] or [nothing])


def as_data(found: Explanation) -> dict[str, Any]:
    """As in json.schema.json. What is not known is null."""
    history, status, request, failure = found.history, found.status, found.request, found.failure
    reason = status.row.reason if status.row and status.row.state in WAITS else None
    known = explain(reason) if reason else None
    return {
        "name": history.name,
        "run": str(history.run.path),
        "state": status.state.value,
        "why": status.why,
        "job": history.job,
        "facts": [list(fact) for fact in found.facts],
        "pending": None
        if reason is None
        else {
            "reason": reason,
            "words": known.words if known else None,
            "do": known.do.replace("JOB", history.job or "JOB") if known and known.do else None,
            "never_starts": known.stuck if known else None,
            "partition": request.partition if request else None,
            "nodes": request.nodes if request else None,
            "start_estimate_at": request.start if request else None,
            "smaller": found.smaller or None,
        },
        "failure": None
        if failure is None
        else {
            "attempt": failure.attempt or None,
            "rank": failure.rank,
            "node": failure.node or None,
            "step": failure.step,
            "signature": failure.known.name if failure.known else None,
            "cause": failure.known.cause if failure.known else None,
            "remedy": failure_words.remedy(history, failure) or None,
            "error": failure.error or None,
            "evidence": failure.evidence,
            "srun": failure.said or None,
            "log": str(failure.log) if failure.log else None,
            "lines": failure.lines,
            "followed": list(failure.followed),
            "behind": list(failure.behind),
            "unread": failure.unread,
        },
    }
