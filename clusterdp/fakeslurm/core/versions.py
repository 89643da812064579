"""What releases of Slurm after 22.05 do differently, as far as programs see it.

Only 22.05 is recorded (tests/slurm_facts). The rest comes from Slurm's release notes and manual pages, and is not
checked against a real one.
"""

from __future__ import annotations

from clusterdp.fakeslurm.errors import FakeSlurmError

# A change -> the first release that has it.
TIMES_IN_ENVIRONMENT = (23, 2)  # SLURM_JOB_START_TIME, SLURM_JOB_END_TIME
SCONTROL_JSON = (23, 2)  # scontrol --json
NODES_OF_JOB = (23, 2)  # scontrol show hostnames takes SLURM_JOB_NODELIST, not SLURM_NODELIST
NUMBERS_AS_OBJECTS = (23, 11)  # JSON: {"set": ..., "number": ...}, states as lists
KNOWN = ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05")


def check(text: str) -> str:
    """The version to show; raises FakeSlurmError if it is unknown."""
    if ".".join(text.split(".")[:2]) not in KNOWN:
        raise FakeSlurmError(f"slurm_version: there is no manner of {text!r}. Choose one of {', '.join(KNOWN)}.")
    return text


class Release:
    def __init__(self, text: str):
        year, month = text.split(".")[:2]
        self._number = int(year), int(month)

    def has(self, since: tuple[int, int]) -> bool:
        return self._number >= since
