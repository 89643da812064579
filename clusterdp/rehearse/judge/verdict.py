"""Verdict: what a drill has shown.

passed          its fault landed, the job came back by itself, and it ended in the state of the undisturbed run
failed          it did not
lost work       it did, but steps that had been saved before the fault were done again, beyond the interval of saves
not landed      the fault could not be proved to have landed, in several tries: nothing is known of the job
not applicable  the fault cannot happen to this job, or cannot be made on this machine
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from clusterdp.rehearse.judge.attempt_rows import AttemptRow

PASSED, FAILED, INAPPLICABLE = "passed", "failed", "not applicable"
LOST_WORK, NOT_LANDED = "lost work", "not landed"
BAD = (FAILED, LOST_WORK)  # the job has a fault
UNKNOWN = (INAPPLICABLE, NOT_LANDED)  # nothing was shown
SHORT = {INAPPLICABLE: "n/a"}  # where there is little room
BIT_FOR_BIT, WITHIN_SPREAD = "bit for bit", "within the spread of undisturbed runs"  # how end states are equal


@dataclass(frozen=True)
class HitRow:
    """Something was done to an attempt: when, in seconds since 1970, and at which step."""

    attempt: str
    at: float
    step: int | None


@dataclass(frozen=True)
class Verdict:
    """said: in a sentence. diagnosis: of a failure, what is wrong with the job. state: how the end states compare.
    differences: the first ones, of so many as `differing` says. evidence: of the fault, in words for each of hits.
    lost: steps that were done twice; None if the program does not tell its steps. settings: of the config, for this
    drill alone. tries: until the fault landed."""

    drill: str
    about: str
    verdict: str
    said: str
    diagnosis: str = ""
    evidence: tuple[str, ...] = ()
    state: str = ""
    differences: tuple[str, ...] = ()
    differing: int = 0
    lost: int | None = None
    hits: tuple[HitRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    settings: tuple[str, ...] = ()
    took_s: float = 0.0
    folder: str = ""
    tries: int = 1
    compared: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
