"""SaveShape: the file operations of a program's save, learned from the events of an undisturbed run.

A kill can come before each event, between the first and the last byte of a file that is written, and after the last
event. The parts of file names are learned, too: a part that occurs in several saves is fixed, any other part is random.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterdp.fakeslurm.core.file_traps import BYTES, DELETE, LINK, RENAME, WRITE
from clusterdp.rehearse.observe.file_events import NAMELESS, FileEvent
from clusterdp.rehearse.observe.file_use import ONE_SAVE_S, is_best, is_checkpoint
from clusterdp.rundir import RunDir

BEFORE, FIRST_BYTES, MIDDLE, AFTER = "before", "first bytes", "middle", "after"
POINTER = 4096  # maximum size of a pointer file in bytes
FEW, MOST = 5, 10  # usual and maximum default number of strikes, because each strike costs a start of the job
SAME_STEP_S = 2.0  # longest time between two events of one save, if no step was printed meanwhile
RANDOM = re.compile(r"[#_]*\*[#*_]*")
PROBE = re.compile(r"/tmp/[a-z0-9_]{8}$")  # Python's tempfile writes and deletes such a file to test the folder
NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+|\d+(?![A-Za-z0-9])")


@dataclass(frozen=True)
class Strike:
    """A moment of a save at which a drill can kill the ranks."""

    kind: str  # the event's
    path: str  # the key of the event's path (see SaveShape.key)
    to: str  # the key of the event's second path, if it has two
    when: str  # BEFORE or AFTER the event, or at the FIRST_BYTES or in the MIDDLE of the written file
    rank: int | None = None  # the only rank that is killed; None: all ranks
    # Whether a kill leaves an incomplete file under its final name, or comes between two changes of final names.
    is_fatal: bool = False


@dataclass(frozen=True)
class SaveShape:
    """The file operations that each save of a program makes."""

    words: tuple[str, ...] = ()  # the parts of file names that are the same in all saves
    strikes: tuple[Strike, ...] = ()  # all moments of a save at which a kill is possible, in order
    sizes: Mapping[str, int] = field(default_factory=dict)  # by key: the smallest size of a file that is not text
    pointers: tuple[str, ...] = ()  # names of files and links that name the checkpoint to resume from

    def key(self, name: str) -> str:
        """Returns the same key for all names of a file in different saves: `#` stands for a number, `*` for a random
        part."""
        parts = (part if part in self.words or not part.isalnum() else "*" for part in _parts(name))
        return RANDOM.sub("*", "".join(parts))

    def is_at(self, strike: Strike, event: FileEvent) -> bool:
        """Whether the event belongs to this strike. `event`: an event with names from own_name() as paths. A file that
        stays open over several saves has no other event than the calls that write its bytes."""
        kind = WRITE if event.kind == BYTES and strike.when == MIDDLE else event.kind
        here = (kind, self.key(event.path), self.key(event.to))
        is_hit = strike.rank in (None, event.rank)
        return is_hit and not event.appends and here == (strike.kind, strike.path, strike.to)

    def is_state(self, name: str) -> bool:
        """Whether a save writes this file, and the file is not text. If the program writes only text files, text files
        count."""
        key = self.key(name)
        return (key in self.sizes or not self.sizes) and any(key in (each.path, each.to) for each in self.strikes)

    def few(self) -> tuple[Strike, ...]:
        """Returns the fatal strikes, at most MOST, and others until there are FEW, those at a deletion last.

        FIRST_BYTES is left out, because its result is like MIDDLE's.
        """
        fatal = _spread([each for each in self.strikes if each.is_fatal], MOST)
        others = [each for each in self.strikes if not each.is_fatal and each.when != FIRST_BYTES]
        for is_deletion in (False, True):
            fatal += _spread([each for each in others if (each.kind == DELETE) is is_deletion], FEW - len(fatal))
        return tuple(each for each in self.strikes if each in fatal)

    def in_both(self, other: SaveShape) -> SaveShape:
        """Returns this shape with only the words that another run has too, because other words of a name are random."""
        both = SaveShape(tuple(word for word in self.words if word in other.words))
        strikes = (replace(each, path=both.key(each.path), to=both.key(each.to)) for each in self.strikes)
        sizes = {both.key(key): size for key, size in sorted(self.sizes.items(), key=lambda item: -item[1])}
        pointers = tuple(name for name in self.pointers if name in other.pointers)
        return replace(both, strikes=tuple(dict.fromkeys(strikes)), sizes=sizes, pointers=pointers)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SaveShape:
        strikes = tuple(Strike(**strike) for strike in values["strikes"])
        return cls(tuple(values["words"]), strikes, values["sizes"], tuple(values["pointers"]))


def _spread(strikes: list[Strike], most: int) -> list[Strike]:
    """Returns at most `most` of these strikes, spread over the save."""
    if len(strikes) <= most:
        return strikes
    return [strikes[round(i * (len(strikes) - 1) / max(1, most - 1))] for i in range(max(0, most))]


def own_name(run: RunDir, path: str) -> str:
    """Returns the name of a program's file: its path below the run folder, or for a file elsewhere its absolute path.

    Returns "" for a file that is not the program's: the run's records, libraries and their caches.
    """
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
    """Whether the program may resume from this file: a save writes the file, or it has the name of a checkpoint.

    `path`: relative to the working folder, or absolute.
    """
    return is_checkpoint(path) or shape.is_state(own_name(run, str(run.code / path)))


def named(run: RunDir, event: FileEvent) -> FileEvent | None:
    """Returns the event with names from own_name() as paths, or None if its file is not the program's."""
    path, to = own_name(run, event.path), own_name(run, event.to) if event.to else ""
    if event.to and not (path and to):  # a move from a library's folder, or a link into it
        path, to = path or (to and event.path), to or event.to
    return replace(event, path=path, to=to) if path else None


