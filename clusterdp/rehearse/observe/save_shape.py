"""SaveShape: what a program does to its files at a save, learned from the events of an undisturbed run.

A kill can come before each event, between the first and the last byte of a file that is written, and after the last
event. Names are learned, too: parts of them that come back in another save are fixed, others are random.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterdp.fakeslurm.core.file_traps import DELETE, LINK, RENAME, WRITE
from clusterdp.rehearse.observe.file_events import FileEvent
from clusterdp.rehearse.observe.file_use import ONE_SAVE_S, is_best, is_checkpoint
from clusterdp.rundir import RunDir

BEFORE, FIRST_BYTES, MIDDLE, AFTER = "before", "first bytes", "middle", "after"
POINTER = 4096  # bytes, at most
FEW = 5  # strikes by default: each costs a start of the job
RANDOM = re.compile(r"[#_]*\*[#*_]*")
PROBE = re.compile(r"/tmp/[a-z0-9_]{8}$")  # Python's tempfile writes and deletes it to try the folder
NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+|\d+(?![A-Za-z0-9])")


@dataclass(frozen=True)
class Strike:
    """A moment of a save. kind: of the event. path, to: keys of its names. when: BEFORE it, at the FIRST_BYTES or in
    the MIDDLE of the file that is written, or AFTER it."""

    kind: str
    path: str
    to: str
    when: str


@dataclass(frozen=True)
class SaveShape:
    """words: the fixed parts of names. strikes: all moments of a save, in their order. sizes: the least bytes of the
    files that are not text, by key. pointers: names of files and links that name the save to resume from."""

    words: tuple[str, ...] = ()
    strikes: tuple[Strike, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    pointers: tuple[str, ...] = ()

    def key(self, name: str) -> str:
        """The same for all names that a file has in different saves: `#` is a number, `*` is random."""
        parts = (part if part in self.words or not part.isalnum() else "*" for part in _parts(name))
        return RANDOM.sub("*", "".join(parts))

    def is_at(self, strike: Strike, event: FileEvent) -> bool:
        """event: its paths are names, as own_name() makes them."""
        here = (event.kind, self.key(event.path), self.key(event.to))
        return not event.appends and here == (strike.kind, strike.path, strike.to)

    def is_state(self, name: str) -> bool:
        """Whether a save makes this file, and it is not text; of a program that writes only text, any that it makes."""
        key = self.key(name)
        return (key in self.sizes or not self.sizes) and any(key in (each.path, each.to) for each in self.strikes)

    def few(self) -> tuple[Strike, ...]:
        """FEW of the strikes, spread over the save. The first bytes of a file leave little else than its middle."""
        chosen = [strike for strike in self.strikes if strike.when != FIRST_BYTES]
        if len(chosen) > FEW:
            chosen = [chosen[round(i * (len(chosen) - 1) / (FEW - 1))] for i in range(FEW)]
        return tuple(chosen)

    def in_both(self, other: SaveShape) -> SaveShape:
        """The same with names that another run has, too: a run may have a random name of its own."""
        both = SaveShape(tuple(word for word in self.words if word in other.words))
        strikes = (replace(each, path=both.key(each.path), to=both.key(each.to)) for each in self.strikes)
        sizes = {both.key(key): size for key, size in sorted(self.sizes.items(), key=lambda item: -item[1])}
        pointers = tuple(name for name in self.pointers if name in other.pointers)
        return replace(both, strikes=tuple(dict.fromkeys(strikes)), sizes=sizes, pointers=pointers)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SaveShape:
        strikes = tuple(Strike(**strike) for strike in values["strikes"])
        return cls(tuple(values["words"]), strikes, values["sizes"], tuple(values["pointers"]))


def own_name(run: RunDir, path: str) -> str:
    """The name of a program's file: from the run folder on, which differs from run to run, or the whole path. Empty for
    what others keep there: the run's records, libraries and their caches."""
    parts = Path(path).parts
    for folder in (run.code, run.checkpoints):
        if path.startswith(f"{folder}/"):
            return "" if "__pycache__" in parts else str(Path(path).relative_to(run.path))
    hidden = any(part.startswith(".") for part in parts[:-1])
    return (
        ""
        if hidden
        or PROBE.search(path)
        or path.startswith((f"{run.path}/", f"{sys.prefix}/", f"{sys.base_prefix}/lib/"))
        else path
    )


def is_state(run: RunDir, shape: SaveShape, path: str) -> bool:
    """Whether a file may be what the program resumes from: a save makes it, or it is named like a checkpoint. path:
    below the working folder, or a whole one elsewhere."""
    return is_checkpoint(path) or shape.is_state(own_name(run, str(run.code / path)))


def named(run: RunDir, event: FileEvent) -> FileEvent | None:
    """The event with names for paths; None if it is not of the program's own files."""
    path, to = own_name(run, event.path), own_name(run, event.to) if event.to else ""
    if event.to and not (path and to):  # moved in from a library's folder, or a link to one
        path, to = path or (to and event.path), to or event.to
    return replace(event, path=path, to=to) if path else None


def with_pointers(shape: SaveShape, events: Iterable[FileEvent], run: RunDir) -> SaveShape:
    """The same with the pointers that the run has left. events: as learn() has them."""
    events = [*events]
    written = {part for event in events if shape.key(event.path) in shape.sizes for part in Path(event.path).parts}
    ours = {part for part in written if any(letter in shape.key(part) for letter in "#*")}  # of one save alone
    fixed = dict.fromkeys(name for event in events if shape.key(name := event.to or event.path) == name)
    texts = {name: _pointed(run.path / name) for name in fixed}
    return replace(shape, pointers=tuple(name for name in fixed if any(part in texts[name] for part in ours)))


