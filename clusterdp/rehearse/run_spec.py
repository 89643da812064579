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
    values: dict[str, Any]  # the resolved config
    overrides: list[str]
    folder: str
    submit_dir: str
    cluster: str = "local"  # or "slurm"
    drill: str = ""
    code_of: str = ""  # the folder of a run whose snapshot is used again
    seed: int = 0
    grace_s: float = 20.0
    steps_for_s: float | None = None  # the run is cut short after it has made steps for this time
    limit_s: float = 600.0  # the run is ended as `too-long` after this time
    thorough: bool = False  # a kill at every event of a save, not only at a few
    facts: Facts = field(default_factory=Facts)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunSpec:
        return cls(**{**values, "facts": Facts.from_json(values["facts"])})


@dataclass(frozen=True)
class Hit:
    """The fault of a drill in one attempt."""

    attempt: str
    evidence: str  # the proof that the fault happened, in words
    step: int | None
    at: float
    causes: tuple[str, ...] = ()  # the attempt's end must be recorded with one of these; empty if the attempt goes on
    handlers: dict[str, str] = field(default_factory=dict)  # by rank, the effect of the warning signal on the program
    shells: dict[str, str] = field(default_factory=dict)  # by rank, a shell that the signal kills above its program
    grace_s: float | None = None
    signal: str = "SIGTERM"  # the warning signal
    file: str = ""  # a file that was half written at that moment, or is damaged
    since: float | None = None  # the start of the save that the fault interrupted; None if there was no save
    moment: str = ""  # the moment of that save, in words


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
    """Returns the files without the writes of each save that a fault interrupted. pointed: the times at which the
    program put a pointer to its newest save in place. Writes after the last pointer before a fault do not count."""
    windows = [(hit.since, hit.at + AFTER_KILL_S) for hit in hits if hit.since is not None]
    if pointed:
        windows += [(max((at for at in pointed if at <= hit.at), default=0.0), hit.at + AFTER_KILL_S) for hit in hits]
    return {path: use.without(windows) for path, use in files.items()}


class Missed(Exception):
    """The fault has not happened: the run was over first, or the moment for the fault did not come."""


class NotPossibleHere(Exception):
    """The fault cannot happen to this job, or cannot be made on this machine. Its text is the reason."""
