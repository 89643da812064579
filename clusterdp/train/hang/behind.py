"""Which ranks are behind, from the notes of all watchers.

What tells, in this order:

    stopped     a process is stopped, and not all are
    absent      a rank has no note: it has ended, or its node does not answer
    position    steps and phases differ: the least is behind. Of ranks within and outside of the loop, the fewer
    waiting     most wait in a collective, and these do not
    places      all wait, at different lines: those that most ranks are not at
    nothing     all are at one place

In data-parallel training all other ranks wait for those, soon after. If all processes are stopped, somebody has
suspended the job, and nothing has happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clusterdp.train.hang.note import Note
from clusterdp.train.hang.phases import END, PROGRAM


@dataclass(frozen=True)
class Behind:
    """ranks: those that are behind; empty if nothing tells. why: of the words above, or `suspended`."""

    ranks: tuple[int, ...]
    why: str

    def among(self, notes: Sequence[Note]) -> Sequence[Note]:
        """Those of the ranks that are behind; all if none of them has left one."""
        return [note for note in notes if note.rank in self.ranks] or notes

    def nobody_works(self, notes: Sequence[Note]) -> bool:
        """All wait for each other, at different places: whatever they are at, it cannot end."""
        mine = self.among(notes)
        others = [note for note in notes if note not in mine]
        waiting = all(note.surely_waits or (note.waits and not note.may_take_long) for note in others)
        return self.why != "nothing" and waiting and all(note.surely_waits for note in mine)

    def may_end(self, notes: Sequence[Note]) -> bool:
        """Whether what the ranks behind are at may take long, and end by itself."""
        return any(note.may_take_long for note in self.among(notes)) and not self.nobody_works(notes)

    def is_hang(self, notes: Sequence[Note]) -> bool:
        """Whether the silence is longer than what those ranks are at may take."""
        if self.why == "suspended" or all(note.order == END for note in notes):
            return False  # at the end rank 0 may wait for room on the disk
        mine = self.among(notes)
        if self.nobody_works(notes):
            return True
        if self.why in ("nothing", "places") and any(note.may_take_long for note in mine):
            return False  # they do not wait for each other, and may take as long as they like
        return all(note.silent_s >= note.limit_s for note in mine)


def find_behind(notes: Sequence[Note], world_size: int) -> Behind:
    """notes: of all ranks that are silent, one or more."""
    stopped = tuple(note.rank for note in notes if note.is_stopped)
    absent = tuple(sorted(set(range(world_size)) - {note.rank for note in notes}))
    if stopped and len(stopped) == world_size:
        return Behind((), "suspended")
    if stopped:
        return Behind(stopped, "stopped")
    if absent:
        return Behind(absent, "absent")
    if len({note.position for note in notes}) > 1:
        return Behind(_last(notes), "position")
    idle = tuple(note.rank for note in notes if not note.waits)
    if 0 < len(idle) <= len(notes) / 2:
        return Behind(idle, "waiting")
    return _by_place(notes)


def _last(notes: Sequence[Note]) -> tuple[int, ...]:
    outside = [note for note in notes if note.order in (PROGRAM, END)]
    if outside and 2 * len(outside) > len(notes):
        return tuple(note.rank for note in notes if note not in outside) or _least(notes)
    return _least(notes)


def _least(notes: Sequence[Note]) -> tuple[int, ...]:
    last = min(note.position for note in notes)
    return tuple(note.rank for note in notes if note.position == last)


def _by_place(notes: Sequence[Note]) -> Behind:
    places = Counter(note.place for note in notes)
    if len(places) < 2:
        return Behind((), "nothing")
    most, count = places.most_common(1)[0]
    if 2 * count <= len(notes):  # no majority: nobody can say which of them is right
        return Behind((), "places")
    return Behind(tuple(note.rank for note in notes if note.place != most), "places")
