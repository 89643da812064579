"""The messages of srun and slurmstepd about a step, in Slurm's words."""

from __future__ import annotations

import os
import signal
import time

from ..core.ranges import ranges
from ..core.step_plan import StepPlan, TaskPlan
from .memory_limit import OUT_OF_MEMORY
from .output_files import OpenFailed, OutputFiles, label
from .srun_connection import SrunConnection


class StepMessages:
    def __init__(self, plan: StepPlan, srun: SrunConnection, files: OutputFiles):
        self._plan, self._srun, self._files = plan, srun, files
        self._said_aborted = self._said_cancelled = self._said_forced = self._said_oom = False

    def say(self, text: str) -> None:
        """Prints a line on srun's stderr. For a batch script, prints slurmstepd's lines into the job's output file."""
        if not self._plan.batch:
            self._srun.print(text)
        elif not text.startswith("srun:"):
            self._log(text.encode())

    def _say_itself(self, text: str) -> None:
        """Prints a line of slurmstepd, which goes to the stderr of a step's first task, if its lines have labels."""
        text = f"{name(self._plan)} error: {text}"
        if self._plan.label and (self._plan.components[0].stderr or self._plan.components[0].stdout).kind == "file":
            self._log(label(self._plan.tasks[0].rank, 1) + text.encode())
        else:
            self.say(text)

    def _log(self, line: bytes) -> None:
        target = self._plan.components[0].stderr or self._plan.components[0].stdout
        try:
            os.write(self._files.descriptor(target, self._plan.tasks[0]), line + b"\n")
        except (OSError, OpenFailed):
            pass

    def cancelled(self, why: str | None, number: int, details: str = "") -> None:
        """Prints once that the step or job is cancelled, with the reason `why` or the signal. If `why` is None, prints
        nothing."""
        if self._said_cancelled or why is None:
            return
        self._said_cancelled = True
        plan = self._plan
        what = f"JOB {plan.job}" if plan.batch else f"STEP {plan.full_name}"
        if not why and plan.release.says_signal:
            why = f"DUE to SIGNAL {signal.strsignal(number)}"
        how = time.strftime("CANCELLED AT %Y-%m-%dT%H:%M:%S") + (f" {why}" if why else "")
        if why.startswith("FAILED"):
            how = why
        if details:
            self._say_itself(f"*** REASON: {details} ***")
        self._say_itself(f"*** {what} ON {plan.nodes[0]} {how} ***")

    def out_of_memory(self) -> None:
        if not self._said_oom:
            self._said_oom = True
            step = f"StepId={self._plan.full_name}"
            some = "Some of the step tasks have been OOM Killed."
            self._say_itself(f"Detected 1 oom_kill event in {step}. {some}")

    def aborted(self) -> None:
        if not self._said_aborted:
            self._said_aborted = True
            seconds = int(self._plan.kill_wait_s + 2)
            self.say(f"srun: Job step aborted: Waiting up to {seconds} seconds for job step to finish.")

    def ended(self, ended: list[tuple[TaskPlan, int]]) -> None:
        """Prints which of the ended tasks failed. Tasks of one node that failed in the same way share a line."""
        groups: dict[tuple[int, int, str, int], list[int]] = {}
        for task, status in ended:
            if status:
                groups.setdefault((task.component, task.node_index, task.node, status), []).append(task.number)
        for (_, _, node, status), ranks in sorted(groups.items()):
            number, code = status & 0x7F, status >> 8
            if number == signal.SIGKILL and not self._said_aborted:
                self._force_terminated()
            how: str | None = "Out Of Memory"
            if status != OUT_OF_MEMORY:
                how = signal.strsignal(number) if number else f"Exited with exit code {code}"
            if status & 0x80:
                how = f"{how} (core dumped)"
            self.say(f"srun: error: {node}: {_tasks(sorted(ranks))}: {how}")
            if number == signal.SIGTERM and self._plan.kill_on_bad_exit and not self._said_aborted:
                self._force_terminated()

    def _force_terminated(self) -> None:
        if not self._said_forced:
            self._said_forced = True
            self.say(f"srun: Force Terminated StepId={self._plan.full_name}")

    def conditions(self, statuses: dict[int, int]) -> None:
        """Prints the state of each task: running, exited, or exited abnormally. `statuses`: the wait statuses of ended
        tasks, by rank."""
        kinds: dict[str, list[int]] = {}
        for task in self._plan.tasks:
            condition = "running"
            if task.rank in statuses:
                condition = "exited abnormally" if statuses[task.rank] else "exited"
            kinds.setdefault(condition, []).append(task.rank)
        for condition, ranks in kinds.items():
            self.say(f"srun: StepId={self._plan.full_name} {_tasks(ranks)}: {condition}")


def name(plan: StepPlan) -> str:
    """Returns the prefix of the lines that slurmstepd prints."""
    if not plan.release.stepd_says_time:
        return "slurmstepd:"
    now = time.time()
    return time.strftime(f"[%Y-%m-%dT%H:%M:%S.{int(now % 1 * 1000):03}]", time.localtime(now))


def _tasks(ranks: list[int]) -> str:
    return f"{'task' if len(ranks) == 1 else 'tasks'} {ranges(ranks)}"
