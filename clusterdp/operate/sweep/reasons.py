"""Why elements of a sweep wait or failed: one line for each reason, with the elements that have it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from clusterdp.operate.formatting import Colour
from clusterdp.operate.run_state import RunState
from clusterdp.operate.status import STATE_COLOURS
from clusterdp.operate.sweep.elements import ElementStatus
from clusterdp.operate.sweep.table import listed
from clusterdp.operate.why import failure_words
from clusterdp.operate.why.explanation import FAILED
from clusterdp.operate.why.first_failure import find_failure
from clusterdp.operate.width import filled


def reason_of(each: ElementStatus) -> str:
    """What is known beside the state; of one that failed, the first failure of its ranks. Empty if nothing is."""
    history, status = each.history, each.status
    wanted = history.asked_to_stop or (history.last is not None and history.last.stopped_by_user)
    failed = status.state in FAILED and not wanted
    cause = failure_words.cause_line(find_failure(history)) if failed else ""
    return "; ".join(filter(None, [status.why, cause]))


def reason_lines(
    elements: Sequence[ElementStatus], colour: Colour, columns: int = sys.maxsize, *, of_all: bool = False
) -> list[str]:
    """`failed  1, 5: the GPU's memory is full (rank 2 on n2)`. of_all: of those that wait, too."""
    groups: dict[tuple[RunState, str], list[ElementStatus]] = {}
    for each in elements:
        if each.status.state in FAILED or (of_all and not each.status.state.over):
            groups.setdefault((each.status.state, reason_of(each)), []).append(each)
    lines = []
    for (state, reason), some in groups.items():
        head = f"{colour(STATE_COLOURS.get(state, 'red'), state.value)}  {listed(some)}"
        if reason or (of_all and state is not RunState.RUNNING):
            lines += filled(f"{head}: ", reason or "no more is known", columns)
    return lines
