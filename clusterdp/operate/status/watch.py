"""`clusterdp watch` and `--watch`: follow a run to its end, show its progress, and exit with the exit code of the run's
state."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, TextIO

from clusterdp.batch.files.causes import CAUSES, FAULTS, SILENT
from clusterdp.operate.output.formatting import Colour, clock, is_terminal, measured, number, shown_path
from clusterdp.operate.output.terminal import ENDLESS, printable, underlying, width_of
from clusterdp.operate.queue.moved_folder import refuse_copy
from clusterdp.operate.queue.run_status import WAITS, RunStatus, current_status
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.ending import STOPPED_BY, ending_text, how_it_failed
from clusterdp.operate.record.next_command import next_command_lines
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.record.run_state import INTERRUPTED, NOT_DONE, RunState
from clusterdp.operate.status.follow import Pace, RunUpdate, follow
from clusterdp.operate.status.show_status import attempts_table
from clusterdp.operate.why.failure_words import exit_words, remedy, whose
from clusterdp.operate.why.first_failure import FirstFailure, recorded_failure
from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import Record, integer
from clusterdp.slurm.hostlist import joined
from clusterdp.wording import counted, duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


LEAST_BAR = 8  # least width of the bar in columns, with the blanks beside the bar


def watch(
    run: RunDir,
    out: TextIO | None = None,
    *,
    pace: Pace | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
    farewell: str | None = None,
) -> int:
    """Shows the run until its end, and returns the exit code of the run's state. Ctrl-C does not end the job, but
    prints `farewell` and returns 130.

    `on_progress(step, total)` is called after a drawing if the step has changed.
    """
    out = out or sys.stdout
    if not (history := read_history(run)).state.over:
        refuse_copy(history)
    update: RunUpdate | None = None
    reported: int | None = None
    try:
        with closing(screen_for(out)) as screen:
            for update in follow(run, pace):
                screen.show(update)
                step = update.history.step
                if on_progress is not None and step is not None and step != reported:
                    reported = step
                    on_progress(step, update.history.total)
    except KeyboardInterrupt:
        out.write(_farewell(run, update) if farewell is None else farewell)
        return INTERRUPTED
    if update is None:
        raise AssertionError("follow() yields at least once")
    status = current_status(update.history) if update.history.may_come_again else update.status
    out.write("\n" + "\n".join(summary(update.history, status, Colour(out), columns=width_of(out))) + "\n")
    out.flush()
    return status.state.exit_code


def _farewell(run: RunDir, update: RunUpdate | None) -> str:
    job = f"job {update.history.job}" if update and update.history.job else "the job"
    path = shown_path(run.path)
    return (
        f"\nNot followed any more; {job} goes on without you.\n"
        f"  clusterdp watch {path}\n"
        f"  clusterdp status {path}\n"
        f"  clusterdp cancel {path}\n"
    )


def screen_for(out: TextIO) -> RunBar | RunLines:
    return RunBar(out) if is_terminal(out) else RunLines(out)


def news_lines(update: RunUpdate) -> list[str]:
    """Returns a line for each new event, such as `10:41:09 attempt 2 resumed at step 120`."""
    told = ((event, event_line(event, update.history)) for event in update.news)
    return [f"{clock(float(event.get('time') or 0))}  {words}" for event, words in told if words]


class RunLines:
    """Prints a line for each event, and a line of progress every 5 s, later every 60 s."""

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
    """Prints events above the progress bar, which stays in the last line."""

    def __init__(self, out: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(file=underlying(out), highlight=False)
        self.progress: Progress = Progress(
            # No markup: rich would take a part of a reason such as `UnavailableNodes:n[a-b]` for a style.
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
        # If the total is unknown, rich's bar would pulse for ever. Therefore the bar stays empty, and only the step is
        # shown.
        said, count = printable(_state(update)), f"{step}/{total}" if total else (f"step {step}" if step else "")
        loss, left = printable(loss_words(update)), left_words(update)
        # In a narrow terminal, which a resize may cause, the state and the step stay, and the other texts are left out.
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
    """Returns `step 240 of 400 loss 0.0123 2 min left`; empty at the start and at the end of an attempt, because events
    report these."""
    history = update.history
    if history.step is None or history.step == history.total:
        return ""
    if history.last is not None and (history.last.last_step is None or history.last.cause):
        return ""  # the step is of an earlier attempt, or the line about the end has the step
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
    """Returns `attempt 2 running` or `attempt 2 waiting (Priority)`: a short text before the bar."""
    status, last = update.status, update.history.last
    count = last.number if last is not None else 0  # a later attempt may have a folder, and no record yet
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
            # No event reports the end of such an attempt before the next attempt begins.
            unsaid = f"attempt {last.number} {ending_text(last) or 'ended'}; "
        return f"{unsaid}attempt {count + 1} waiting" + (f" ({reason})" if reason != "None" else "")
    return str(status.state.value)


def summary(
    history: RunHistory, status: RunStatus, colour: Colour, now: float | None = None, columns: int = ENDLESS
) -> list[str]:
    now = time.time() if now is None else now
    failure = recorded_failure(history) if status.state in NOT_DONE else None
    lines = [_headline(history, status, failure, colour, now)]
    if len(history.attempts) > 1:
        head, *rows = attempts_table(history.attempts[-10:], status, now, columns)
        lines += ["", colour("dim", head), *rows, ""]
    if history.step is not None:
        lines.append(f"{colour('dim', 'steps lost')}  {history.lost}")
    if status.state is not RunState.DONE and history.saved and history.step is not None:
        behind = history.step - history.saved[0]
        words = f"step {history.saved[0]}" + (f", {counted(behind, 'step')} before the end" if behind > 0 else "")
        lines.append(f"{colour('dim', 'saved')}       {words}")
    if history.metrics:
        lines.append(f"{colour('dim', 'measured')}    {measured(history.metrics)}")
    lines.append(f"{colour('dim', 'run folder')}  {shown_path(history.run.path)}")
    if failure is not None:
        lines += ["", *failure_lines(history, failure, colour)]
    return [*lines, "", "next:", *next_command_lines(history, status.state, colour, columns)]


def failure_lines(history: RunHistory, failure: FirstFailure, colour: Colour) -> list[str]:
    """Returns lines about a failure: the rank, the end of its log, the command that shows the whole log, the cause and
    the remedy."""
    if failure.log is None:
        return [f"No log was written. `scontrol show job {history.job}` may know more."]
    said = f" (srun: {failure.said})" if failure.said else ""
    lines = [f"{colour('red', whose(failure))}{said}, from {shown_path(failure.log)}:"]
    nothing = "  (it is empty)" if failure.rank is None else "  (it printed nothing)"
    lines += [f"  {colour('dim', '|')} {line}" for line in failure.lines] or [nothing]
    if failure.rank:  # `clusterdp logs` shows rank 0 by default
        what = "what it printed" if failure.evidence == "hang" else "all of it"
        lines.append(f"  {what}: clusterdp logs {shown_path(history.run.path)} --rank {failure.rank}")
    if failure.known:
        lines.append(f"cause: {failure.known.cause}")
    if words := remedy(history, failure):
        lines.append(words)
    return lines


def _headline(history: RunHistory, status: RunStatus, failure: FirstFailure | None, colour: Colour, now: float) -> str:
    state = colour(status.state.colour, status.state.value)
    words = f"{colour('bold', history.name)}  {state}"
    if history.step is not None:
        words += f" at step {history.step}" + (f" of {history.total}" if history.total else "")
    ran = history.ran
    if ran:
        end = ran[-1].ended or now
        words += f", {counted(len(ran), 'attempt')}"
        if ran[0].started:
            words += f" in {duration(end - ran[0].started)}"
    why = _why(history, status, failure)
    return f"{words}: {why}" if why else words


def _why(history: RunHistory, status: RunStatus, failure: FirstFailure | None) -> str:
    if status.why:
        return STOPPED_BY.get(status.why, status.why)
    cause = history.last.cause if history.last else ""
    if status.state is RunState.FAILED and history.last:
        code = (
            f" ({exit_words(history.last.exit, failure)})" if history.last.exit is not None and cause in FAULTS else ""
        )
        again = "" if cause in FAULTS else ", and not requeued"
        return CAUSES.get(cause, cause) + code + again
    if status.state is RunState.GAVE_UP:
        return "too many attempts without a newer checkpoint"
    return ""


def event_line(event: Record, history: RunHistory) -> str | None:
    """Returns the line to print for an event. None for a save, and for an event that another event reports better."""
    kind, job = event.get("event"), event.get("job")
    if kind == "saved":
        return None
    of_job = f" (job {job})" if job else ""  # an attempt without Slurm has none
    attempt = _find(history, event.get("attempt"))
    number = attempt.number if attempt else "?"
    if kind in ("submitted", "linked"):
        return f"submitted: job {job}" + (", which goes on when this one ends" if kind == "linked" else "")
    if kind == "started":
        nodes = event.get("nodes") or event.get("host")
        where = joined(str(nodes)) if nodes else "its nodes"
        return f"attempt {number} started on {where}{of_job}"
    if kind == "restored":
        where = ", from the memory of the nodes" if event.get("memory") else ""
        return f"attempt {number} resumed at step {event.get('step')}{where}"
    if kind == "signal" and event.get("step") is not None:  # the ranks' event: the batch program's event has no step
        return f"{event.get('name')} at step {event['step']}: all ranks stop together and save"
    if kind in ("requeued", "restarted"):
        return _goes_on(event, history)
    if kind == "failed":
        return f"attempt {number} {_failed(event, attempt)}"
    if kind in (
        "silent",
        "silent-ended",
        "hang",
        "hang-ended",
        "preflight",
        "placed",
        "save-failed",
        "forgotten",
        "witness",
    ):
        return _trouble(event, number)
    if kind == "rehearsal":
        return f"rehearsal: preempting job {job} at step {event.get('step')}, to see it come back"
    if kind == "trying":
        return f"trying {event.get('what')}"
    if kind == "finished" and event.get("cause") is None:  # rank 0 wrote the event; the batch script's event follows
        return f"finished at step {event.get('step')}"
    if kind in ("stop-asked", "warm"):
        return f"asked to save and stop{of_job}" if kind != "warm" else f"attempt {number}: its ranks had loaded torch"
    if kind == "cancelled" and event.get("cause") is None:  # written by `clusterdp cancel`; another follows
        return f"cancelled job {job}" if job else "cancelled"
    return None


def _trouble(event: Record, number: object) -> str | None:
    if event.get("event") == "preflight":
        failures = event.get("failures")
        said = "; ".join(map(str, failures)) if isinstance(failures, list) else ""
        return f"attempt {number} failed the preflight: {said}" if said else None
    if event.get("event") == "placed":
        return f"attempt {number} has its ranks on {joined(str(event.get('nodes')))}"
    if event.get("event") == "silent":
        return f"no sign of life from {event.get('nodes')}: {SILENT}"
    if event.get("event") == "silent-ended":
        return f"alive again: {event.get('nodes')}"
    if event.get("event") == "hang":
        return f"attempt {number} makes no progress: {event.get('reason')}"
    if event.get("event") == "hang-ended":
        return f"attempt {number} makes progress again"
    if event.get("event") == "witness":
        other = event.get("verdict") == "other"
        return f"attempt {number} does not repeat the steps after its save: {event.get('differs')}" if other else None
    if event.get("event") == "forgotten":
        return None if event.get("quiet") else str(event.get("what"))
    return f"a checkpoint was not saved at step {event.get('step')}: {event.get('error')}"


def _find(history: RunHistory, name: object) -> AttemptHistory | None:
    return next((attempt for attempt in history.attempts if attempt.name == name), None)


def _goes_on(event: Record, history: RunHistory) -> str | None:
    attempt = _find(history, event.get("of") or event.get("attempt"))
    word = str((attempt and attempt.cause) or event.get("cause"))  # a cause by Slurm's notice counts more than a guess
    cause = CAUSES.get(word, word)
    if word == "done":  # the job was requeued although the ranks recorded `done`
        return None
    if attempt is not None and word in ("overtaken", "stopped"):
        return f"attempt {attempt.number} {ending_text(attempt)}"
    if event.get("event") == "restarted":
        where = [f"with {event['spare']}"] if event.get("spare") else []
        where += [f"on {counted(size, 'node')}"] if (size := integer(event.get("size"))) else []
        again = [f"starts again {', '.join(where) or 'on the same nodes'}"]
    else:
        again = [] if word == "requeued" else ["requeued"]
    if attempt is None or attempt.last_step is None:
        kept, at = [], ""
    elif attempt.saved == attempt.last_step:
        kept, at = ["saved"], f" at step {attempt.last_step}"
    else:
        kept = [f"step {attempt.saved} is saved" if attempt.saved is not None else "nothing saved yet"]
        kept += [f"because a save failed ({attempt.unsaved})"] if attempt.unsaved else []
        at = f" at step {attempt.last_step}"
    what = ", ".join([*kept, *again])
    whose = f"attempt {attempt.number} " if attempt is not None else ""
    return f"{whose}{cause}{at}" + (f": {what}" if what else "")


def _failed(event: Record, attempt: AttemptHistory | None) -> str:
    cause = event.get("cause")
    if attempt is not None and attempt.cause == "overtaken":
        return f"superseded {attempt.why}"
    if cause and attempt is not None and attempt.settled and attempt.cause == "unknown":
        cause = attempt.cause
    if attempt is not None and attempt.stopped_by_user:
        return ending_text(attempt)
    reason = event.get("reason") or (attempt.why if attempt is not None and cause == "gave-up" else "")
    words = CAUSES.get(str(cause), str(cause)) if cause else "failed"
    if reason:
        words += f", {STOPPED_BY.get(str(reason), str(reason))}"
    error = str(event.get("error") or "")
    return words if error and error in words else words + how_it_failed(None if reason else event.get("exit"), error)
