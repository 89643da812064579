"""The report of a hang in words: which rank is behind, on which node, and what each of them is at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterdp.train.hang.behind import Behind
from clusterdp.train.hang.note import Note
from clusterdp.wording import counted, duration, some_of, table

MANY = 64  # ranks: of more, those that are at one place share a line


def sentence(behind: Behind, notes: Sequence[Note], node_of: Callable[[int], str]) -> str:
    """`rank 3 on n2: step 120, in backward; the others wait in step 121, in backward`."""
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
    """All of it: the sentence, a line a rank, the stacks of those that are behind, and of the others each once."""
    silent = max(note.silent_s for note in notes)
    lines = [f"No sign of progress for {duration(silent)}: {said}.", ""]
    lines += [*_lines(notes), ""]
    mine = [note for note in notes if note.rank in behind.ranks]
    for note in mine:
        lines += [f"--- rank {note.rank} on {note.node} (process {note.pid}) is behind", *_account(note), ""]
    for ranks, note in _alike([note for note in notes if note not in mine]):
        lines += [f"--- {named(ranks)}, as rank {note.rank} on {note.node} (process {note.pid})", *_account(note), ""]
    return "\n".join(lines)


def _lines(notes: Sequence[Note]) -> list[str]:
    rows = [("rank", "node", "at", "silent", "state", "cpu", "waits in the kernel for", "line")]
    shown = notes if len(notes) <= MANY else [note for _, note in _alike(notes)]
    for note in shown:
        cpu = f"{note.cpu_s:.1f} s" if note.cpu_s is not None else "?"
        row = (note.node, note.where, duration(note.silent_s), note.state or "?", cpu, note.wchan or "-", note.place)
        rows.append((str(note.rank), *row))
    lines = table(rows)
    if len(shown) < len(notes):
        lines.append(f"({counted(len(notes), 'rank')}; those that are at one place share a line.)")
    return lines


def _account(note: Note) -> list[str]:
    text = note.stack.strip() or f"no answer from it (state {note.state or 'unknown'})"
    return [*text.splitlines(), *note.children.splitlines()]


def _alike(notes: Sequence[Note]) -> list[tuple[list[int], Note]]:
    """Ranks that are at one place, with one of them, for each such place."""
    groups: dict[tuple[object, ...], list[Note]] = {}
    for note in notes:
        groups.setdefault((note.position, note.place, note.state, bool(note.stack)), []).append(note)
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
