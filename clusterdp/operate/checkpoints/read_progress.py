"""read_progress(): shows the progress while a command reads checkpoints. On a terminal, a progress bar stays below the
printed lines."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from clusterdp.operate.output.formatting import is_terminal
from clusterdp.operate.output.terminal import OURS, printable, underlying

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


def read_progress(out: TextIO, total: int) -> ReadLines:
    """Returns a ReadBar for a terminal, else a ReadLines. `total` is the number of bytes to read."""
    return ReadBar(out, total) if is_terminal(out) else ReadLines(out)


class ReadLines(AbstractContextManager["ReadLines", None]):
    """Prints a command's lines, but no progress bar."""

    def __init__(self, out: TextIO):
        self.out = out

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Removes the bar from the terminal."""

    def begin(self, what: str) -> None:
        """Sets the text before the bar."""

    def advance(self, nbytes: int) -> None:
        """Moves the bar forward by the bytes read. Any thread may call this function."""

    def say(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()


class ReadBar(ReadLines):
    def __init__(self, out: TextIO, total: int):
        super().__init__(out)
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar: RichProgress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
            DownloadColumn(),
            TimeRemainingColumn(compact=True),
            console=Console(file=underlying(out), highlight=False),
            transient=True,
            expand=True,
        )
        self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> ReadBar:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def begin(self, what: str) -> None:
        self.bar.update(self.task, description=printable(what))

    def advance(self, nbytes: int) -> None:
        self.bar.advance(self.task, nbytes)

    def say(self, line: str) -> None:
        from rich.text import Text

        self.bar.console.print(Text.from_ansi(printable(line, OURS)), soft_wrap=True)
