"""Decision: whether the silence of ranks is a hang, from their notes, in the agent of the root.

the first rank's note        (of the ranks with a note) waits for the others' notes, as old as its own; if they show
                             a hang, writes the report, the event `hang`, and some lines to the log of rank 0
its second note, after       writes the file `hung`, and ends all ranks; with on_hang: restart already at the
twice hang_after_s           report, with on_hang: report never
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterdp.rundir import Ledger, RunDir, write_durably
from clusterdp.slurm import hostlist
from clusterdp.train.hang.note import Note
from clusterdp.train.hang.page import END, PROGRAM
from clusterdp.train.hang.watched_rank import DUMP_S, WatchOrder
from clusterdp.wording import counted, duration, some_of, table

MANY = 64  # in a report with more ranks than this, ranks at the same place share a line


class Decision:
    """order: of any rank of the root's node. say: prints a line to the log of rank 0. end: kills all ranks, with the
    reason. look() is called each pause_s."""

    def __init__(
        self,
        order: WatchOrder,
        say: Callable[[str], None],
        end: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.order, self.say, self.end, self.clock = order, say, end, clock
        self._run = RunDir(Path(order.run_dir))
        self._attempt = self._run.attempt(order.attempt)
        self._notes: dict[int, Note] = {}
        self._noted = 0.0  # when the first rank's note came
        self._at: float | None = None  # time of the decision
        self._reported: Behind | None = None

    def take(self, rank: int, note: Note | None) -> None:
        """Takes the note of a silent rank; None if it makes progress again."""
        if note is None:
            self._notes.pop(rank, None)
            return
        if not self._notes:
            with suppress(OSError):  # the batch program gives the ranks more time to end if the folder exists
                self._attempt.hang_folder.mkdir(parents=True, exist_ok=True)
        self._notes[rank] = note
        if rank == min(self._notes):
            self._noted = self.clock()
            self._at = self._noted if rank == 0 else self._noted + 2 * _patience_s(note, self.order)

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next look; None if no decision is due."""
        return None if self._at is None else max(0.0, self._at - self.clock())

    def look(self) -> None:
        """Decides whether the silence is a hang, when all notes have come, or after a while."""
        now = self.clock()
        if self._at is None or now < self._at:
            return
        self._at = None
        if not self._notes:
            return
        notes = [self._notes[rank] for rank in sorted(self._notes)]
        first = notes[0]
        complete = len(notes) == self.order.world_size and all(note.round >= first.round for note in notes)
        if not complete and now - self._noted < _patience_s(first, self.order):
            self._at = now + min(5.0, max(0.1, first.hang_after_s / 40))
            return
        behind = find_behind(notes, self.order.world_size)
        if not behind.is_hang(notes):
            return
        ends = self._ends(behind, notes)
        if ends or self._reported != behind:
            self._report(behind, notes, ends)
        if ends:
            self.end(f"the attempt has hung{self._see()}")

    def _ends(self, behind: Behind, notes: list[Note]) -> bool:
        """Returns whether the attempt ends now, because of the hang."""
        if self.order.on_hang is not None:
            return self.order.on_hang == "restart"
        return self._reported is not None and not behind.may_end(notes)  # the hang was reported hang_after_s ago

    def _report(self, behind: Behind, notes: list[Note], ends: bool) -> None:
        first, self._reported = self._reported != behind, behind
        nodes = {note.rank: note.node for note in notes}
        said = sentence(behind, notes, lambda rank: nodes.get(rank) or self._node_of(rank))
        where = " ".join(dict.fromkeys(nodes.get(rank) or self._node_of(rank) for rank in behind.ranks))
        try:
            write_durably(self._attempt.hang, full_text(said, notes, behind))
            write_durably(self._attempt.hang_nodes, where + "\n")
            if first:
                self._write_event(behind, notes, where, said)
            if ends:
                write_durably(self._attempt.hung, where + "\n")
        except OSError as error:
            self.say(f"clusterdp: {self._attempt.path}: {error.strerror}. What it lacks of the hang is in this log.")
        self.say(f"clusterdp: no sign of progress for {notes[0].silent_s:.0f} s: {said}.")
        self.say(f"clusterdp: stacks and states of all ranks: {self._attempt.hang}")
        if not ends:
            self.say(f"clusterdp: {self._what_next(behind, notes)}")

    def _write_event(self, behind: Behind, notes: list[Note], where: str, said: str) -> None:
        mine = behind.among(notes)
        about = {"step": min(note.step for note in mine), "phase": mine[0].phase, "reason": said}
        Ledger(self._run, self.order.attempt, "hang").write("hang", ranks=list(behind.ranks), nodes=where, **about)

    def _what_next(self, behind: Behind, notes: list[Note]) -> str:
        if self.order.on_hang == "report" or behind.may_end(notes):
            return f"the attempt goes on until a collective has waited {self.order.timeout_s:.0f} s (train.timeout_s)"
        return f"the attempt ends as hung if that lasts for {notes[0].hang_after_s:.0f} s more (restart.on_hang)"

    def _node_of(self, rank: int) -> str:
        """Returns the node of a rank that has left no note."""
        nodes = hostlist.expand(self.order.nodelist)
        place = rank // self.order.local_world_size
        return nodes[place] if place < len(nodes) else "an unknown node"

    def _see(self) -> str:
        return f"; see {self._attempt.hang}" if self._attempt.hang.exists() else ""  # the report may be missing


