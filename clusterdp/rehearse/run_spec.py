"""RunSpec and RunResult: the order and the outcome of one run of a rehearsal, which two processes exchange as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import FileUse, uses_from_json

TICK_S = 0.02  # how far the times of files may be behind the clock: the kernel takes them from its last tick
AFTER_KILL_S = 1.0  # seconds after a kill within which the kernel closes the files of the rank


TOO_LONG = "too-long"  # the state of a run that the rehearsal has ended
MEMORY, DISK = "memory", "disk"  # the places from which an attempt may resume


@dataclass(frozen=True)
class RunSpec:
    """The order for one run of a rehearsal, which the process of the run gets."""

    name: str
    values: dict[str, Any]  # the resolved config
    overrides: list[str]
    folder: str
    submit_dir: str
    cluster: str = "local"  # or "slurm"
    drill: str = ""
    code_of: str = ""  # the folder of a run whose snapshot is used again
    seed: int = 0
    grace_s: float = 20.0
    steps_for_s: float | None = None  # seconds from the first step after which the run is cut short; None: never
    limit_s: float = 600.0  # seconds after which the run is ended as `too-long`
    thorough: bool = False  # whether ranks are killed at every event of a save, not only at a few
    facts: Facts = field(default_factory=Facts)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunSpec:
        return cls(**{**values, "facts": Facts.from_json(values["facts"])})


@dataclass(frozen=True)
class Hit:
    """A fault that a drill made in one attempt."""

    attempt: str
    evidence: str  # the proof that the fault happened, in words
    step: int | None
    at: float
    causes: tuple[str, ...] = ()  # causes of which the attempt's end must have one; empty if the attempt goes on
    handlers: dict[str, str] = field(default_factory=dict)  # by rank: the effect of the warning signal on the program
    shells: dict[str, str] = field(default_factory=dict)  # by rank: a shell above the program that the signal kills
    grace_s: float | None = None
    signal: str = "SIGTERM"  # the warning signal
    file: str = ""  # a file that was half written when the fault came, or is damaged
    since: float | None = None  # when the save that the fault interrupted began; None if no save was interrupted
    moment: str = ""  # the moment of the interrupted save, in words
    in_place: bool = False  # whether the next attempts must start in the same allocation, not through the queue
    resumes: str = ""  # MEMORY or DISK: the place from which the next attempt must resume; empty: any


@dataclass(frozen=True)
class RunResult:
    """The outcome of one run of a rehearsal."""

    state: str  # a RunState's value, or `cut-short` after steps_for_s
    folder: str = ""
    why: str = ""
    took_s: float = 0.0
    hits: tuple[Hit, ...] = ()
    missed: str = ""  # why the fault did not happen
    inapplicable: str = ""  # why the fault cannot happen
    unmade: str = ""  # the part of the drill that could not be made, and why
    facts: Facts = field(default_factory=Facts)
    files: dict[str, FileUse] = field(default_factory=dict)  # use of the checkpoints, by path as in Facts.files
    first_steps: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunResult:
        hits = tuple(Hit(**{**hit, "causes": tuple(hit["causes"])}) for hit in values["hits"])
        facts, files = Facts.from_json(values["facts"]), uses_from_json(values["files"])
        return cls(**{**values, "hits": hits, "facts": facts, "files": files})


def committed(files: Mapping[str, FileUse], hits: Iterable[Hit], pointed: Collection[float]) -> dict[str, FileUse]:
    """Returns the use of the files without the writes of saves that a fault interrupted.

    `pointed`: the times at which the program wrote a pointer to its newest checkpoint. If there are pointers, writes
    between the last pointer and the fault do not count.
    """
    windows = [(hit.since - TICK_S, hit.at + AFTER_KILL_S) for hit in hits if hit.since is not None]
    if pointed:
        windows += [(max((at for at in pointed if at <= hit.at), default=0.0), hit.at + AFTER_KILL_S) for hit in hits]
    return {path: use.without(windows) for path, use in files.items()}


class Missed(Exception):
    """Raised if the fault has not happened: the run was over first, or the moment for the fault did not come."""


class NotPossibleHere(Exception):
    """Raised if the fault cannot happen to this job, or cannot be made on this machine. The exception's text is the
    reason."""