def with_pointers(shape: SaveShape, events: Iterable[FileEvent], run: RunDir) -> SaveShape:
    """Returns the shape with the pointer files that the run has left.

    `events`: in order, with names from own_name() as paths.
    """
    events = [*events]
    written = {part for event in events if shape.key(event.path) in shape.sizes for part in Path(event.path).parts}
    ours = {part for part in written if any(letter in shape.key(part) for letter in "#*")}  # names of one save only
    fixed = dict.fromkeys(name for event in events if shape.key(name := event.to or event.path) == name)
    texts = {name: _pointed(run.path / name) for name in fixed}
    return replace(shape, pointers=tuple(name for name in fixed if any(_names(texts[name], part) for part in ours)))


def _names(text: str, part: str) -> bool:
    """Whether a text has a name, or is the begin of a name that several files of a save have."""
    begin = text.strip()
    return part in text or (len(begin) > 3 and re.search(r"\d", begin) is not None and part.startswith(begin))


def with_open_files(shape: SaveShape, names: Iterable[str]) -> SaveShape:
    """Returns the shape with a strike at each of these files, which stay open, unless it has one."""
    known = {strike.path for strike in shape.strikes}
    keys = dict.fromkeys(key for key in map(shape.key, names) if key not in known)
    return replace(shape, strikes=(*shape.strikes, *(Strike(WRITE, key, "", MIDDLE, is_fatal=True) for key in keys)))


def _pointed(path: Path) -> str:
    """Returns the target of a link, or the text of a small file."""
    with suppress(OSError, ValueError):
        if path.is_symlink():
            return os.readlink(path)
        if path.stat().st_size <= POINTER:
            return path.read_text()
    return ""


def pointed_at(shape: SaveShape, events: Iterable[FileEvent], run: RunDir) -> tuple[float, ...]:
    """Returns the times at which a pointer file was written, in seconds since 1970. `events`: of any run of the
    program."""
    return tuple(event.at for event in events if own_name(run, event.to or event.path) in shape.pointers)


def learn(events: Iterable[FileEvent], binary: Mapping[str, int]) -> SaveShape:
    """Returns the shape of a program's saves.

    `events`: in order, with names from own_name() as paths. `binary`: sizes of the written files that are not text, by
    name.
    """
    saves = _saves(events, binary)
    shape = SaveShape(_fixed_words(saves))
    # The last save may have files of the run's end, and the first save has no older file to delete.
    kinds_of = [tuple(_kinds(save, shape)) for save in saves[: -1 if len(saves) > 2 else None]]
    kinds = max(kinds_of, key=lambda kinds: (kinds_of.count(kinds), len(kinds)), default=())
    sizes: dict[str, int] = {}
    renames = {event.path: event.to for save in saves for event in save if event.kind in (RENAME, LINK)}
    # A file counts under its new name, too, because a move to another disk writes a copy under the new name.
    moved = {renames[name]: size for name, size in binary.items() if name in renames}
    for name, size in (*binary.items(), *moved.items()):
        key = shape.key(name)
        sizes[key] = min(size, sizes.get(key, size))
    strikes = _strikes(kinds)
    return replace(shape, strikes=(*strikes, *_alone(strikes, saves, shape)[:1]), sizes=sizes)


