"""Printer: prints lines with their rank, like `srun --label`. On a terminal, the labels of different ranks have
different colours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from clusterdp.operate.output.formatting import Colour

STYLES = ("cyan", "yellow", "green", "magenta", "blue")  # no red, which is for errors
TOGETHER = 64 * 1024  # characters that are collected before a write


class Printer:
    """Collects text, and writes it at flush(), or when TOGETHER characters are waiting."""

    def __init__(self, out: TextIO, labelled: bool):
        self.out, self.labelled = out, labelled
        self.colour = Colour(out)
        self._width = 1
        self._rank: int | None = None  # rank of the last text
        self._at_start = True  # True if the next text begins a line
        self._waiting: list[str] = []
        self._size = 0

    def expect(self, ranks: Iterable[int]) -> None:
        """Sets the width of labels, so that the labels of these ranks are equally wide."""
        self._width = max(self._width, len(str(max(ranks, default=0))))

    def text(self, text: str, rank: int) -> None:
        """Prints a part of a rank's log. If the text does not end in \\n, the next text continues the line."""
        if self.labelled:
            if rank != self._rank:
                self.end_line()
            label = self.colour(STYLES[rank % len(STYLES)], f"[{rank:>{self._width}}]") + " "
            end = "\x1b[0m" if self.colour.on and "\x1b" in text else ""
            lines = text.removesuffix("\n").replace("\n", f"{end}\n{label}") + end
            text = (label if self._at_start else "") + lines + "\n" * text.endswith("\n")
        self._write(text)
        self._rank = rank

    def notice(self, text: str) -> None:
        self.end_line()
        self._write(f"==> {text} <==\n")

    def own(self, text: str) -> None:
        """Prints a line without a label, because it comes from no rank."""
        self.end_line()
        self._write(text + "\n")

    def end_line(self) -> None:
        if not self._at_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if not text:
            return
        self._waiting.append(text)
        self._at_start = text.endswith("\n")
        self._size += len(text)
        if self._size > TOGETHER:
            self._hand_on()

    def _hand_on(self) -> None:
        text, self._waiting, self._size = "".join(self._waiting), [], 0
        self.out.write(text)

    def flush(self) -> None:
        self._hand_on()
        self.out.flush()
