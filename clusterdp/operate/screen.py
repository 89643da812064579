"""How progress is drawn: a bar on a terminal, plain lines in a pipe, under NO_COLOR and on a dumb terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from clusterdp.operate.event_text import ending_text, event_line
from clusterdp.operate.follow import RunUpdate
from clusterdp.operate.formatting import clock, is_terminal, number
from clusterdp.operate.queue import WAITS
from clusterdp.operate.run_state import RunState
from clusterdp.operate.terminal import printable, underlying
from clusterdp.wording import duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


LEAST_BAR = 8  # columns, with the blanks between it and its neighbours


def screen_for(out: TextIO) -> RunBar | RunLines:
    return RunBar(out) if is_terminal(out) else RunLines(out)


def news_lines(update: RunUpdate) -> list[str]:
    """`10:41:09  attempt 2 resumed at step 120`"""
    told = ((event, event_line(event, update.history)) for event in update.news)
    return [f"{clock(float(event.get('time') or 0))}  {words}" for event, words in told if words]


class RunLines:
    """One line for each event, and for progress one every few seconds, fewer the longer it takes."""

    def __init__(self, out: TextIO):
        self.out = out
        self.began = self.last = time.monotonic()
        self.said = ""
        self.state = ""

    def show(self, update: RunUpdate) -> None:
        for line in news_lines(update):
            self._say(line)
        state = _state(update)
        if state != self.state and update.status.why and not update.over:
            self._say(f"{clock(time.time())}  {state}")
        self.state = state
        now = time.monotonic()
        if now - self.last >= min(60.0, max(5.0, (now - self.began) / 20)):
            words = progress_words(update)
            if words and words != self.said:
                self._say(f"{clock(time.time())}  {words}")
                self.said = words
            self.last = now

    def close(self) -> None:
        pass

    def _say(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()


class RunBar:
    """The events scroll by above one line that stays."""

    def __init__(self, out: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(file=underlying(out), highlight=False)
        self.progress: Progress = Progress(
            # No markup: a reason such as `UnavailableNodes:n[a-b]` would be read as a style.
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[loss]}", style="cyan", markup=False),
            TextColumn("{task.fields[left]}", style="dim", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self.task: TaskID = self.progress.add_task("", total=None, count="", loss="", left="")
        self.progress.start()

    def show(self, update: RunUpdate) -> None:
        from rich.text import Text

        for line in news_lines(update):
            at, gap, words = line.partition("  ")
            self.progress.console.print(Text.assemble((at, "dim"), gap, printable(words)))
        history = update.history
        step, total = history.step or 0, history.total
        # Without a total the bar would pulse for ever as if it knew something: it stays empty, and the step counts.
        said, count = printable(_state(update)), f"{step}/{total}" if total else (f"step {step}" if step else "")
        loss, left = printable(loss_words(update)), left_words(update)
        # In a narrow terminal, also after a resize, the state and the step are whole, and the others give way.
        room = self.progress.console.width - len(said) - len(count) - LEAST_BAR
        left = left if len(loss) + len(left) + 2 <= room else ""
        loss = loss if len(loss) + 1 <= room else ""
        self.progress.update(
            self.task,
            description=said,
            total=total or 1,
            completed=step if total else 0,
            count=count,
            loss=loss,
            left=left,
        )
        self.progress.refresh()

    def close(self) -> None:
        self.progress.stop()


def progress_words(update: RunUpdate) -> str:
    """`step 240 of 400  loss 0.0123  2 min left`; empty at the beginning, and at the end, which is news by itself."""
    history = update.history
    if history.step is None or history.step == history.total:
        return ""
    if history.last is not None and (history.last.last_step is None or history.last.cause):
        return ""  # it would be an earlier attempt's step, or one that the words on the end say better
    of = f" of {history.total}" if history.total else ""
    return "  ".join(word for word in (f"step {history.step}{of}", loss_words(update), left_words(update)) if word)


def loss_words(update: RunUpdate) -> str:
    metrics = update.history.metrics
    key = "loss" if "loss" in metrics else next((key for key in metrics if key.endswith("loss")), None)
    return f"{key} {number(metrics[key])}" if key else ""


def left_words(update: RunUpdate) -> str:
    history = update.history
    last = history.last
    if not (last and last.rate and history.total and history.step is not None and not last.cause):
        return ""
    left = (history.total - history.step) / last.rate - max(0.0, time.time() - (history.measured_at or time.time()))
    return f"{duration(left)} left" if left > 0 else ""


def _state(update: RunUpdate) -> str:
    """`attempt 2 running`, `attempt 2 waiting (Priority)`: short, for it stands before the bar."""
    status, last = update.status, update.history.last
    count = len(update.history.attempts)
    if status.state is RunState.RUNNING:
        if status.row is not None and status.row.state == "COMPLETING":
            return f"attempt {count} stopping"
        begun = last is not None and last.measured_at is not None
        return f"attempt {count} {status.why or ('running' if begun else 'starting')}"
    if status.state is RunState.WAITING:
        pending = status.row is not None and status.row.state in WAITS
        if last is not None and not last.closed and not pending and last.job == update.history.job:
            return f"attempt {count} stopping"
        reason = status.row.reason if status.row and pending else "None"
        unsaid = ""
        if pending and last is not None and last.job == update.history.job and not (last.settled or last.requeued):
            # No event says so before the next one begins.
            unsaid = f"attempt {last.number} {ending_text(last) or 'ended'}; "
        return f"{unsaid}attempt {count + 1} waiting" + (f" ({reason})" if reason != "None" else "")
    return str(status.state.value)
