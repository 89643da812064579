"""Top: the program of `clusterdp top`, with the table of runs as its first screen."""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, TypeVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import Static

from clusterdp.errors import ClusterdpError
from clusterdp.operate.listing.columns import NAME
from clusterdp.operate.listing.watch_runs import Listing
from clusterdp.operate.output.formatting import clock
from clusterdp.operate.output.terminal import printable
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.status.follow import Pace
from clusterdp.operate.top.screens import Ask, Read, TextScreen, TypeLine
from clusterdp.operate.top.source import Part, Source
from clusterdp.operate.top.table import COLUMNS, HOST, REASON, Row, RunTable, bindings
from clusterdp.wording import counted

Answer = TypeVar("Answer")
OTHER_S = 30.0  # pause between two readings of a run that does not run
ASKED = {  # verbs that cost or end something
    "cancel": "Cancel {run}, without a save and for good?",
    "stop": "Stop {run}, with a save, until it is resumed?",
    "resume": "Resume {run}, as a new job?",
}
NONE = "No runs. `clusterdp top --all` has those of other folders."
KEYS = "? help  q quit  Enter run  / filter  s sort  l logs  e errors  c cancel  t stop  r resume  n note"
KEYS_OF_RUN = "? help  q back  l logs  e errors  c cancel  t stop  r resume  n note"
HELP = """\
up down  j k     one run up, one down
pgup pgdn space  a page up, a page down
home end  g G    the first, the last
Enter            the run: its state, attempts, why, last lines of rank 0, curve
/                filter: runs with these words in name, state, reason, note job
Esc              back; on the table, all runs again
s  S             sort by the next column; the other way round
l  e             the log of rank 0; what looks like an error, of all ranks
c  t  r          cancel for good; stop with a save; resume. Each asks first
n                write a note; an empty one removes it
q                back; on the table, quit. Runs go on without this program
"""


