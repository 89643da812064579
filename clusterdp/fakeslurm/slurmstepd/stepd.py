"""slurmstepd: the process of one step, which starts the tasks on all nodes of the step, passes on their output, signals
them, and survives a killed daemon. slurmstepd also does most of srun's work, because srun itself only prints.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence

from ..core import file_traps, orders, processes, reports
from ..core.step_plan import StepPlan, TaskPlan
from ..core.task_usage import TaskUsage, Usage
from . import launch
from .controller_connection import ControllerConnection, is_daemon
from .event_loop import EventLoop
from .memory_limit import LOOK_S, OUT_OF_MEMORY, MemoryLimit
from .messages import StepMessages
from .output_files import OpenFailed
from .srun_connection import SrunConnection
from .task_io import TaskInput, TaskOutput

CANNOT_OPEN = 53  # the "signal" that ends a job whose output file cannot be opened
CONT, TERM, KILL = signal.SIGCONT, signal.SIGTERM, signal.SIGKILL


class Stepd:
    """The slurmstepd of one step. `run` runs the step until its end, with one thread."""

    def __init__(self, plan: StepPlan, daemon: socket.socket, srun: socket.socket | None):
        self.plan = plan
        self._loop = EventLoop()
        self._srun = SrunConnection(self._loop, srun)
        self._srun.on_signal, self._srun.on_gone = self._srun_signalled, self._srun_gone
        self._daemon = ControllerConnection(self._loop, daemon, plan)
        self._daemon.obey, self._daemon.on_cluster_down = self._obey, self._cluster_down
        self._daemon.greeting = self._reconnected
        self._outputs = TaskOutput(self._loop, plan, self._srun)
        self._inputs = TaskInput(self._loop, plan, self._srun, self._outputs.files)
        self._srun.on_stdin = self._inputs.feed
        self._report = StepMessages(plan, self._srun, self._outputs.files)
        self._memory = MemoryLimit(plan)
        self._starved: set[int] = set()  # pids of tasks that used too much memory
        self._tasks: dict[int, TaskPlan] = {}  # running tasks, by pid
        self._statuses: dict[int, int] = {}  # wait statuses, by rank
        self._used: dict[int, TaskUsage] = {}  # by rank
        self._sessions: set[int] = set()
        self._dead_nodes: set[str] = set()  # failed nodes whose failure slurmctld has not noticed yet
        self._lost: set[int] = set()  # ranks of tasks that died with a failed node
        self._srun_code = 0  # exit code of srun; 0: the exit code of its tasks
        self._killer: int | None = None  # uid of the user who ended the step by force
        self._timed_out = self._outlives_srun = self._quits = False
        self._terminating = self._lost_srun = self._somebody_ended = False
        self._interrupted_at = 0.0

    def run(self) -> None:
        wakeup = processes.wakeup()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        processes.adopt_orphans()
        self._loop.watch(wakeup, lambda: self._reap(wakeup))
        self._srun.send("b")
        self._launch()
        if self._memory.needed:
            self._loop.after(LOOK_S, self._watch_memory)
        # The step lasts as long as a background process of a task keeps the output open.
        while self._tasks or self._lost or self._outputs.open:
            self._turn()
        self._finish()

    def _turn(self, at_most_s: float | None = None) -> None:
        self._srun.flush()
        self._loop.turn(at_most_s)
        self._srun.flush()
        self._outputs.keep_pace()

    def _reconnected(self) -> reports.Report:
        return reports.Reconnected(tuple(self._tasks))

    # -- tasks --

    def _launch(self) -> None:
        for task in self.plan.tasks:
            try:
                stdout, stderr, ends = self._outputs.give(task)
                stdin, more = self._inputs.give(task)
            except OpenFailed:
                self._statuses[task.rank] = CANNOT_OPEN if self.plan.batch else 0
                self._report.say(f"srun: error: task {task.rank} launch failed: Slurmd could not connect IO")
                continue
            pid = launch.start(self.plan, task, stdin, stdout, stderr)
            self._tasks[pid] = task
            self._sessions.add(pid)
            for end in {*ends, *more}:
                os.close(end)
        self._daemon.tell(reports.Started(tuple(self._tasks)))
        self._inputs.ask()

    def _reap(self, wakeup: int) -> None:
        ended: list[tuple[TaskPlan, int]] = []
        for pid, status, used in processes.ended(wakeup):
            task = self._tasks.pop(pid, None)  # None: not a task, but an orphan that this process adopted
            if task:
                self._used[task.rank] = TaskUsage.of(used)
            if task and task.node in self._dead_nodes and not self._terminating:
                self._lost.add(task.rank)
            elif task:
                status = OUT_OF_MEMORY if pid in self._starved else status
                self._statuses[task.rank] = status
                ended.append((task, status))
        if ended:
            self._outputs.catch_up()
            if not self.plan.batch:
                self._tasks_ended(ended)

    def _tasks_ended(self, ended: list[tuple[TaskPlan, int]]) -> None:
        self._report.ended(ended)
        bad = any(status for _, status in ended)
        if bad and self.plan.kill_on_bad_exit and not self._terminating:
            self._report.say(f"srun: {self.plan.release.step_signal}Terminating StepId={self.plan.full_name}")
            if self._tasks:
                why = "DUE TO TASK FAILURE" if self.plan.release.says_signal else ""
                self._terminate(why, [CONT, TERM], self.plan.kill_wait_s)
        if not self._somebody_ended and self.plan.wait_s and self._tasks:
            self._somebody_ended = True
            self._loop.after(self.plan.wait_s, self._waited_long_enough)

    def _watch_memory(self) -> None:
        for pid in self._memory.excess(self._tasks):
            self._starved.add(pid)
            processes.send([pid, *processes.descendants(pid)], KILL)
        if self._starved:
            self._report.out_of_memory()
        if self._tasks:
            self._loop.after(LOOK_S, self._watch_memory)

    # -- signals --

    def _below(self) -> list[int]:
        """Returns all processes of the step: the tasks and all their descendants."""
        # A daemon that a task of this step started again is an orphan below this process, and so are the slurmstepds of
        # such a daemon that was killed. None of these processes belongs to the step. A task that is forked but has not
        # executed its program yet has the same command line as a slurmstepd.
        mine = set(self._tasks)
        return processes.descendants(os.getpid(), lambda pid: pid not in mine and is_daemon(pid, self.plan.cluster))

    def _signal_in_turn(self, signals: Sequence[int]) -> None:
        if self.plan.file_traps and TERM in signals:  # file_traps.send() also lets stopped tasks go on
            signals = [number for number in signals if number != CONT]
        for number in signals:
            self._signal_all(number)

    def _signal_all(self, number: int) -> None:
        if self.plan.file_traps and number not in (CONT, KILL):
            file_traps.send(self.plan.file_traps, self._below(), number)
        else:
            processes.send(self._below(), number)
        if number == KILL:
            for session in self._sessions:
                processes.send_group(session, number)

    def _terminate(self, why: str | None, signals: Sequence[int], kill_after: float | None, details: str = "") -> None:
        """Sends the signals to all processes of the step, prints why, and kills processes that run longer."""
        self._terminating = True
        self._fail_lost_tasks()
        self._report.cancelled(why, TERM if TERM in signals else KILL, details)
        self._signal_in_turn(signals)
        if kill_after is not None:
            self._loop.after(kill_after, self._kill)
        elif KILL in signals:
            self._loop.after(2, self._outputs.abandon)

    def _kill(self) -> None:
        self._terminating = True
        self._fail_lost_tasks()
        self._signal_all(KILL)
        self._loop.after(2, self._outputs.abandon)  # an escaped process may keep the output open

    def _fail_lost_tasks(self) -> None:
        """Gives the tasks of failed nodes the status of a KILL, because slurmctld has noticed the failure."""
        for rank in self._lost:
            self._statuses[rank] = int(KILL)
        self._lost.clear()

    def _force(self) -> None:
        """Ends the step as srun ends it: with KILL, and without delay."""
        self._report.aborted()
        self._killer = os.getuid()
        self._report.cancelled("", KILL)
        self._kill()

    def _waited_long_enough(self) -> None:
        """Kills the tasks that still run `wait_s` after the first task ended (`srun --wait`)."""
        if self._tasks and not self._terminating:
            self._report.say(f"srun: First task exited {self.plan.wait_s:g}s ago")
            self._report.conditions(self._statuses)
            self._report.say(f"srun: {self.plan.release.step_signal}Terminating StepId={self.plan.full_name}")
            self._force()

    # -- signals that srun received, and srun's death --

    def _srun_signalled(self, number: int) -> None:
        if number == signal.SIGCONT:
            self._report.say("srun: got SIGCONT")
        elif number == signal.SIGINT:
            self._interrupted()
        elif number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if number == signal.SIGQUIT:
                self._report.say("srun: Quit")
            self._report.say("srun: forcing job termination")
            if self._terminating:  # the job ends anyway, and the tasks keep their time to end
                self._report.aborted()
            else:
                self._force()
        elif number != signal.SIGPIPE:
            self._signal_all(number)

    def _interrupted(self) -> None:
        now = time.monotonic()
        if now - self._interrupted_at < 1 or self.plan.quit_on_interrupt:
            self._quits = True
            self._report.say("srun: sending Ctrl-C to StepId=" + self.plan.full_name)
            self._signal_all(signal.SIGINT)
            self._loop.after(0.2, self._force)
            return
        self._interrupted_at = now
        self._report.say("srun: interrupt (one more within 1 sec to abort)")
        self._report.conditions(self._statuses)

    def _srun_gone(self) -> None:
        """Ends the step because its srun was killed."""
        if self._tasks and not self._terminating and not self._outlives_srun:
            self._lost_srun = True
            self._killer = os.getuid()
            self._kill()

    # -- orders of slurmctld --

    def _obey(self, order: orders.Order) -> None:
        match order:
            case orders.Terminate():
                self._obey_terminate(order)
            case orders.Warn():
                self._report.cancelled("", TERM)
                self._signal_in_turn(order.signals)
            case orders.Signal():
                self._report.cancelled("" if order.number in (TERM, KILL) else None, order.number)
                self._signal_all(order.number)
            case orders.SignalScript():
                self._report.cancelled("" if order.number in (TERM, KILL) else None, order.number)
                processes.send(self._tasks, order.number)
            case orders.FailNode():
                self._dead_nodes.add(order.node)
                self._kill_tasks(lambda task: task.node == order.node)
            case orders.KillRank():
                self._kill_tasks(lambda task: task.rank == order.rank)
            case orders.OutliveSrun():
                self._outlives_srun = True
            case orders.Say():
                self._report.say(order.text)

    def _obey_terminate(self, order: orders.Terminate) -> None:
        if order.abort:
            self._report.aborted()
        if order.killer is not None:
            self._killer = order.killer
        self._timed_out = self._timed_out or order.timed_out
        self._srun_code = order.srun_code or self._srun_code
        self._terminate(order.why, order.signals, order.kill_after, order.details)
        if not self._tasks and not self.plan.batch:
            self._kill()

    def _kill_tasks(self, meant: Callable[[TaskPlan], bool]) -> None:
        for pid, task in list(self._tasks.items()):
            if meant(task):
                processes.send([pid, *processes.descendants(pid)], KILL)

    def _cluster_down(self) -> None:
        self._signal_all(KILL)
        os._exit(1)

    # -- the end --

    def _finish(self) -> None:
        """Kills the remaining processes of the tasks, and reports the end of the step to the daemon and then to srun.
        Waits until the daemon has answered.
        """
        statuses = [self._statuses.get(task.rank, 0) for task in self.plan.tasks]
        if not self.plan.batch:
            self._signal_all(KILL)
        left = self.plan.batch and bool(self._below())
        if not (left and self.plan.release.says_late_why):
            self._outputs.files.close()
        answer = self._daemon.report(
            reports.Ended(
                status=max(statuses, default=0),
                statuses=self.plan.records(self._statuses, self._killer is not None),
                usages=self._used_by_part(),
                killer=self._killer,
                timed_out=self._timed_out,
                lost_srun=self._lost_srun,
                interrupted=self._quits,
                lingers=left,
            ),
            self._turn,
        )
        if left:
            self._wait_for_leftovers(answer.linger_s)
        code = max(((status >> 8) or (128 + (status & 0x7F) if status & 0x7F else 0) for status in statuses), default=0)
        self._srun.send("x", str(self._srun_code or code).encode())
        deadline = time.monotonic() + 10
        while self._srun.waits and time.monotonic() < deadline:
            self._turn(1)

    def _used_by_part(self) -> dict[int, Usage | None]:
        """Returns the usage of each component's tasks, by the component's job id."""
        ended = [task for task in self.plan.tasks if task.rank in self._used]
        return {
            component.job: Usage.over([(task, self._used[task.rank]) for task in ended if task.component == index])
            for index, component in enumerate(self.plan.components)
        }

    def _wait_for_leftovers(self, seconds: float) -> None:
        """Waits for background processes of a batch script, so that an srun whose step is ending can finish. After
        `seconds`, kills the background processes.
        """
        deadline = time.monotonic() + seconds
        while self._below():
            if time.monotonic() >= deadline:
                self._signal_all(KILL)
            self._turn(0.02)
        self._daemon.report(reports.ScriptGone(), self._turn)
