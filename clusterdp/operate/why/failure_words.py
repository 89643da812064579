"""Describes a failure in words: in detail for `clusterdp why`, and in one line for `status` and the end of `watch`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.output.terminal import printable
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.operate.why.first_failure import FirstFailure
from clusterdp.plainfile import read_plain
from clusterdp.wording import ranges

LONGEST = 300  # longest line of an error that is printed, in characters
BY = {
    "named": "",
    "record": "",
    "srun": ", by what srun reports",
    "log": "",
    "agent": ", by what torchrun says",
    "echo": ", whose log ended first; no rank has an error of its own",
}
# The message about a missing file, as Python and the C library's perror() print it
NOT_FOUND = re.compile(r"No such file or directory: '([^']+)'|([^\s:'\"]+)['\"]?: No such file or directory")


def whose(failure: FirstFailure) -> str:
    """Returns whose failure it is, for example `rank 2 on n2` or `the batch script`."""
    if failure.evidence == "setup":
        return f"launch.setup on {failure.node}"
    if failure.rank is None:
        return "torchrun's agent" if failure.evidence == "agent" else "the batch script"
    return f"rank {failure.rank}" + (f" on {failure.node}" if failure.node else "")


def cause_line(failure: FirstFailure) -> str:
    """Returns the cause in one line, for example `the GPU's memory is full (rank 2 on n2)`; empty if the cause is
    unknown."""
    cause = failure.known.cause if failure.known else shortened(failure.error)
    return f"{cause} ({whose(failure)})" if cause else ""


def remedy(history: RunHistory, failure: FirstFailure) -> str:
    """Returns the remedy for a failure; empty if the failure has no known signature."""
    if missed := left_out(history, failure):
        return missed
    return failure.known.remedy.replace("JOB", history.job or "JOB") if failure.known else ""


def exit_words(code: int, failure: FirstFailure | None) -> str:
    """Returns `exit 1`, or `rank 1: exit 3` if `code` is not the code of the rank that failed first, but of ranks that
    srun then ended."""
    own = re.search(r"exit code ([0-9]+)", failure.said) if failure else None
    if failure and own and failure.rank is not None and int(own[1]) != code:
        return f"rank {failure.rank}: exit {own[1]}"
    return f"exit {code}"


def facts(history: RunHistory, failure: FirstFailure) -> list[tuple[str, str]]:
    """Returns the facts about a failure as pairs (key, words), without lines of the log."""
    found = []
    if failure.rank is not None:
        number = next((a.number for a in history.attempts if a.name == failure.attempt), None)
        at = f", step {failure.step}" if failure.step is not None else ""
        at += f", attempt {number}" if number is not None and len(history.attempts) > 1 else ""
        key = "behind" if failure.evidence == "hang" else "first"
        found.append((key, whose(failure) + at + BY.get(failure.evidence, "")))
    if failure.known:
        found.append(("cause", failure.known.cause))
    if failure.error:
        found.append(("error", shortened(failure.error)))
    if failure.behind and failure.evidence != "hang":
        found.append(("behind", f"{ranks_in_words(failure.behind)} did not report it: the others waited for that"))
    if failure.followed:
        ends = "reports" if len(failure.followed) == 1 else "report"
        rest = f"; the logs of {failure.unread} others were not read" if failure.unread else ""
        found.append(("then", f"{ranks_in_words(failure.followed)} {ends} that another rank is gone{rest}"))
    if words := remedy(history, failure):
        found.append(("do", words))
    if flights := history.run.attempt(failure.attempt).flight_records():
        more = f", and {len(flights) - 1} more" if len(flights) > 1 else ""
        found.append(("flight", f"{shown_path(flights[0])}{more}: its last collectives, by torch's flight recorder"))
    if failure.evidence != "setup" and (failed := _failed_setup(history, failure)):
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        found.append(("setup", f"launch.setup: {shortened(failed[0])}{more}; it may be why"))
    return found


def _failed_setup(history: RunHistory, failure: FirstFailure) -> list[str]:
    """Returns the lines of launch.setup that failed before the program's start."""
    try:
        return read_plain(history.run.attempt(failure.attempt).setup, 64 * 1024).decode(errors="replace").splitlines()
    except OSError:
        return []


def shortened(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Returns a list of ranks as text, for example `rank 3` or `ranks 0-2, 5`."""
    runs = ranges(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(runs[:8])}" + (", ..." if len(runs) > 8 else "")


def left_out(history: RunHistory, failure: FirstFailure) -> str | None:
    """Returns the remedy for a file that is missing in the snapshot, in one line; None if the failure has another
    cause."""
    submit_dir = next((str(event["dir"]) for event in history.events if event.get("dir")), "")
    code = history.run.code.absolute()
    if not submit_dir or not code.is_dir():
        return None
    for python, other in NOT_FOUND.findall("\n".join(failure.lines)):
        wanted = Path(os.path.normpath(code / (python or other)))
        if not wanted.is_relative_to(code) or wanted.exists():
            continue
        name = wanted.relative_to(code)
        if Path(submit_dir, name).exists():
            missing = [part for part in (name, *name.parents) if part.name and not (code / part).exists()][-1]
            return (
                f"{name} is in {submit_dir}, but not in the snapshot: does git ignore it? "
                f"Submit a new run with snapshot: {{link: [{missing}]}}"
            )
    return None