class Top(App[None]):
    """All runs of the sources, in the terminal's own colours, which are right on a light and on a dark background.

    Sources are read in threads. While another screen covers the table, its rows are not read."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True),
        *bindings("c ask('cancel')  t ask('stop')  r ask('resume')  l logs(False)  e logs(True)  n note"),
        *bindings("question_mark help"),
    ]
    CSS_PATH = "top.tcss"

    def __init__(self, sources: Sequence[Source], ask_s: float = Pace.ask_s):
        super().__init__(ansi_color=True)
        self.sources = sources
        self.ask_s = ask_s
        self.table = RunTable(COLUMNS if len(sources) > 1 else [each for each in COLUMNS if each is not HOST])
        self._rows: dict[Source, list[Row]] = {}
        self._complaints: dict[Source, Sequence[str]] = {}
        self._read_at: dict[Source, float] = {}
        self._next_reads: dict[Source, Timer] = {}  # empty while a source is read
        self._said: tuple[Row | None, str] = (None, "")  # what a verb has printed, and its row
        self._head = Static("clusterdp top", classes="head", markup=False)
        self._about = Static("reading run folders ...", classes="said", markup=False)

    def compose(self) -> ComposeResult:
        yield from (self._head, self.table, self._about, Static(KEYS, classes="keys", markup=False))

    def on_mount(self) -> None:
        for source in self.sources:
            self._read(source)

    def in_thread(self, work: Callable[[], Answer], then: Callable[[Answer | Exception], object]) -> None:
        """Calls work() in a thread, and in this thread then(), with the result or the error. A thread that waits for a
        dead file system does not keep the program from its end."""

        def run() -> None:
            answer: Answer | Exception
            try:
                answer = work()
            except Exception as error:
                answer = error
            with suppress(RuntimeError):  # the program has ended
                self.call_later(deliver, answer)

        def deliver(answer: Answer | Exception) -> None:
            if isinstance(answer, Exception) and not isinstance(answer, (ClusterdpError, OSError)):
                raise answer
            then(answer)

        threading.Thread(target=run, daemon=True).start()

    def _read(self, source: Source) -> None:
        """Reads the runs of a source, now and again after a pause."""
        if any(isinstance(screen, TextScreen) for screen in self.screen_stack):
            return
        self._next_reads.pop(source, None)
        self._read_at[source] = time.monotonic()
        known = {id(row.run): row for row in self._rows.get(source, ())}

        def work() -> tuple[list[Row], Listing]:
            found, now = source.list(), time.time()
            rows = [known.get(id(run)) or Row.made(source, run, found.typed(run["run"]), now) for run in found.runs]
            return rows, found

        def then(answer: tuple[list[Row], Listing] | Exception) -> None:
            pause_s = OTHER_S
            if isinstance(answer, Exception):
                self._complaints[source] = [str(answer)]
            else:
                self._rows[source], found = answer
                self._complaints[source], pause_s = found.complaints, found.pause_s
            self.table.show([row for rows in self._rows.values() for row in rows])
            self._read_after(source, pause_s)

        self.in_thread(work, then)

    def _read_after(self, source: Source, pause_s: float) -> None:
        left = self._read_at[source] + pause_s - time.monotonic()
        self._next_reads[source] = self.set_timer(max(0.001, left), partial(self._read, source))

    def _read_soon(self, _: object = None) -> None:
        """After a change, or when no screen covers the table any more."""
        for source, timer in [*self._next_reads.items()]:
            timer.stop()
            self._read_after(source, self.ask_s)

    @property
    def row(self) -> Row | None:
        """The run that a key means."""
        return self.screen.row if isinstance(self.screen, TextScreen) else self.table.row

    def on_run_table_moved(self) -> None:
        table, row = self.table, self.table.row
        if not self._complaints:  # nothing was read yet
            return
        states = Counter(each.run["state"] for each in table.rows)
        counts = ", ".join(f"{states[state.value]} {state.value}" for state in RunState if states[state.value])
        words = [f"{counted(len(table.rows), 'run')}{': ' * bool(counts)}{counts}"]
        words += [f"{len(table.shown)} with {table.words!r}"] if table.words else []
        self._head.update("  ".join(["clusterdp top", *words, clock(time.time())]))
        of, said = self._said
        if of is not None and row is not None and of.key != row.key:
            self._said, said = (None, ""), ""
        complaints = [complaint for each in self._complaints.values() for complaint in each]
        facts = f"{row.cells[NAME]}  {row.cells[REASON]}" if row else NONE
        self._about.update(printable("\n".join([said or facts, *complaints])))

    def action_open(self) -> None:
        if row := self.row:
            self._push(row, row.cells[NAME], partial(row.source.details, row.path), two_panes=True)

    def action_logs(self, errors: bool) -> None:
        if row := self.row:
            what = "what looks like an error in the logs of all ranks" if errors else "the log of rank 0"

            def read(columns: int) -> Iterator[Part]:
                yield Part("", row.source.logs(row.path, errors))

            self._push(row, f"{row.cells[NAME]}: {what}", read, at_end=not errors)

    def action_help(self) -> None:
        self._push(None, "Keys", lambda columns: [Part("", HELP)])

    def _push(self, row: Row | None, head: str, read: Read, **more: bool) -> None:
        runs = row is not None and row.run["state"] == RunState.RUNNING.value
        pause_s = None if row is None else self.ask_s if runs else OTHER_S
        host = f"{row.source.host}  " if row and row.source.host else ""
        keys = KEYS_OF_RUN if row else "q back"
        screen = TextScreen(host + head, read, self.in_thread, keys, row=row, pause_s=pause_s, **more)
        self.push_screen(screen, lambda _: self._read_soon())

    def action_ask(self, verb: str) -> None:
        if row := self.row:
            question = Ask(ASKED[verb].format(run=row.cells[NAME]))
            self.push_screen(question, lambda yes: self._call(row, [verb, row.path]) if yes else None)

    def action_note(self) -> None:
        def write(text: str | None) -> None:
            if row and text is not None and text != row.run["note"]:
                self._call(row, ["note", row.path, *(["--", text] if text else ["--clear"])])

        if row := self.row:
            self.push_screen(TypeLine(f"note on {row.cells[NAME]}: ", row.run["note"]), write)

    def action_filter(self) -> None:
        def show(words: str | None) -> None:
            self.table.show(words=words or "")

        self.push_screen(TypeLine("/", self.table.words, show), show)

    def action_all(self) -> None:
        self.table.show(words="")

    def _call(self, row: Row, words: Sequence[str]) -> None:
        """Runs a verb, and shows what it prints."""

        def then(answer: str | Exception) -> None:
            self._say(row, str(answer))
            self._read_soon()
            if isinstance(self.screen, TextScreen):
                self.screen.reread()

        self._say(row, f"clusterdp {shlex.join(words)} ...")
        self.in_thread(partial(row.source.call, words), then)

    def _say(self, row: Row, text: str) -> None:
        self._said = row, text
        self.on_run_table_moved()
        if isinstance(self.screen, TextScreen):
            self.screen.say(text)