def _patience_s(note: Note, order: WatchOrder) -> float:
    """Seconds to wait for missing notes. Without restart.hang_after_s, each watcher derives its limit from the step
    times of its own rank; therefore one watcher may send its note later than another."""
    return max(3.0 + DUMP_S, note.hang_after_s / (2 if order.hang_after_s is None else 20))  # stacks may take 2 s


def sentence(behind: Behind, notes: Sequence[Note], node_of: Callable[[int], str]) -> str:
    """Returns, for example, `rank 3 on n2: step 120, in backward; the others wait in step 121, in backward`."""
    mine = [note for note in notes if note.rank in behind.ranks]
    others = [note for note in notes if note.rank not in behind.ranks]
    if not behind.ranks:
        if behind.why == "places":
            return "the ranks are at different places: " + "; ".join(_by_place(notes))
        who = "all ranks are at one place" if len(notes) > 1 else f"rank 0 on {node_of(0)}"
        return f"{who}: {_all_where(notes)}{_at(notes[0])}"
    words = f"{named(behind.ranks)} on {some_of(list(dict.fromkeys(map(node_of, behind.ranks))))}: "
    if not mine:
        words += "no answer (it has ended, or its node is cut off)"
    else:
        words += _all_where(mine)
        words += ", stopped (by SIGSTOP or a debugger)" if behind.why == "stopped" else _at(mine[0])
    if others:
        words += f"; the others wait in {_all_where(others)}{_at(others[0]) if behind.why == 'places' else ''}"
    return words


def named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + some_of([str(rank) for rank in ranks])


def full_text(said: str, notes: Sequence[Note], behind: Behind) -> str:
    """Returns the report: the sentence, a line per rank, the stacks of the ranks behind, and each different stack of
    the others once."""
    silent = max(note.silent_s for note in notes)
    lines = [f"No sign of progress for {duration(silent)}: {said}.", ""]
    lines += [*_lines(notes), ""]
    mine = [note for note in notes if note.rank in behind.ranks]
    for note in mine:
        lines += [f"--- rank {note.rank} on {note.node} (process {note.pid}) is behind", *_account(note), ""]
    for ranks, note in _alike([note for note in notes if note not in mine]):
        lines += [f"--- {named(ranks)}, as rank {note.rank} on {note.node} (process {note.pid})", *_account(note), ""]
    if any(note.collective for note in notes):
        lines.append(
            "One rank of each node has its last collectives in hang/flight-record-NODE.pickle (flight recorder)."
        )
    return "\n".join(lines)


def _lines(notes: Sequence[Note]) -> list[str]:
    rows = [("rank", "node", "at", "silent", "state", "cpu", "waits in the kernel for", "line", "last collective")]
    shown = notes if len(notes) <= MANY else [note for _, note in _alike(notes)]
    for note in shown:
        cpu = f"{note.cpu_s:.1f} s" if note.cpu_s is not None else "?"
        row = (note.node, note.where, duration(note.silent_s), note.state or "?", cpu, note.wchan or "-", note.place)
        last = f"{note.collective} ({'pending' if note.pending else 'done'})" if note.collective else ""
        rows.append((str(note.rank), *row, last))
    lines = table(rows if any(note.collective for note in notes) else [row[:-1] for row in rows])
    if len(shown) < len(notes):
        lines.append(f"({counted(len(notes), 'rank')}; those that are at one place share a line.)")
    return lines


def _account(note: Note) -> list[str]:
    text = note.stack.strip() or f"no answer from it (state {note.state or 'unknown'})"
    return [*text.splitlines(), *note.children.splitlines()]


def _alike(notes: Sequence[Note]) -> list[tuple[list[int], Note]]:
    """Returns (ranks, the note of one of them) for each group of ranks at the same place."""
    groups: dict[tuple[object, ...], list[Note]] = {}
    for note in notes:
        key = (note.position, note.place, note.state, bool(note.stack), note.collective, note.pending)
        groups.setdefault(key, []).append(note)
    return [([note.rank for note in group], group[0]) for group in groups.values()]


