"""Which attempt took the run folder over from which: `claims/000002` holds the name of its second owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterdp.operate.attempt_history import AttemptHistory
from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import words
from clusterdp.rundir.names import names_in


def with_owners(run: RunDir, attempts: Sequence[AttemptHistory]) -> tuple[AttemptHistory, ...]:
    """The attempts, where one that another job has superseded says so. It may not have noticed yet."""
    claims: list[str] | None = None
    marked = list(attempts)
    for i, attempt in enumerate(attempts):
        lost = attempt.cause == "overtaken" or (attempt.cause == "stopped" and attempt.why == "claim")
        if not lost and (attempt.cause or len(attempts) == 1):
            continue
        claims = _in_order(run) if claims is None else claims
        owner = _after(attempt, attempts, claims)
        if owner is not None or lost:
            why = f"by attempt {owner.number}" if owner else "by another attempt"
            marked[i] = replace(attempt, cause="overtaken", why=why)
    return tuple(marked)


def _after(attempt: AttemptHistory, attempts: Sequence[AttemptHistory], claims: list[str]) -> AttemptHistory | None:
    """The attempt whose claim came right after this attempt's last one."""
    if attempt.name not in claims:
        return None
    later = claims[len(claims) - claims[::-1].index(attempt.name) :]
    return next((each for each in attempts if later and each.name == later[0]), None)


def _in_order(run: RunDir) -> list[str]:
    return ["".join(words(run.claims / name)[:1]) for name in sorted(names_in(run.claims)) if name.isdecimal()]
