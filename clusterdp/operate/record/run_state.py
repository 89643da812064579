"""RunState: the states of a run, and the exit code of each.

    done         0     every rank finished
    failed       1     a crash that is not tried again, or Slurm ended the job and no attempt can follow
    gave-up      1     a budget is spent: too many crashes, or attempts without a newer checkpoint
    stopped      1     no requeue: the user asked the run to stop, or another job has taken the run folder
    vanished     1     no ending on record, and Slurm no longer knows the job
    cancelled  143     `clusterdp cancel` or scancel; 128 + TERM, the signal that the job got
    waiting    130 }   not over: the command that followed it was interrupted (128 + INT);
    running    130 }   the run itself goes on

A command that fails by itself exits with the code of its error (see errors.py: 2 config, 3 Slurm, 4 no such run, ...).
"""

from __future__ import annotations

from enum import Enum


class RunState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    GAVE_UP = "gave-up"
    STOPPED = "stopped"
    VANISHED = "vanished"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self not in (RunState.WAITING, RunState.RUNNING)

    @property
    def colour(self) -> str:
        return COLOURS.get(self, "red")

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self]


COLOURS = {
    RunState.DONE: "green",
    RunState.RUNNING: "cyan",
    RunState.WAITING: "yellow",
    RunState.CANCELLED: "yellow",
}
NOT_DONE = (RunState.FAILED, RunState.GAVE_UP, RunState.STOPPED, RunState.VANISHED)  # over, but not done or cancelled

INTERRUPTED = 130
BROKEN_PIPE = 141  # 128 + PIPE: what any tool exits with in `clusterdp logs | head`

EXIT_CODES = {
    RunState.WAITING: INTERRUPTED,
    RunState.RUNNING: INTERRUPTED,
    RunState.DONE: 0,
    RunState.FAILED: 1,
    RunState.GAVE_UP: 1,
    RunState.STOPPED: 1,
    RunState.VANISHED: 1,
    RunState.CANCELLED: 143,
}