def _pointed(path: Path) -> str:
    """The name in a link, or in a small file of text."""
    with suppress(OSError, ValueError):
        if path.is_symlink():
            return os.readlink(path)
        if path.stat().st_size <= POINTER:
            return path.read_text()
    return ""


def pointed_at(shape: SaveShape, events: Iterable[FileEvent], run: RunDir) -> tuple[float, ...]:
    """When a pointer was put in its place, in seconds since 1970. events: of any run of the program."""
    return tuple(event.at for event in events if own_name(run, event.to or event.path) in shape.pointers)


def learn(events: Iterable[FileEvent], binary: Mapping[str, int]) -> SaveShape:
    """events: with names for paths, in their order. binary: bytes of the files written that are not text, by name."""
    saves = _saves(events, binary)
    shape = SaveShape(_fixed_words(saves))
    kinds = max((_kinds(save, shape) for save in saves), key=len, default=[])
    sizes: dict[str, int] = {}
    renames = {event.path: event.to for save in saves for event in save if event.kind in (RENAME, LINK)}
    moved = {renames[name]: size for name, size in binary.items() if name in renames}  # a copy, on another disk
    for name, size in (*binary.items(), *moved.items()):
        key = shape.key(name)
        sizes[key] = min(size, sizes.get(key, size))
    return replace(shape, strikes=_strikes(kinds), sizes=sizes)


def _saves(events: Iterable[FileEvent], binary: Collection[str]) -> list[list[FileEvent]]:
    """Groups of events, of which some write a file that is not text; of a program that writes only text, all groups
    that write. A model that is kept for its score is nothing to resume from, unless there is nothing else."""
    groups = _grouped(events)
    written = [{event.path for event in group if event.kind == WRITE} for group in groups]
    states = [paths & set(binary) for paths in written]
    usual = [{path for path in paths if not is_best(path)} for paths in states]
    wanted = next((each for each in (usual, states, written) if any(each)), written)
    return [group for group, paths in zip(groups, wanted, strict=True) if paths]


def save_until(events: Sequence[FileEvent]) -> list[FileEvent]:
    """The events of the save to which the last of these belongs, with names for paths."""
    return next(group for group in _grouped(events) if group[-1] is events[-1])


def _grouped(events: Iterable[FileEvent]) -> list[list[FileEvent]]:
    """The events by save: one soon after another event and at the same step belongs to the same save. Later, in the
    background, that is known by the folder, if this save alone has written there, and by the file that gets another
    name."""
    groups: list[list[FileEvent]] = []
    current: list[FileEvent] = []
    of_file: dict[str, list[FileEvent]] = {}  # by file or folder, the group that has written it first
    for event in events:
        last = current[-1] if current else None
        if not last or event.at - last.at > ONE_SAVE_S or event.step != last.step > 0:
            begins = event.kind == DELETE or (event.kind == WRITE and event.path in of_file)
            known = None if begins else of_file.get(event.path) or of_file.get(_folder(event.path))
            current = known or []
            if not known:
                groups.append(current)
        current.append(event)
        if event.kind == WRITE:
            of_file[event.path] = current
            of_file.setdefault(_folder(event.path), current)
    return groups


def _folder(path: str) -> str:
    """The folder of a file that is one of several saves' if its name has no number: then the name tells nothing."""
    folder = path.rpartition("/")[0]
    return folder if any(letter.isdigit() for letter in folder.rpartition("/")[2]) else path


def _fixed_words(saves: Sequence[Sequence[FileEvent]]) -> tuple[str, ...]:
    """The parts of names that several saves have written; all if there is one save only."""
    found: dict[str, set[int]] = defaultdict(set)
    for number, save in enumerate(saves):
        for event in save:
            if event.kind != DELETE:  # of what an earlier save has written
                for part in (*_parts(event.path), *_parts(event.to)):
                    found[part].add(number)
    return tuple(sorted(part for part, numbers in found.items() if len(numbers) > 1 or len(saves) == 1))


def _kinds(save: Sequence[FileEvent], shape: SaveShape) -> list[tuple[str, str, str]]:
    """The different events of a save, from the first file that is written or deleted. Those of a model that is kept for
    its score may never come again."""
    events = [event for event in save if not is_best(event.path)] or save
    first = next((i for i, event in enumerate(events) if event.kind in (WRITE, DELETE)), 0)
    return [*dict.fromkeys((event.kind, shape.key(event.path), shape.key(event.to)) for event in events[first:])]


def _strikes(kinds: Sequence[tuple[str, str, str]]) -> tuple[Strike, ...]:
    strikes = []
    for number, (kind, path, to) in enumerate(kinds):
        if number:  # before the first event nothing of the save has begun
            strikes.append(Strike(kind, path, to, BEFORE))
        if kind == WRITE:
            strikes += [Strike(kind, path, to, FIRST_BYTES), Strike(kind, path, to, MIDDLE)]
    if kinds and kinds[-1][0] != WRITE:  # after a last file that is whole, the kill is one between two saves
        strikes.append(Strike(*kinds[-1], AFTER))
    return tuple(strikes)


def _parts(name: str) -> list[str]:
    """Its words, and what is between them; a number, also at the end of a word, is `#`."""
    return [part for part in re.split(r"([#/._ -])", NUMBER.sub("#", name)) if part]
