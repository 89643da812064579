"""ProgramText: what is written in a program, each fact with its line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, order=True)
class Place:
    """`line` counts from 1; `text` is that line, stripped."""

    file: Path
    line: int
    text: str


@dataclass(frozen=True, order=True)
class PathUse(Place):
    """A file or folder that is opened by a name that stands in the program. `path`: as much of it as is written out;
    `whole` if that is all of it. `named`: it is only named, by Path(), and may be opened elsewhere."""

    path: str = ""
    written: bool = False
    whole: bool = True
    named: bool = False

    @property
    def place(self) -> Place:
        return Place(self.file, self.line, self.text)

    @property
    def is_absolute(self) -> bool:
        return self.path.startswith(("/", "~"))


@dataclass(frozen=True, order=True)
class ShellCall(Place):
    """Where a shell starts the program; `is_last`: it does nothing after it, and could become it by exec."""

    is_last: bool = True


@dataclass
class ProgramText:
    """The facts of the program's own files. Each list is empty if there is no such line.

    What is not `complete` (a file that cannot be read or parsed, too many files, an import by a computed name, or of a
    library of which nothing is known) may have lines that were not seen: that a list is empty says little then.
    """

    files: list[Path] = field(default_factory=list)
    # Of them, those that it may do without: imported in a function, below `try:` or `if`.
    optional: set[Path] = field(default_factory=set)
    unparsed: list[Place] = field(default_factory=list)  # not valid Python; `text` is the error
    complete: bool = True
    libraries: set[str] = field(default_factory=set)  # the top names of all that is imported from elsewhere

    handled: dict[str, list[Place]] = field(default_factory=dict)  # `SIGTERM` -> where a handler is set
    collective_in_handler: list[Place] = field(default_factory=list)
    exits_zero_in_handler: list[Place] = field(default_factory=list)

    shells: list[ShellCall] = field(default_factory=list)  # of shell scripts without an exec and a trap

    trains: list[Place] = field(default_factory=list)  # a backward pass of torch
    # A process group, or a look at what tells the ranks apart: RANK, WORLD_SIZE, SLURM_PROCID, --local_rank.
    knows_ranks: list[Place] = field(default_factory=list)

    saves: list[Place] = field(default_factory=list)
    saves_in_place: list[Place] = field(default_factory=list)  # under the final name, without a rename
    trains_anew: list[Place] = field(default_factory=list)  # Hugging Face's Trainer, without a checkpoint
    resumes: list[Place] = field(default_factory=list)  # loads a state

    opened: list[PathUse] = field(default_factory=list)
    fixed_ports: list[Place] = field(default_factory=list)
    fixed_devices: list[Place] = field(default_factory=list)
    first_gpus: list[Place] = field(default_factory=list)  # `.cuda()` in a program that does not know its local rank
    copies_files: bool = False  # a file may be taken elsewhere once it is written
    workers: list[tuple[Place, int]] = field(default_factory=list)  # num_workers=N of loaders, where N is written out

    @property
    def handles_term(self) -> list[Place]:
        return self.handled.get("SIGTERM", [])

    @property
    def absolute_paths(self) -> list[PathUse]:
        return [use for use in self.opened if use.is_absolute]
