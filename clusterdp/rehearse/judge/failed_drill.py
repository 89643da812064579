"""FailedDrill: a drill that is over, with all that the diagnosis needs to know about its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterdp.check.program import ProgramText
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rehearse.judge.after_fault import AfterFault
from clusterdp.rehearse.judge.lost_state import Kept
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.run_spec import RunResult


@dataclass(frozen=True)
class FailedDrill:
    drill: str
    result: RunResult
    history: RunHistory
    facts: Facts
    lost: int | None  # steps that were done twice
    requeue: bool = True  # restart.requeue
    text: ProgramText | None = None  # the program's text, if it can be read
    kept: Kept | None = None
    after: AfterFault | None = None
    last_steps: Mapping[str, int] = field(default_factory=dict)  # the last step that rank 0 printed, by attempt
