"""The screens above the table: a run or its logs, a question, and a line to type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.events import Key, Resize
from textual.screen import ModalScreen, Screen
from textual.timer import Timer
from textual.widgets import Input, RichLog, Static

from clusterdp.operate.output.terminal import COLOURS, printable
from clusterdp.operate.top.source import Part
from clusterdp.operate.top.table import Row, bindings

Read = Callable[[int], Iterable[Part]]
TWO_PANES = 140  # columns from which on a screen has these parts beside the others
BESIDE = ("curve", "last lines of rank 0")
NARROWEST = 20


class Pane(RichLog):
    """Text that scrolls, with the keys of the table."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("""
        k scroll_up  ctrl+b page_up            g scroll_home
        j scroll_down  ctrl+f,space page_down  G scroll_end
    """)

    def add(self, part: Part, columns: int) -> None:
        if part.heading:
            self.write(Text(f"── {part.heading} ".ljust(columns, "─"), style="dim"))
        self.write(Text.from_ansi(printable(part.text.rstrip("\n"), COLOURS)))


class TextScreen(Screen[None]):
    """The parts that `read` yields for a number of columns. They are read again after `pause_s` seconds, or never if
    that is None. With `at_end`, the screen shows the last lines, and stays there. `two_panes`: on a wide screen, some
    parts are shown beside the others."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("escape,q,left,backspace dismiss(None)")

    def __init__(
        self,
        head: str,
        read: Read,
        in_thread: Callable[[Callable[[], Any], Callable[[Any], object]], None],
        keys: str,
        *,
        row: Row | None = None,
        pause_s: float | None = None,
        at_end: bool = False,
        two_panes: bool = False,
    ):
        super().__init__()
        self.head, self.read, self.in_thread, self.keys = head, read, in_thread, keys
        self.row, self.pause_s, self.at_end, self.two_panes = row, pause_s, at_end, two_panes
        self.parts: list[Part] = []
        self.pane, self.beside = Pane(wrap=True, auto_scroll=False), Pane(id="beside", wrap=True, auto_scroll=False)
        self.said = Static("reading ...", classes="said", markup=False)
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static(self.head, classes="head", markup=False)
        with Horizontal():
            yield from (self.pane, self.beside)
        yield from (self.said, Static(self.keys, classes="keys", markup=False))

    def on_resize(self, event: Resize) -> None:
        self.reread()

    def say(self, text: str) -> None:
        self.said.update(printable(text))
        self.said.display = bool(text)

    def reread(self) -> None:
        """Reads the parts in a thread. The first time, each part is shown as soon as it is there."""
        if self._timer:
            self._timer.stop()
        beside = self.two_panes and self.size.width >= TWO_PANES
        columns = max(NARROWEST, (self.size.width // 2 if beside else self.size.width) - 2)
        first, app = not self.parts, self.app

        def work() -> list[Part]:
            parts: list[Part] = []
            for part in self.read(columns):
                parts.append(part)
                if first:
                    app.call_later(self._show, [*parts], columns, beside)
            return parts

        def then(parts: list[Part] | Exception) -> None:
            if not self.is_attached:
                return
            if first:
                self.say("")
            self._show([Part("", str(parts))] if isinstance(parts, Exception) else parts, columns, beside)
            if self.pause_s is not None:
                self._timer = self.set_timer(self.pause_s, self.reread)

        self.in_thread(work, then)

    def _show(self, parts: list[Part], columns: int, beside: bool) -> None:
        if parts == self.parts or not self.is_attached:
            return
        pane, self.parts, self.beside.display = self.pane, parts, beside
        stays = pane.scroll_y if not self.at_end or pane.scroll_y < pane.max_scroll_y else None
        for each in (pane, self.beside):
            each.clear()
        for part in parts:
            (self.beside if beside and part.heading in BESIDE else pane).add(part, columns)
        if stays is None:
            pane.scroll_end(animate=False)
        else:
            pane.scroll_to(y=stays, animate=False)


class Ask(ModalScreen[bool]):
    """A question in the last line. `y` is yes, and every other key no."""

    def __init__(self, question: str):
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        yield Static(f"{self.question} y: yes, n: no", classes="ask", markup=False)

    def on_key(self, event: Key) -> None:
        event.stop()
        self.dismiss(event.key == "y")


class TypeLine(ModalScreen[str | None]):
    """A line to type, after `label`. The result is None after Escape. `changed` gets the text at each key."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("escape dismiss(None)")

    def __init__(self, label: str, text: str, changed: Callable[[str], None] | None = None):
        super().__init__()
        self.label, self.text, self.changed = label, text, changed

    def compose(self) -> ComposeResult:
        with Horizontal(classes="line"):
            yield Static(self.label, markup=False)
            yield Input(self.text, select_on_focus=False, compact=True)

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        if self.changed:
            self.changed(event.value)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