def _alone(strikes: Sequence[Strike], saves: Sequence[Sequence[FileEvent]], shape: SaveShape) -> list[Strike]:
    """Returns the strikes at one rank: ranks that do not finish the saves come first, because another rank may finish a
    save without their files."""
    last = Counter(save[-1].rank for save in saves).most_common(1)
    writers = {(event.rank, shape.key(event.path)) for save in saves for event in save if event.kind == WRITE}
    found = [
        replace(each, rank=rank, is_fatal=True)
        for each in strikes
        for rank, path in sorted(writers)
        if each.when == MIDDLE and each.path == path
    ]
    return sorted(found, key=lambda each: each.rank == last[0][0])


def _saves(events: Iterable[FileEvent], binary: Collection[str]) -> list[list[FileEvent]]:
    """Returns the groups of events that write a file which is not text.

    If the program writes only text, returns all groups that write. A group that writes only a best model counts only if
    no other group writes.
    """
    groups = _grouped(events)
    written = [{event.path for event in group if event.kind == WRITE} for group in groups]
    states = [paths & set(binary) for paths in written]
    usual = [{path for path in paths if not is_best(path)} for paths in states]
    wanted = next((each for each in (usual, states, written) if any(each)), written)
    return [group for group, paths in zip(groups, wanted, strict=True) if paths]


def save_until(events: Sequence[FileEvent]) -> list[FileEvent]:
    """Returns the events of the save to which the last event belongs. `events`: with names from own_name() as paths."""
    return next(group for group in _grouped(events) if group[-1] is events[-1])


def _grouped(events: Iterable[FileEvent]) -> list[list[FileEvent]]:
    """Returns the events grouped by save.

    An event that follows another event soon, at the same step, belongs to the same save; if the step is not known, or
    the file was written in this save before, very soon. A later event, which comes
    from a save in the background, belongs to the save that first wrote its file, or if the folder belongs to one save,
    first wrote in its folder.
    """
    groups: list[list[FileEvent]] = []
    current: list[FileEvent] = []
    of_file: dict[str, list[FileEvent]] = {}  # by file or folder: the group of events that wrote it
    for event in events:
        last = current[-1] if current else None
        again = event.kind == WRITE and any(event.path == each.path for each in current)
        longest_s = SAME_STEP_S if last and last.step and not again else ONE_SAVE_S
        if not last or event.at - last.at > longest_s or event.step != last.step > 0:
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
    """Returns a file's folder if the folder's name has a digit, else the file's path, because other folders may have
    many saves."""
    folder = path.rpartition("/")[0]
    return folder if any(letter.isdigit() for letter in folder.rpartition("/")[2]) else path


def _fixed_words(saves: Sequence[Sequence[FileEvent]]) -> tuple[str, ...]:
    """Returns the parts of file names that several saves have written, or all parts if there is only one save."""
    found: dict[str, set[int]] = defaultdict(set)
    for number, save in enumerate(saves):
        for event in save:
            if event.kind != DELETE:  # a deleted file belongs to an earlier save
                for part in (*_parts(event.path), *_parts(event.to)):
                    found[part].add(number)
    return tuple(sorted(part for part, numbers in found.items() if len(numbers) > 1 or len(saves) == 1))


def _kinds(save: Sequence[FileEvent], shape: SaveShape) -> list[tuple[str, str, str]]:
    """Returns the different kinds of events of a save, from the first file that is written or deleted.

    Events of a best model are left out, because a best model may never be written again.
    """
    events = [event for event in save if not is_best(event.path)] or save
    first = next((i for i, event in enumerate(events) if event.kind in (WRITE, DELETE)), 0)
    return [*dict.fromkeys((event.kind, shape.key(event.path), shape.key(event.to)) for event in events[first:])]


def _strikes(kinds: Sequence[tuple[str, str, str]]) -> tuple[Strike, ...]:
    strikes = []
    passing = {path for kind, path, _ in kinds if kind in (RENAME, LINK)}  # files under a temporary name
    changes = False  # whether a file's final name was changed before
    for number, (kind, path, to) in enumerate(kinds):
        is_final = kind == DELETE or path not in passing or kind in (RENAME, LINK)
        if number:  # before the first event, the save has not begun: no strike
            strikes.append(Strike(kind, path, to, BEFORE, is_fatal=changes and is_final and kind != DELETE))
        if kind == WRITE and not path.endswith(f"/{NAMELESS}"):
            strikes += [Strike(kind, path, to, FIRST_BYTES), Strike(kind, path, to, MIDDLE, is_fatal=is_final)]
        changes |= is_final
    if kinds and kinds[-1][0] != WRITE:  # after a last written file, a kill would come between two saves
        strikes.append(Strike(*kinds[-1], AFTER))
    return tuple(strikes)


def _parts(name: str) -> list[str]:
    """Returns the words of a name and the separators between them. A number, even at the start or end of a word,
    becomes `#`."""
    return [part for part in re.split(r"([#/._ -])", NUMBER.sub("#", name)) if part]
