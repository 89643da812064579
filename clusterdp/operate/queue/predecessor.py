"""The runs that a run follows (`after:`), as their records show them, and the runs that follow a run.

At its submit, a follower gets Slurm's own dependency (dependency.py), and the run before it gets a record of the
follower in its `events/`. Slurm does not decide alone: the batch program of the follower reads the records again before
its first attempt (batch/decide/predecessors.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from clusterdp.batch.files.causes import NOT_BEGUN
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.rundir import RunDir, SweepDir, is_sweep

DEEPEST = 20
KINDS = {"done": "afterok", "any": "afterany", "started": "after", "each": "aftercorr"}


def is_there(state: str, history: RunHistory, now: RunState) -> bool:
    """Returns whether a run in the state `now` has reached what its follower waits for."""
    if state == "started":
        return any(attempt.cause not in ("overtaken", *NOT_BEGUN) for attempt in history.attempts)
    return now is RunState.DONE or (state == "any" and now.over)


def followers(run: RunDir) -> list[RunDir]:
    """Returns the runs that follow this one, and those that follow them, the last ones first."""
    found: dict[Path, None] = {}

    def add(path: Path) -> None:
        events = read_history(RunDir(path), all_metrics=False).events
        for by in (str(event.get("by")) for event in events if event.get("event") == "followed"):
            if os.path.isabs(by) and os.path.isdir(by) and Path(by) not in found:
                add(Path(by))
                found[Path(by)] = None

    add(run.path)
    return [RunDir(path) for path in found]


def runs_before(history: RunHistory) -> list[tuple[str, Path]]:
    """Returns (state, folder) of the runs that the run follows by the record of its last submit. `each` stands for the
    run's own element."""
    told = next((e.get("after") for e in reversed(history.events) if e.get("event") == "submitted" and e.get("dir")), 0)
    pairs = [each for each in told if isinstance(each, list) and len(each) == 2] if isinstance(told, list) else []
    return [
        (state, Path(run, history.run.path.name) if state == "each" else Path(run))
        for state, run in pairs
        if state in KINDS and isinstance(run, str) and os.path.isabs(run)
    ]


def waits_for(history: RunHistory) -> str:
    """Returns the runs that are not there yet, by their records: `after runs/first (running)`."""
    return " and ".join(words for words, _ in _not_there(history, DEEPEST))


def never_there(history: RunHistory, depth: int = DEEPEST) -> str:
    """Returns the run that can no longer get there, by the records; empty if none is known. `depth`: runs that are
    looked at one behind the other."""
    return next((words for words, is_over in _not_there(history, depth) if is_over), "")


def _not_there(history: RunHistory, depth: int) -> Iterator[tuple[str, bool]]:
    """Yields for each run that is not there: how it is, and whether it is over."""
    for state, path in runs_before(history) if depth else ():
        if not path.is_dir():
            if state != "any":
                yield f"after {shown_path(path)} (gone)", True
            continue
        sweep = SweepDir(path)
        runs = [sweep.element(number) for number in sweep.numbers()] if is_sweep(path) else [RunDir(path)]
        found = [(each, _now(each, depth)) for each in (read_history(run, all_metrics=False) for run in runs)]
        left = [now for each, now in found if not is_there(state, each, now)]
        if left:
            first = min(left, key=lambda now: not now.over)
            yield f"after {shown_path(path)} ({first.value})", first.over


def _now(history: RunHistory, depth: int) -> RunState:
    """Returns the state by the records. A follower that Slurm has ended has none of its end."""
    waits = history.state is RunState.WAITING and not history.attempts
    return RunState.GAVE_UP if waits and never_there(history, depth - 1) else history.state
