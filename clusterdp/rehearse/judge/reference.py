"""Reference: the undisturbed run, with which each drill's run is compared, at the end and at each save."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath

from clusterdp.check.program import ProgramText
from clusterdp.errors import CheckpointError
from clusterdp.rehearse.judge.resumed_from import kinds_to_resume_from
from clusterdp.rehearse.judge.verdict import BIT_FOR_BIT
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import is_best, series_of
from clusterdp.rehearse.observe.file_versions import Version, read_versions
from clusterdp.rehearse.state import EndState, of_files, of_run, spread_of
from clusterdp.rehearse.state.compare import number_of
from clusterdp.rehearse.state.files import ARRAYS, JSON, TORCH, read_file
from clusterdp.rehearse.state.parts import rank_of
from clusterdp.rundir import RunDir


@dataclass(frozen=True)
class KnownSave:
    """A file of a checkpoint, with its content at the time of the save."""

    version: Version
    # The file's name without its numbers, and a key that is the same for this step in each run: the counters in the
    # file, else the file's name, else the last step that rank 0 had printed.
    step: tuple[str, object]
    words: str
    state: EndState


def read_saves(versions: Iterable[Version], kinds: Collection[str], since: float = 0.0) -> Iterator[KnownSave]:
    """Yields the readable copies of checkpoint files in these series, in the order of `versions`. `since`: seconds
    since 1970."""
    for version in versions:
        series = series_of(version.name)
        is_part = series in kinds or any(series.startswith(f"{kind}/") for kind in kinds)
        is_readable = PurePath(version.name).suffix in (*TORCH, *ARRAYS, *JSON)
        if is_part and is_readable and version.copy and version.at > since and not is_best(version.name):
            with suppress(CheckpointError):
                yield _save(version)


def _save(version: Version) -> KnownSave:
    state = EndState(read_file(Path(version.copy), version.name), version.name)
    counted = {key: number_of(leaf) for key, leaf in state.values.items() if leaf.part == "step"}
    counts = tuple((key, number) for key, number in counted.items() if number is not None)
    series = series_of(version.name)
    if counts:
        key, number = min(
            counts, key=lambda each: (not _STEP.fullmatch(each[0]), each[0].count("."), "epoch" in each[0])
        )
        return KnownSave(version, (series, counts), f"{version.name} of {key} {number:g}", state)
    if series != version.name:
        return KnownSave(version, (series, version.name), version.name, state)
    return KnownSave(version, (series, version.step), f"{version.name} of step {version.step}", state)


_STEP = re.compile(r"(?:global_?)?(?:steps?|iter(?:ation)?s?|iter_num)")  # not `eval_steps`, which is a setting


@dataclass
class Reference:
    """The undisturbed run, with which all other runs are compared."""

    folder: Path
    facts: Facts
    state: EndState
    patterns: tuple[str, ...] = ()  # patterns for the files of the end state, if the checkpoints are not ours
    spread: Mapping[str, float] | None = None  # by key; None if the second run ended in the same bits
    others: list[EndState] = field(default_factory=list)  # end states of further undisturbed runs, for the spread
    text: ProgramText | None = None  # the program's text, if it was found
    again: Path | None = None  # the folder of the second undisturbed run
    began: float = 0.0  # begin of the rehearsal, in seconds since 1970

    def state_of(self, run: RunDir) -> EndState | None:
        """Returns the end state of a run. Raises CheckpointError if the end state cannot be read."""
        return end_state(run, self.patterns)

    def all_kept(self) -> EndState:
        """Returns the end state, and the values in other files that the run has kept: the last file of each series and
        rank. Files that cannot be read are left out."""
        if self.facts.ours:
            return self.state
        code = RunDir(self.folder).code
        compared = {series_of(pattern) for pattern in self.patterns}
        last: dict[tuple[str, int | None], str] = {}
        for path, use in self.facts.files.items():
            series = series_of(path)
            is_part = any(series == each or series.startswith(f"{each}/") for each in compared)
            if (use.written or use.named) and not is_part and not is_best(path) and (code / path).is_file():
                last[series, rank_of(path)] = path
        values = dict(self.state.values)
        for path in last.values():
            with suppress(CheckpointError):
                values |= read_file(code / path, path, f"{path}:")
        return EndState(values, self.state.source)

    @cached_property
    def kinds(self) -> set[str]:
        """The series of file names that belong to checkpoints."""
        return {*kinds_to_resume_from(self.facts.files), *map(series_of, self.patterns)}

    @cached_property
    def saves(self) -> list[KnownSave]:
        return [*read_saves(read_versions(self.folder), self.kinds)]

    @cached_property
    def saves_again(self) -> list[KnownSave]:
        return [*read_saves(read_versions(self.again), self.kinds)] if self.again else []

    @property
    def equal(self) -> str:
        return BIT_FOR_BIT if self.spread is None else f"within the spread of {self.runs} undisturbed runs"

    @property
    def runs(self) -> int:
        """The number of undisturbed runs from which the spread was computed."""
        return 1 + len(self.others)

    def add(self, other: EndState) -> None:
        """Widens the spread by the end state of another undisturbed run."""
        self.others.append(other)
        self.spread = spread_of(self.state, *self.others)


def end_state(run: RunDir, patterns: tuple[str, ...]) -> EndState | None:
    if not patterns:
        return of_run(run)
    found = of_files(run.code, patterns, run)
    return found if found.values else None
