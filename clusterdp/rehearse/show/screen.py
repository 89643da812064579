"""The screen of a rehearsal while it runs: on a terminal, a table that is updated; elsewhere, a line for each run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from clusterdp.operate.output.formatting import is_terminal
from clusterdp.operate.output.terminal import printable, underlying
from clusterdp.rehearse.judge.verdict import BAD, FAILED, INAPPLICABLE, LOST_WORK, NOT_LANDED, PASSED, SHORT, UNKNOWN
from clusterdp.wording import duration

if TYPE_CHECKING:
    from rich.live import Live

STYLES = {
    PASSED: "green",
    FAILED: "bold red",
    LOST_WORK: "bold red",
    INAPPLICABLE: "dim",
    NOT_LANDED: "yellow",
    "": "cyan",
}
WORDS = {**SHORT, "": "done"}
EVERY_S = 0.2
BESIDE = 22  # columns that a row needs besides its name and text: for `not landed`, `12:34`, and gaps


@dataclass
class Row:
    name: str
    about: str
    began: float | None = None
    step: int | None = None
    doing: str = ""
    verdict: str | None = None
    said: str = ""
    took_s: float = 0.0


@dataclass
class Rows:
    """All rows of the screen, in the order in which they were planned or have begun."""

    rows: dict[str, Row] = field(default_factory=dict)
    jobs: int = 1

    def row(self, name: str, about: str = "") -> Row:
        return self.rows.setdefault(name, Row(name, about))

    def left_s(self) -> float | None:
        """Returns an estimate of the seconds left, from the rows that are over, or None if too few rows are over."""
        over = [row.took_s for row in self.rows.values() if row.verdict in (PASSED, *BAD, "") and row.took_s]
        if len(over) < 3:
            return None
        mean, now = sum(over) / len(over), time.monotonic()
        live = [row for row in self.rows.values() if row.verdict is None]
        spent = sum(min(now - row.began, mean) for row in live if row.began is not None)
        return max(0.0, (len(live) * mean - spent) / self.jobs)


def screen_for(out: TextIO, planned: list[tuple[str, str]], jobs: int) -> LiveTable | Lines:
    """Returns the screen for a terminal or a pipe. `planned`: the name and the description of each row."""
    rows = Rows({name: Row(name, about) for name, about in planned}, jobs)
    return LiveTable(out, rows) if is_terminal(out) else Lines(out, rows)


class Lines:
    """The screen for a pipe: prints a line for each run that is over."""

    def __init__(self, out: TextIO, rows: Rows):
        self.out, self.rows, self._lock = out, rows, threading.Lock()
        self._width = max(len(name) for name in rows.rows)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begins(self, name: str, about: str) -> None:
        self.rows.row(name, about)

    def is_at(self, name: str, step: int | None, doing: str) -> None:
        pass

    def ended(self, name: str, verdict: str, said: str, took_s: float) -> None:
        with self._lock:
            took = f"  ({duration(took_s)})" if took_s else ""
            word = WORDS.get(verdict, verdict)
            self.out.write(f"{name:{self._width}}  {word.upper() if verdict in BAD else word:6}  {said}{took}\n")
            self.out.flush()


class LiveTable:
    """The screen for a terminal: a table with the results so far, the present runs, and the rest.

    While the table changes, each row has one line, so that all rows fit on the screen. The last table shows all text in
    full.
    """

    def __init__(self, out: TextIO, rows: Rows):
        from rich.console import Console

        self.rows, self._lock = rows, threading.Lock()
        self._console = Console(file=underlying(out), highlight=False)
        self._began = time.monotonic()
        self._live: Live | None = None
        self._over = False

    def __enter__(self) -> LiveTable:
        from rich.live import Live

        self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=1 / EVERY_S)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        if self._live:
            self._live.stop()

    def begins(self, name: str, about: str) -> None:
        with self._lock:
            row = self.rows.row(name, about)
            row.began = row.began or time.monotonic()

    def is_at(self, name: str, step: int | None, doing: str) -> None:
        with self._lock:
            row = self.rows.row(name)
            row.step, row.doing = step, doing

    def ended(self, name: str, verdict: str, said: str, took_s: float) -> None:
        with self._lock:
            row = self.rows.row(name)
            row.verdict, row.said, row.took_s = verdict, said, took_s

    def _table(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            table = Table.grid(padding=(0, 2))
            table.add_column(no_wrap=True)
            table.add_column(no_wrap=True)
            room = max(10, self._console.width - max(map(len, self.rows.rows)) - BESIDE)
            table.add_column(width=room, overflow="fold" if self._over else "ellipsis", no_wrap=not self._over)
            table.add_column(justify="right", no_wrap=True)
            for row in self.rows.rows.values():
                table.add_row(*_cells(row, Text))
            left = self.rows.left_s()
            spent = duration(time.monotonic() - self._began)
            running = any(row.verdict is None for row in self.rows.rows.values())
            more = f", about {duration(left)} left" if left and running else ""
            return Group(table, Text(f"{spent}{more}", style="dim"))


def _cells(row: Row, text: Any) -> tuple[Any, ...]:
    if row.verdict is not None:
        style = STYLES[row.verdict]
        word = WORDS.get(row.verdict, row.verdict)
        said = text(printable(row.said), style="dim" if row.verdict in UNKNOWN else "")
        return text(row.name), text(word, style=style), said, text(_clock(row.took_s) if row.took_s else "", "dim")
    if row.began is None:
        return text(row.name, style="dim"), text(""), text(row.about, style="dim"), text("")
    where = ", ".join([*([f"step {row.step}"] if row.step else []), *([row.doing] if row.doing else [])])
    lasted = _clock(time.monotonic() - row.began)
    return text(row.name), text("runs", style="yellow"), text(printable(where or row.about)), text(lasted, "dim")


def _clock(seconds: float) -> str:
    """Returns a number of seconds as `1:22`."""
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes}:{left:02}"
