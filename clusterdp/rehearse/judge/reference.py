"""Reference: the undisturbed run, with which each drill's is compared."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from clusterdp.check.program import ProgramText
from clusterdp.errors import CheckpointError
from clusterdp.rehearse.judge.verdict import BIT_FOR_BIT
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import is_best, series_of
from clusterdp.rehearse.state import EndState, of_files, of_run, spread_of
from clusterdp.rehearse.state.files import read_file
from clusterdp.rehearse.state.parts import rank_of
from clusterdp.rundir import RunDir


@dataclass
class Reference:
    """patterns: the files of the end state, where the checkpoints are not ours. spread: None if a second one ended in
    the same bits. others: end states of further undisturbed runs, from which the spread is. again: folder of the second
    run. text: the program's, where it is found. began: in seconds since 1970."""

    folder: Path
    facts: Facts
    state: EndState
    patterns: tuple[str, ...] = ()
    spread: Mapping[str, float] | None = None
    others: list[EndState] = field(default_factory=list)
    text: ProgramText | None = None
    again: Path | None = None
    began: float = 0.0

    def state_of(self, run: RunDir) -> EndState | None:
        """CheckpointError where it cannot be read."""
        return end_state(run, self.patterns)

    def all_kept(self) -> EndState:
        """The end state, and what else the run has kept of its ranks: of each kind of file the last. A file that cannot
        be read is left out."""
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

    @property
    def equal(self) -> str:
        return BIT_FOR_BIT if self.spread is None else f"within the spread of {self.runs} undisturbed runs"

    @property
    def runs(self) -> int:
        """Number of undisturbed runs that the spread is of."""
        return 1 + len(self.others)

    def add(self, other: EndState) -> None:
        """Widens the spread by another undisturbed run."""
        self.others.append(other)
        self.spread = spread_of(self.state, *self.others)


def end_state(run: RunDir, patterns: tuple[str, ...]) -> EndState | None:
    if not patterns:
        return of_run(run)
    found = of_files(run.code, patterns, run)
    return found if found.values else None
