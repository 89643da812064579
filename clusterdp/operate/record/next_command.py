"""next_commands(): proposes the commands that a user may type next, depending on the run's state."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterdp.operate.output.formatting import Colour, shown_path
from clusterdp.operate.output.terminal import ENDLESS, LEAST, filled
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.operate.record.run_state import RunState
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir

USUAL = 80  # usual width of a terminal in columns
# submit writes each param in a line of its own, and a pattern finds it: to parse the YAML would take longer than all
# else in `status`.
LENGTH = re.compile(r"^params:\n(?:  .*\n)*?  ((?:max_|num_|n_|total_)?(?:epochs|steps)): \d", re.MULTILINE)


def next_commands(history: RunHistory, state: RunState) -> list[tuple[str, str]]:
    """Returns pairs (command, purpose), the most useful command first."""
    run = shown_path(history.run.path)
    logs = (f"clusterdp logs {run}", "what rank 0 printed")
    status = (f"clusterdp status {run}", "each attempt and its end")
    why = (f"clusterdp why {run}", "the first error, its cause, what to do")
    where = f"from step {history.saved[0]}" if history.saved else "with it"
    resume = (f"clusterdp resume {run}", f"goes on {where}")
    longer = length_param(history.run) if state is RunState.DONE and history.entry and history.step else ""
    trains_on = [(f"clusterdp resume {run} {longer}=..", "trains on")] if longer else []
    proposed = {
        RunState.WAITING: [
            (f"clusterdp why {run}", "what it waits for"),
            (f"clusterdp watch {run}", "follows it to its end"),
            (f"clusterdp cancel {run}", ""),
        ],
        RunState.RUNNING: [
            (f"clusterdp watch {run}", "follows it to its end"),
            (f"clusterdp logs {run} -f", "what rank 0 prints"),
        ],
        RunState.DONE: [logs, status, *trains_on],
        RunState.FAILED: [why, logs, status, resume],
        RunState.GAVE_UP: [why, logs, status, resume],
        RunState.STOPPED: [logs, status, resume],
        RunState.VANISHED: [
            why,
            logs,
            (f"sacct -j {history.job}", "if your site keeps accounts, how it ended"),
            resume,
        ],
        RunState.CANCELLED: [logs, status, resume] if history.is_local else [status, resume],
    }[state]
    if history.is_local:  # there is neither a job nor a config
        return [row for row in proposed if row[0].split()[1] in ("logs", "status", "watch", "why")]
    return proposed


def next_command_lines(
    history: RunHistory, state: RunState, colour: Colour, columns: int = ENDLESS, but: str = ""
) -> list[str]:
    """Returns the proposed commands as lines to print. The verb `but`, which the user has just typed, is left out."""
    rows = [row for row in next_commands(history, state) if row[0].split()[1] != but]
    return command_lines(rows, colour, columns)


def command_lines(rows: Sequence[tuple[str, str]], colour: Colour, columns: int = ENDLESS) -> list[str]:
    """Returns lines with the commands, and their purposes beside them if there is room."""
    width = max((len(command) for command, _ in rows), default=0)
    if width + 4 + LEAST > min(columns, USUAL):  # a long path leaves no room for the purpose
        return [f"  {command}" for command, _ in rows]
    lines = []
    for command, what in rows:
        for words in filled("", what, columns - width - 4):
            lines.append(f"  {command.ljust(width)}  {colour('dim', words)}".rstrip())
            command = ""
    return lines


def length_param(run: RunDir) -> str:
    """Returns the param that ends the training, such as `params.epochs`; empty if the config has no such param, or
    cannot be read."""
    try:
        found = LENGTH.search(read_plain(run.config).decode())
    except (OSError, ValueError):
        return ""
    return f"params.{found[1]}" if found else ""
