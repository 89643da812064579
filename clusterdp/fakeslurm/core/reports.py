"""Reports of slurmstepd to slurmctld: one type per report, and their form in JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import get_args

from .task_usage import Usage


@dataclass(frozen=True)
class Sender:
    """The slurmstepd that sends a report. The JSON of each report begins with its sender."""

    job: int
    step: str
    restart: int  # number of the job's attempt
    pid: int


@dataclass(frozen=True)
class Started:
    """Report that the tasks were started."""

    pids: tuple[int, ...]


@dataclass(frozen=True)
class Reconnected:
    """slurmctld was killed, and slurmstepd has connected to the next slurmctld."""

    pids: tuple[int, ...]  # pids of the tasks that still run


@dataclass(frozen=True)
class Ended:
    """All tasks have ended. The keys of the dicts are job ids, because a step has a record in each component."""

    status: int  # the worst wait status of the tasks
    statuses: dict[int, int] = field(default_factory=dict)
    usages: dict[int, Usage | None] = field(default_factory=dict)
    killer: int | None = None  # uid of the user who ended the step by force
    timed_out: bool = False
    lost_srun: bool = False  # whether srun was killed
    interrupted: bool = False  # whether srun was interrupted twice (Ctrl-C)
    lingers: bool = False  # whether processes that a batch script started still run


@dataclass(frozen=True)
class ScriptGone:
    """All processes of a batch script have ended."""


@dataclass(frozen=True)
class Acknowledged:
    """slurmstepd has carried out an order."""

    ack: str


Report = Started | Reconnected | Ended | ScriptGone | Acknowledged
TYPES = {kind.__name__: kind for kind in get_args(Report)}


def encode(sender: Sender, report: Report) -> bytes:
    return json.dumps({"sender": vars(sender), "report": type(report).__name__, **vars(report)}).encode()


def decode(payload: bytes) -> tuple[Sender, Report]:
    """Returns the sender of a report, and the report. Raises ValueError for an unknown report."""
    values = json.loads(payload)
    sender, name = Sender(**values.pop("sender")), values.pop("report")
    if name not in TYPES:
        raise ValueError(f"report {name!r}: unknown to this version of the fake cluster")
    if "pids" in values:
        values["pids"] = tuple(values["pids"])
    if name == Ended.__name__:  # JSON has neither numbers as keys nor tuples
        values["statuses"] = {int(job): status for job, status in values["statuses"].items()}
        values["usages"] = {int(job): Usage(*used) if used else None for job, used in values["usages"].items()}
    report: Report = TYPES[name](**values)
    return sender, report
