"""RunTable: the table of runs. Only the lines on the screen are drawn: with a DataTable, ten thousand runs take
seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import MouseScrollDown, MouseScrollUp, Resize
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from clusterdp.operate.account.run_account import brief
from clusterdp.operate.listing.columns import (
    GAP,
    GOODPUT,
    MEASURED,
    NAME,
    STATE,
    STEP,
    Column,
    Summary,
    clean,
    fitted,
    padded,
    widest,
)
from clusterdp.operate.listing.list_runs import OF_A_SWEEP
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.top.source import Source

WHEEL = 3  # lines that a turn of the wheel moves


def reason_of(run: Summary, now: float = 0.0) -> str:
    """Returns why a run waits or how it ended, and the user's note."""
    ended = run["ended"] if run["state"] != RunState.DONE.value else ""
    return "; ".join(filter(None, (run["why"] or ended, run["note"])))


def _age(run: Summary, now: float) -> str:
    return brief(max(1.0, now - run["submitted_at"])) if run["submitted_at"] else ""


HOST = Column("host", 9, lambda run, now: "")
AGE = Column("age", 6, _age)
REASON = Column("reason", 0, reason_of)  # the line below the table has it, too
COLUMNS = (HOST, NAME, STATE, STEP, MEASURED, AGE, GOODPUT, REASON)
ORDER = [state.value for state in (*OF_A_SWEEP, RunState.DONE)]
KEYS: Mapping[Column, Callable[[Row], Any]] = {
    HOST: lambda row: row.source.host,
    NAME: lambda row: row.cells[NAME],
    STATE: lambda row: ORDER.index(row.run["state"]),
    STEP: lambda row: -(row.run["step"] or -1),
    MEASURED: lambda row: row.cells[MEASURED],
    AGE: lambda row: -(row.run["submitted_at"] or 0),
    GOODPUT: lambda row: row.run["goodput"] or 2,  # the worst first
    REASON: lambda row: row.cells[REASON],
}


def bindings(text: str) -> list[BindingType]:
    """Returns the bindings that the words of the text are: keys and action, in turns."""
    words = text.split()
    return [Binding(keys, action, show=False) for keys, action in zip(words[::2], words[1::2], strict=True)]


@dataclass(frozen=True, eq=False)
class Row:
    """A run in the table. `cells` has the texts of COLUMNS; that of AGE is made anew when it is drawn."""

    source: Source
    run: Summary
    cells: Mapping[Column, str]
    text: str  # what the filter searches

    @classmethod
    def made(cls, source: Source, run: Summary, name: str, now: float) -> Row:
        cells = {column: column.cell(run, now) for column in COLUMNS} | {HOST: source.host or "here", NAME: name}
        cells = dict(zip(cells, clean([*cells.values()]), strict=True))
        return cls(source, run, cells, " ".join([*cells.values(), *run["jobs"]]).lower())

    @property
    def path(self) -> str:
        return str(self.run["run"])

    @property
    def key(self) -> tuple[str, str]:
        return self.source.host, self.path


class RunTable(Widget, can_focus=True):
    """The rows that the filter takes, sorted. A row stays selected while others come and go."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("""
        up,k move(-1)  pageup,ctrl+b page(-1)           home,g move(-1000000000)  s sort(False)  enter app.open
        down,j move(1)  pagedown,ctrl+f,space page(1)  end,G move(1000000000)  S sort(True)  escape app.all
        slash app.filter  q app.quit
    """)

    class Moved(Message):
        """Another row is selected, or the rows have changed."""

    def __init__(self, columns: Sequence[Column] = COLUMNS):
        super().__init__()
        self.columns = columns
        self.rows: Sequence[Row] = ()
        self.shown: list[Row] = []
        self.words = ""  # the filter: a row has all these words
        self.by = AGE
        self.reversed = False
        self.at = 0  # index of the selected row
        self._first = 0  # index of the row below the head
        self._widths: dict[Column, int] = {}

    @property
    def row(self) -> Row | None:
        return self.shown[self.at] if self.shown else None

    def show(self, rows: Sequence[Row] | None = None, words: str | None = None) -> None:
        """Shows other rows, or the rows with other words of the filter."""
        selected = self.row.key if self.row else None
        self.rows = self.rows if rows is None else rows
        self.words = self.words if words is None else words
        wanted = self.words.lower().split()
        self.shown = [row for row in self.rows if all(word in row.text for word in wanted)]
        self.shown.sort(key=KEYS[self.by], reverse=self.reversed)
        self.at = next((at for at, row in enumerate(self.shown) if row.key == selected), self.at)
        self._fit()
        self.action_move(0)

    def _fit(self) -> None:
        needed = {}
        for column in self.columns:
            texts = [row.cells[column] for row in self.shown]
            if any(texts) or column is NAME:
                needed[column] = widest([self._head(column), *texts])
        widths = fitted(needed, self.size.width, REASON)
        self._widths = {column: widths[column] for column in self.columns if column in widths}

    def _head(self, column: Column) -> str:
        return column.head + ("↑" if self.reversed else "↓") * (column is self.by)

    def on_resize(self, event: Resize) -> None:
        self._fit()
        self.action_move(0)

    def render_line(self, y: int) -> Strip:
        at, width = self._first + y - 1, self.size.width
        if y == 0:
            heads = {column: self._head(column) for column in self._widths}
            return self._strip(heads, Style(bold=True), {})
        if at >= len(self.shown):
            return Strip.blank(width)
        row = self.shown[at]
        cells = {**row.cells, AGE: AGE.cell(row.run, time.time())}
        selected = Style(reverse=True) if at == self.at else Style()
        return self._strip(cells, selected, {STATE: Style(color=RunState(row.run["state"]).colour)})

    def _strip(self, texts: Mapping[Column, str], style: Style, styles: Mapping[Column, Style]) -> Strip:
        cells = []
        for column, width in self._widths.items():
            text = padded([texts[column]], width)[0]
            cells += [Segment(text, style + styles.get(column, Style())), Segment(" " * GAP, style)]
        return Strip(cells).adjust_cell_length(self.size.width, style)

    def action_move(self, lines: int) -> None:
        self.at = min(max(0, self.at + lines), max(0, len(self.shown) - 1))
        room = max(1, self.size.height - 1)
        self._first = min(max(self._first, self.at - room + 1), self.at, max(0, len(self.shown) - room))
        self.refresh()
        self.post_message(self.Moved())

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.size.height - 2))

    def action_sort(self, reverse: bool) -> None:
        """Sorts by the next column, or the other way round."""
        columns = [*self._widths]
        if not reverse:
            self.by = columns[(columns.index(self.by) + 1) % len(columns) if self.by in columns else 0]
        self.reversed = reverse and not self.reversed
        self.show()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.action_move(WHEEL)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.action_move(-WHEEL)
