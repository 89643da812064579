"""The table of `clusterdp list`. If the terminal is too narrow for all columns, only the most important columns are
shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterdp.operate.account.run_account import brief
from clusterdp.operate.output.formatting import Colour, ago, measured
from clusterdp.operate.output.terminal import printable, wide, wide_one
from clusterdp.operate.record.run_state import RunState

Summary = Mapping[str, Any]
GAP = 2
SHORTEST_NOTE = 12
SHORTEST_NAME = 8
ALWAYS = 8  # columns of this importance or more are always shown
LONGEST_METRIC = 24
MORE = "..."


@dataclass(frozen=True, eq=False)
class Column:
    """A column of the table of runs. If the terminal has no room for all columns, those with the highest `importance`
    are shown."""

    head: str
    importance: int
    cell: Callable[[Summary, float], str]


def _step(run: Summary, now: float) -> str:
    if run["step"] is None:
        return ""
    return f"{run['step']}/{run['total']}" if run["total"] else str(run["step"])


def _saved(run: Summary, now: float) -> str:
    return ago(run["saved_at"], now) if run["saved_at"] else ""


def _goodput(run: Summary, now: float) -> str:
    return "" if run["goodput"] is None else f"{100 * run['goodput']:.0f} %"


NAME = Column("run", 9, lambda run, now: run["run"])
STATE = Column("state", 8, lambda run, now: run["state"] + ("?" if run["as_recorded"] else ""))


def _note(run: Summary, now: float) -> str:
    """Returns the user's note, else the counts of a sweep, the run that this one follows, or that it was a profile."""
    has_words = run["elements"] or run["state"] == "done" or run["why"].startswith("after ")
    return run["note"] or (run["why"] if has_words else "")


STEP = Column("step", 7, _step)
MEASURED = Column("measured", 4, lambda run, now: cut(measured(run["metrics"], most=1), LONGEST_METRIC))
GOODPUT = Column("goodput", 1, _goodput)
NOTE = Column("note", 5, _note)
COLUMNS = (
    NAME,
    STATE,
    Column("attempt", 2, lambda run, now: str(run["attempt_number"] or "")),
    STEP,
    MEASURED,
    Column("left", 6, lambda run, now: "" if run["left_s"] is None else brief(run["left_s"])),
    GOODPUT,
    Column("saved", 3, _saved),
    NOTE,
)


def table(runs: Sequence[Summary], typed: Sequence[str], now: float, width: int, colour: Colour) -> list[str]:
    """Returns the lines of the table. `typed` has the word to type for each run. `width` is in columns of the
    terminal."""
    cells = {column: clean([column.cell(run, now) for run in runs]) for column in COLUMNS}
    cells[NAME] = clean(typed)
    needed = {column: max(len(column.head), widest(texts)) for column, texts in cells.items() if any(texts)}
    widths = fitted(needed, width, NOTE)
    columns = []
    for column in (column for column in COLUMNS if column in widths):
        head, *texts = padded([column.head, *cells[column]], widths[column])
        if column is STATE and colour.on:
            texts = [_coloured(text, run, colour) for text, run in zip(texts, runs, strict=True)]
        columns.append((head, texts))
    head = colour("dim", _row([head for head, _ in columns]))
    return [head, *map(_row, zip(*(texts for _, texts in columns), strict=True))]


def _coloured(text: str, run: Summary, colour: Colour) -> str:
    word = text.rstrip()
    return colour(RunState(run["state"]).colour, word) + text[len(word) :]


def fitted(needed: Mapping[Column, int], width: int, words: Column) -> dict[Column, int]:
    """Returns the columns to show, and their widths. The column `words` is narrowed first, but not below
    SHORTEST_NOTE."""
    room = width + GAP
    widths: dict[Column, int] = {}
    for column in sorted(needed, key=lambda column: column.importance, reverse=True):
        least = min(needed[column], SHORTEST_NOTE) if column is words else needed[column]
        if least + GAP <= room or column.importance >= ALWAYS:
            widths[column] = least
            room -= least + GAP
    if words in widths:
        widths[words] = min(needed[words], widths[words] + max(0, room))
    widths[NAME] = max(SHORTEST_NAME, widths[NAME] + min(0, room))
    return widths


def _row(cells: Sequence[str]) -> str:
    return (" " * GAP).join(cells).rstrip()


# One test of a whole column takes a tenth of the time that a test of each text would take.
def clean(texts: Sequence[str]) -> Sequence[str]:
    """Returns each text as one line, without control characters, because these would change the text's width."""
    if "".join(texts).isprintable():
        return texts
    return [text if text.isprintable() else " ".join(printable(text).split()) for text in texts]


def widest(texts: Sequence[str]) -> int:
    return max(map(len if "".join(texts).isascii() else wide, texts))


def padded(texts: Sequence[str], width: int) -> list[str]:
    if "".join(texts).isascii() and widest(texts) <= width:
        return [text.ljust(width) for text in texts]
    fits = [cut(text, width) for text in texts]
    return [text + " " * (width - wide(text)) for text in fits]


def cut(text: str, width: int) -> str:
    """Returns the beginning of the text that takes at most `width` columns of a terminal."""
    if wide(text) <= width:
        return text
    used, kept = 0, ""
    for letter in text:
        used += wide_one(letter)
        if used > width - len(MORE):
            break
        kept += letter
    return kept + MORE[:width]
