"""A sweep is one row of `clusterdp list`, made of how its elements stand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from clusterdp.operate.listing.look import Look, keep, summary_of
from clusterdp.operate.listing.summaries import Summaries
from clusterdp.operate.queue import RunStatus
from clusterdp.operate.run_state import RunState

# What a sweep is as a whole: the first of these that an element of it is.
OF_A_SWEEP = [RunState.RUNNING, RunState.WAITING, RunState.FAILED, RunState.GAVE_UP, RunState.VANISHED]
OF_A_SWEEP += [RunState.STOPPED, RunState.CANCELLED]

Answers = Mapping[str, tuple[RunStatus, bool]]


def row_of(look: Look, answers: Answers, kept: Summaries, now: float) -> str:
    """The summary as JSON. answers: of each run folder that was asked about, its status, and whether that is only what
    was last recorded."""
    if look.elements is not None:
        return _row_of_sweep(look, answers, kept, now)
    if look.history is None:
        return look.text
    status, as_recorded = answers[str(look.history.run.path)]
    return keep(look, status, kept, now, as_recorded=as_recorded)


def _row_of_sweep(sweep: Look, answers: Answers, kept: Summaries, now: float) -> str:
    """Its state is that of what is not over, else the worst; `why` has counts."""
    assert sweep.history is not None and sweep.elements is not None
    looks = [each for each in sweep.elements.values() if each.text or each.history]
    rows = [json.loads(row_of(each, answers, kept, now)) for each in looks]
    states = Counter(row["state"] for row in rows)
    counts = {each.value: states[each.value] for each in RunState if states[each.value]}
    state = next((each for each in OF_A_SWEEP if states[each.value]), RunState.DONE)
    said = ", ".join(f"{count} {word}" for word, count in counts.items())
    as_recorded = any(row["as_recorded"] for row in rows)
    found = summary_of(sweep.history, RunStatus(state, said), now, as_recorded=as_recorded)
    return json.dumps({**found, "elements": counts}, separators=(",", ":"))
