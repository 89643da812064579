"""Steps that a run has done twice, because it was interrupted."""

from __future__ import annotations

import itertools

from clusterdp.operate.run_history import RunHistory
from clusterdp.rehearse.printed_steps import read_steps
from clusterdp.rehearse.run_spec import Facts
from clusterdp.rundir import RunDir


def steps_lost(history: RunHistory, run: RunDir, facts: Facts) -> int | None:
    """By its records, or by the steps that rank 0 has printed; None if the program does not tell its steps."""
    if facts.ours:
        return history.lost
    if facts.steps is None:
        return None
    spans = [(steps[0], max(steps)) for _, steps in printed(history, run, facts)]
    return sum(max(0, last + 1 - first) for (_, last), (first, _) in itertools.pairwise(spans)) if spans else None


def printed(history: RunHistory, run: RunDir, facts: Facts) -> list[tuple[str, list[int]]]:
    """Of each attempt that told any: its name, and its steps."""
    told = [(each.name, read_steps(run.attempt(each.name).rank_log(0), facts.counter)) for each in history.attempts]
    return [(name, steps) for name, steps in told if steps]
