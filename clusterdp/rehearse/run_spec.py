"""What one run of a rehearsal is told, and what it tells: both travel between two processes as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import FileUse, uses_from_json

AFTER_KILL_S = 1.0  # the kernel closes the files of a killed rank a little later


@dataclass(frozen=True)
class RunSpec:
    """values: a config, resolved. overrides: of it. cluster: `local` or `slurm`. code_of: a run whose snapshot is
    taken over. thorough: as in Scene. steps_for_s: end the run when it has made steps for so long. limit_s: it
    is given up after so long."""

    name: str
    values: dict[str, Any]
    overrides: list[str]
    folder: str
    submit_dir: str
    cluster: str = "local"
    drill: str = ""
    code_of: str = ""
    seed: int = 0
    grace_s: float = 20.0
    steps_for_s: float | None = None
    limit_s: float = 600.0
    thorough: bool = False
    facts: Facts = field(default_factory=Facts)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunSpec:
        return cls(**{**values, "facts": Facts.from_json(values["facts"])})


@dataclass(frozen=True)
class Hit:
    """What a drill did to one attempt. evidence: in words, that it was there. causes: of the attempt's end, of which
    one must be on record; none if the attempt is to go on. signal: of the warning; by rank, handlers: what it does to
    that; shells: what it kills above a program that handles it. file: that was half written then, or damaged.
    since: when the save began that it has struck; None: none that was not over.
    moment: of that save, in words."""

    attempt: str
    evidence: str
    step: int | None
    at: float
    causes: tuple[str, ...] = ()
    handlers: dict[str, str] = field(default_factory=dict)
    shells: dict[str, str] = field(default_factory=dict)
    grace_s: float | None = None
    signal: str = "SIGTERM"
    file: str = ""
    since: float | None = None
    moment: str = ""


@dataclass(frozen=True)
class RunResult:
    """state: a RunState's value, or `cut-short` after steps_for_s. missed: why the fault did not land. inapplicable:
    why it cannot. unmade: what of it was not done, and why. files: as in Facts. first_steps: by attempt, when a
    printed step was first seen, in seconds since 1970."""

    state: str
    folder: str = ""
    why: str = ""
    took_s: float = 0.0
    hits: tuple[Hit, ...] = ()
    missed: str = ""
    inapplicable: str = ""
    unmade: str = ""
    facts: Facts = field(default_factory=Facts)
    files: dict[str, FileUse] = field(default_factory=dict)
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


class Inapplicable(Exception):
    """The fault cannot happen to this job, or cannot be made on this machine. Its text is the reason."""
