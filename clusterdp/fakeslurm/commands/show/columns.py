"""Tables in the format that the options of squeue and sinfo describe: `-o '%.8i %t'`, `-O Name:10,State`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
LONG_WIDTH = 20  # default width of a column of -O


@dataclass(frozen=True)
class PrintField(Generic[T]):
    title: str
    value: Callable[[T], str]
    kept: str = ""  # a mark at the end of the value that stays when the value is cut to the column's width


@dataclass(frozen=True)
class Cell:
    """One column of a format: the field with this key, or plain text if no field has the key."""

    key: str
    width: int = 0
    right: bool = False
    after: str = ""

    @property
    def form(self) -> str:
        """The column's format for the % operator, which is faster than `fit`: 10,000 jobs have 100,000 cells."""
        size = f"{'' if self.right else '-'}{self.width}.{self.width}" if self.width else ""
        return f"%{size}s" + self.after.replace("%", "%%")

    def fit(self, text: str, kept: str = "") -> str:
        if self.width:
            cut = len(text) > self.width and kept and text.endswith(kept)
            text = text[: self.width - 1] + kept if cut else text[: self.width]
            text = text.rjust(self.width) if self.right else text.ljust(self.width)
        return text + self.after


def parse_short(text: str) -> tuple[str, list[Cell]]:
    """Parses `-o`. Returns the text before the first field, and the fields with the text after each."""
    pieces = re.split(r"%+(\.?)(\d*)([a-zA-Z !-$&-/:-@\[-`{-~]?)", text)
    first, cells = pieces[0], []
    for i in range(1, len(pieces), 4):
        dot, width, letter, after = pieces[i : i + 4]
        cells.append(Cell(letter, int(width or 0), bool(dot), after))
    return first, cells


def parse_long(text: str) -> list[Cell]:
    """Parses `-O Name,State:10,Nodes:.5,User:|`. After a colon come a dot (right-aligned), a width, and the text that
    follows the column."""
    cells = []
    for part in text.split(","):
        name, colon, rest = part.partition(":")
        match = re.fullmatch(r"(\.?)(\d*)(.*)", rest)
        assert match
        width = int(match[2]) if match[2] else (0 if colon else LONG_WIDTH)
        cells.append(Cell(name.lower().replace("-", "").replace("_", ""), width, bool(match[1]), match[3]))
    return cells


def misspelt(text: str, dashed: str) -> set[str]:
    """Returns the keys of fields that a format of -O writes with other dashes than Slurm. `dashed`: the fields that
    Slurm writes with dashes."""
    written = {part.partition(":")[0].lower() for part in text.split(",")} - set(dashed.split())
    plain = {re.sub("[-_]", "", word) for word in dashed.split()}
    return {re.sub("[-_]", "", word) for word in written if re.search("[-_]", word) or word in plain}


def render(
    first: str,
    cells: list[Cell],
    fields: dict[str, PrintField[T]],
    rows: list[T],
    header: bool,
    complain: Callable[[str], str],
) -> list[str]:
    """Returns the table's lines. `complain` reports an unknown key and returns the text that replaces the key."""
    parts: list[tuple[Cell, PrintField[T] | None, str]] = []
    for cell in cells:
        field = fields.get(cell.key)
        parts.append((cell, field, "" if field else complain(cell.key)))
    lines = []
    if header:
        lines.append(first + "".join(cell.fit(f.title) if f else text + cell.after for cell, f, text in parts))
    form, values = first.replace("%", "%%"), []
    for cell, field, text in parts:
        if field and not field.kept:
            form += cell.form
            values.append(field.value)
        else:
            form += "%s"
            values.append(_whole(cell, field, text + cell.after))
    return lines + [form % tuple([value(row) for value in values]) for row in rows]


def _whole(cell: Cell, field: PrintField[T] | None, text: str) -> Callable[[T], str]:
    """Returns the function that formats a cell which the % operator cannot format."""
    return lambda row: cell.fit(field.value(row), field.kept) if field else text
