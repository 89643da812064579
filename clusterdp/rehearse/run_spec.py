"""RunSpec and RunResult: the order and the outcome of one run of a rehearsal, which two processes exchange as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import FileUse, uses_from_json

AFTER_KILL_S = 1.0  # the kernel closes the files of a killed rank a little later


@dataclass(frozen=True)
class RunSpec:
    """The order for one run of a rehearsal, for the process that makes it."""

    name: str
    values: dict[str, Any]  # of the config, resolved
    overrides: list[str]
    folder: str
    submit_dir: str
    cluster: str = "local"  # or "slurm"
    drill: str = ""
    code_of: str = ""  # a run whose snapshot is used again
    seed: int = 0
    grace_s: float = 20.0
    steps_for_s: float | None = None  # the run is ended once it has made steps for that long
    limit_s: float = 600.0  # the run is ended, and an error, after that long
    thorough: bool = False  # every event of a save is struck
    facts: Facts = field(default_factory=Facts)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunSpec:
        return cls(**{**values, "facts": Facts.from_json(values["facts"])})


@dataclass(frozen=True)
class Hit:
    """The fault of a drill in one attempt."""

    attempt: str
    evidence: str  # that the fault was there, in words
    step: int | None
    at: float
    causes: tuple[str, ...] = ()  # one of them must be on record for the attempt's end; none if the attempt goes on
    handlers: dict[str, str] = field(default_factory=dict)  # by rank, what it does to the warning signal
    shells: dict[str, str] = field(default_factory=dict)  # those that the signal kills above a program that handles it
    grace_s: float | None = None
    signal: str = "SIGTERM"  # of the warning
    file: str = ""  # half written at that moment, or damaged
    since: float | None = None  # when the save began that was struck; None if no save was going on
    moment: str = ""  # of that save, in words


@dataclass(frozen=True)
class RunResult:
    """The outcome of one run of a rehearsal."""

    state: str  # a RunState's value, or `cut-short` after steps_for_s
    folder: str = ""
    why: str = ""
    took_s: float = 0.0
    hits: tuple[Hit, ...] = ()
    missed: str = ""  # why the fault did not land
    inapplicable: str = ""  # why it cannot
    unmade: str = ""  # the part of the drill that was not made, and why
    facts: Facts = field(default_factory=Facts)
    files: dict[str, FileUse] = field(default_factory=dict)  # as in Facts
    first_steps: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunResult:
        hits = tuple(Hit(**{**hit, "causes": tuple(hit["causes"])}) for hit in values["hits"])
        facts, files = Facts.from_json(values["facts"]), uses_from_json(values["files"])
        return cls(**{**values, "hits": hits, "facts": facts, "files": files})


def committed(files: Mapping[str, FileUse], hits: Iterable[Hit], pointed: Collection[float]) -> dict[str, FileUse]:
    """The files as if no save that was struck before its end had been made. pointed: when the program has put a pointer
    to its newest save in place; what was written after that is not the save to resume from."""
    windows = [(hit.since, hit.at + AFTER_KILL_S) for hit in hits if hit.since is not None]
    if pointed:
        windows += [(max((at for at in pointed if at <= hit.at), default=0.0), hit.at + AFTER_KILL_S) for hit in hits]
    return {path: use.without(windows) for path, use in files.items()}


class Missed(Exception):
    """The fault has not landed: the run was over first, or what it waits for did not come."""


class NotPossibleHere(Exception):
    """The fault cannot happen to this job, or cannot be made on this machine. Its text is the reason."""