def _by_place(notes: Sequence[Note]) -> list[str]:
    places: dict[str, list[int]] = {}
    for note in notes:
        places.setdefault(f"{note.where}{_at(note)}", []).append(note.rank)
    return [f"{named(ranks)} in {place}" for place, ranks in places.items()]


def _all_where(notes: Sequence[Note]) -> str:
    places = list(dict.fromkeys(note.where for note in notes))
    return some_of(places, 3, " and")


def _at(note: Note) -> str:
    return f" ({note.place})" if note.place else ""


@dataclass(frozen=True)
class Behind:
    """ranks: the ranks behind; empty if unknown. why: the reason, as a word that find_behind() chooses."""

    ranks: tuple[int, ...]
    why: str

    def among(self, notes: Sequence[Note]) -> Sequence[Note]:
        """Returns the notes of the ranks behind, or all notes if these ranks have left none."""
        return [note for note in notes if note.rank in self.ranks] or notes

    def nobody_works(self, notes: Sequence[Note]) -> bool:
        """Returns whether all ranks wait for each other at different places: such a wait cannot end."""
        mine = self.among(notes)
        others = [note for note in notes if note not in mine]
        waiting = all(note.surely_waits or (note.waits and not note.may_take_long) for note in others)
        return self.why != "nothing" and waiting and all(note.surely_waits for note in mine)

    def may_end(self, notes: Sequence[Note]) -> bool:
        """Returns whether the ranks behind are in a phase that may take long and end by itself."""
        return any(note.may_take_long for note in self.among(notes)) and not self.nobody_works(notes)

    def is_hang(self, notes: Sequence[Note]) -> bool:
        """Returns whether the silence is longer than the phase of the ranks behind may take."""
        if self.why == "suspended" or all(note.order == END for note in notes):
            return False  # at the end of a run, rank 0 may wait for room on the disk
        mine = self.among(notes)
        if self.nobody_works(notes):
            return True
        if self.why in ("nothing", "places") and any(note.may_take_long for note in mine):
            return False  # these ranks do not wait for each other, and their phase has no time limit
        return all(note.silent_s >= note.limit_s for note in mine)


def find_behind(notes: Sequence[Note], world_size: int) -> Behind:
    """Finds the ranks that are behind. notes: the notes of all silent ranks, at least one."""
    stopped = tuple(note.rank for note in notes if note.is_stopped)
    absent = tuple(sorted(set(range(world_size)) - {note.rank for note in notes}))
    if stopped and len(stopped) == world_size:
        return Behind((), "suspended")
    if stopped:
        return Behind(stopped, "stopped")
    if absent:
        return Behind(absent, "absent")
    if found := _by_collectives(notes):
        return Behind(found, "collective")
    if len({note.position for note in notes}) > 1:
        return Behind(_last(notes), "position")
    idle = tuple(note.rank for note in notes if not note.waits)
    if 0 < len(idle) <= len(notes) / 2:
        return Behind(idle, "waiting")
    return _behind_by_place(notes)


def _by_collectives(notes: Sequence[Note]) -> tuple[int, ...]:
    """Returns the ranks for which the others wait in a collective: ranks that have done all of their collectives and do
    not wait, else the ranks whose collective the others lack. Returns no rank if a flight record is missing, or if
    all ranks are in collectives."""
    if any(note.pending is None for note in notes):
        return ()
    done = [note for note in notes if not note.pending]
    late = [note.rank for note in done if not note.surely_waits]
    return tuple(late or [note.rank for note in notes if note.pending]) if 0 < len(done) < len(notes) else ()


def _last(notes: Sequence[Note]) -> tuple[int, ...]:
    outside = [note for note in notes if note.order in (PROGRAM, END)]
    if outside and 2 * len(outside) > len(notes):
        return tuple(note.rank for note in notes if note not in outside) or _least(notes)
    return _least(notes)


def _least(notes: Sequence[Note]) -> tuple[int, ...]:
    last = min(note.position for note in notes)
    return tuple(note.rank for note in notes if note.position == last)


def _behind_by_place(notes: Sequence[Note]) -> Behind:
    places = Counter(note.place for note in notes)
    if len(places) < 2:
        return Behind((), "nothing")
    most, count = places.most_common(1)[0]
    if 2 * count <= len(notes):  # no place has a majority of the ranks, so the right place is unknown
        return Behind((), "places")
    return Behind(tuple(note.rank for note in notes if note.place != most), "places")
