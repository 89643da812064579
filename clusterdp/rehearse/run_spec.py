"""What one run of a rehearsal is told, and what it tells: both travel between two processes as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from clusterdp.rehearse.file_use import FileUse


@dataclass(frozen=True)
class Facts:
    """What an undisturbed run was like.

    ours: its checkpoints are. saved: the bytes of its last one, or of the program's files that look like checkpoints.
    steps: of the whole run; None: the program does not tell. took_s: from the start of its ranks to their end.
    start_s: to the first step. evaluates: it has a phase of evaluation. warm_up: the steps of its warm-up; 0: none is
    known. written: files that its ranks had open for
    writing, with their sizes. ports: on which rank 0 has listened, without MASTER_PORT. counter: of the steps that it
    prints. saved_at: at which steps. files: what was done to those that look like checkpoints, by
    their paths within its code.
    """

    ours: bool = False
    saved: int = 0
    steps: int | None = None
    took_s: float = 0.0
    start_s: float = 0.0
    evaluates: bool = False
    warm_up: int = 0
    written: dict[str, int] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    counter: str = ""
    saved_at: list[int] = field(default_factory=list)
    files: dict[str, FileUse] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Facts:
        return cls(**{**values, "files": _files(values["files"])})


@dataclass(frozen=True)
class RunSpec:
    """values: a config, resolved. overrides: of it. cluster: `local` or `slurm`. code_of: a run whose snapshot is
    taken over. steps_for_s: end the run when it has made steps for so long. limit_s: it is given up after so long."""

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
    facts: Facts = field(default_factory=Facts)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunSpec:
        return cls(**{**values, "facts": Facts.from_json(values["facts"])})


@dataclass(frozen=True)
class Hit:
    """What a drill did to one attempt. evidence: in words, that it was there. causes: of the attempt's end, of which
    one must be on record; none if the attempt is to go on. signal: of the warning; by rank, handlers: what it does to
    that; shells: what it kills above a program that handles it. file: that was half written then, or damaged."""

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


@dataclass(frozen=True)
class RunResult:
    """state: a RunState's value, or `cut-short` after steps_for_s. missed: why the fault did not land. inapplicable:
    why it cannot. files: as in Facts."""

    state: str
    folder: str = ""
    why: str = ""
    took_s: float = 0.0
    hits: tuple[Hit, ...] = ()
    missed: str = ""
    inapplicable: str = ""
    facts: Facts = field(default_factory=Facts)
    files: dict[str, FileUse] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunResult:
        hits = tuple(Hit(**{**hit, "causes": tuple(hit["causes"])}) for hit in values["hits"])
        facts, files = Facts.from_json(values["facts"]), _files(values["files"])
        return cls(**{**values, "hits": hits, "facts": facts, "files": files})


def _files(values: dict[str, dict[str, Any]]) -> dict[str, FileUse]:
    return {path: FileUse(**use) for path, use in values.items()}
