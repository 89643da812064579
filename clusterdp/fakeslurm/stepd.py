"""The supervisor of one step: a process that starts its tasks on all its nodes, carries their output, signals them, and
outlives a daemon that is killed. It is slurmstepd, and the brain of srun besides (srun itself only prints)."""

import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from . import launching, processes, wire
from .plan import StepPlan, Target, TaskPlan
from .streams import CHUNK, Files, Lines, OpenFailed, goes_straight, label

FULL = 1 << 20  # bytes waiting for srun, beyond which tasks are not read any further
CANNOT_OPEN = 53  # the "signal" by which a job ends whose output file cannot be opened
PATIENCE_S = 2.0  # without a daemon, until one is started


class Supervisor:
    """Runs a step to its end. All of it happens in `run`, on one thread."""

    def __init__(self, plan: StepPlan, daemon: socket.socket, srun: socket.socket | None):
        self.plan = plan
        self._daemon: socket.socket | None = daemon
        self._srun = srun
        self._from_daemon, self._from_srun = wire.Frames(), wire.Frames()
        self._to_srun = bytearray()
        self._select = selectors.DefaultSelector()
        self._files = Files(plan)
        self._tasks: dict[int, TaskPlan] = {}  # by pid: those that run
        self._statuses: dict[int, int] = {}  # by rank
        self._pipes: dict[int, Callable[[bytes], None]] = {}  # by descriptor: what takes its bytes
        self._stdins: dict[int, bytearray] = {}  # by descriptor: what still has to go there
        self._sinks: dict[str, int] = {}  # files into which the output of all tasks is carried
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._terminating = False
        self._aborted = False  # srun has said "Job step aborted"
        self._cancelled_said = False
        self._forced_said = False
        self._interrupt_at = 0.0
        self._killer: int | None = None  # who ended it by force: a uid
        self._lost_srun = False
        self._timed_out = False
        self._launch_failed = False
        self._acknowledged = False
        self._lost_daemon_at: float | None = None
        self._sessions: set[int] = set()
        self._kill_at = 0.0
        self._first_end = False

    # -- the loop --

    def run(self) -> None:
        wakeup, written = os.pipe()
        for end in (wakeup, written):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        processes.adopt_orphans()
        self._select.register(wakeup, selectors.EVENT_READ, lambda: self._reap(wakeup))
        self._listen_to_daemon()
        if self._srun:
            self._srun.setblocking(False)
            self._select.register(self._srun, selectors.EVENT_READ, self._read_srun)
        self._launch()
        while not self._over():
            self._turn()
        self._finish()

    def _turn(self) -> None:
        self._flush_srun()
        now = time.monotonic()
        timeout = min((when - now for when, _ in self._timers), default=None)
        for key, _ in self._select.select(None if timeout is None else max(timeout, 0)):
            key.data()
        self._flush_srun()
        now = time.monotonic()
        due = [action for when, action in self._timers if when <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for action in due:
            action()

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, action))

    def _over(self) -> bool:
        """All tasks ended, and nobody holds their output any more."""
        if self._tasks or self._pipes:
            return False
        if self.plan.batch and self._terminating and self._kill_at > time.monotonic():
            # What the script started, srun above all, has the same time to end as the script had.
            self._after(0.05, lambda: None)
            return not processes.descendants(os.getpid(), but=self._daemon_pid())
        return True

    # -- tasks --

    def _launch(self) -> None:
        for task in self.plan.tasks:
            try:
                self._start(task)
            except OpenFailed:
                self._launch_failed = True
                self._statuses[task.rank] = CANNOT_OPEN if self.plan.batch else 0
                self._say(f"srun: error: task {task.rank} launch failed: Slurmd could not connect IO")
        self._tell(op="started", pids={task.rank: pid for pid, task in self._tasks.items()})
        if self._stdins and self._srun:
            self._send("i")

    def _start(self, task: TaskPlan) -> None:
        plan = self.plan
        stdout, stdout_reader = self._output(plan.stdout, task, "o")
        if plan.stderr is None and stdout_reader is None:
            stderr, stderr_reader = stdout, None
        else:
            stderr, stderr_reader = self._output(plan.stderr or plan.stdout, task, "e")
        stdin, stdin_writer = self._input(task)
        pid = launching.start(plan, task, stdin, stdout, stderr)
        self._tasks[pid] = task
        self._sessions.add(pid)
        if stdin_writer is not None:
            os.close(stdin)
            os.set_blocking(stdin_writer, False)
            self._stdins[stdin_writer] = bytearray()
        elif plan.stdin.kind == "file":
            os.close(stdin)
        for reader, end in ((stdout_reader, stdout), (stderr_reader, stderr)):
            if reader is not None:
                os.close(end)
                self._select.register(reader, selectors.EVENT_READ, partial(self._read_pipe, reader))

    def _output(self, target: Target, task: TaskPlan, stream: str) -> tuple[int, int | None]:
        """The descriptor for the task, and the end of a pipe to read from if the bytes have to be carried."""
        if goes_straight(target) or self.plan.batch or (target.kind == "one" and target.rank != task.rank):
            return self._files.descriptor(target, task), None
        if target.kind == "file" and target.pattern not in self._sinks:
            self._sinks[target.pattern] = os.dup(self._files.descriptor(target, task))
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        prefix = label(task.rank, len(self.plan.tasks)) if self.plan.label else b""
        lines = Lines(prefix, self.plan.unbuffered)
        sink = self._sinks.get(target.pattern) if target.kind == "file" else None

        def take(data: bytes) -> None:
            text = lines.take(data) if data else lines.finish()
            if text and sink is not None:
                os.write(sink, text)
            elif text:
                self._send(stream, text)

        self._pipes[reader] = take
        return writer, reader

    def _input(self, task: TaskPlan) -> tuple[int, int | None]:
        target = self.plan.stdin
        if target.kind == "file" and not self.plan.batch:
            return self._files.input(target, task), None
        if target.kind == "srun" or (target.kind == "one" and target.rank == task.rank):
            return os.pipe()
        return self._files.input(Target("null"), task), None

    def _read_pipe(self, reader: int) -> None:
        if reader not in self._pipes:  # read to its end while the same turn of the loop had it down as ready
            return
        try:
            data = os.read(reader, CHUNK)
        except BlockingIOError:
            return
        self._pipes[reader](data)
        if not data:
            self._forget_pipe(reader)

    def _forget_pipe(self, reader: int) -> None:
        self._select.unregister(reader)
        del self._pipes[reader]
        os.close(reader)

    def _reap(self, wakeup: int) -> None:
        try:
            os.read(wakeup, 512)
        except BlockingIOError:
            pass
        ended: list[tuple[TaskPlan, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            task = self._tasks.pop(pid, None)  # or an orphan that came to us
            if task:
                self._statuses[task.rank] = status
                ended.append((task, status))
        if ended:
            self._read_what_is_there()
            self._tasks_ended(ended)

    def _read_what_is_there(self) -> None:
        """What a task wrote comes before the news of its end."""
        for reader in list(self._pipes):
            for _ in range(64):
                before = len(self._to_srun)
                if reader not in self._pipes:
                    break
                self._read_pipe(reader)
                if len(self._to_srun) == before:
                    break

    def _tasks_ended(self, ended: list[tuple[TaskPlan, int]]) -> None:
        if self.plan.batch:
            return
        groups: dict[tuple[int, str, int], list[int]] = {}
        for task, status in ended:
            groups.setdefault((task.node_index, task.node, status), []).append(task.rank)
        for (_, node, status), ranks in sorted(groups.items()):
            self._report(node, status, sorted(ranks))
        bad = any(status for _, status in ended)
        if bad and self.plan.kill_on_bad_exit and self._tasks and not self._terminating:
            self._say(f"srun: launch/slurm: _step_signal: Terminating StepId={self.plan.full_name}")
            self.terminate("", [signal.SIGCONT, signal.SIGTERM], self.plan.kill_wait_s)
        if not self._first_end and self.plan.wait_s and self._tasks:
            self._first_end = True
            self._after(self.plan.wait_s, self._waited_long_enough)

    def _report(self, node: str, status: int, ranks: list[int]) -> None:
        """What srun says of tasks that did not end well."""
        from .model import ranges

        if not status:
            return
        number, code = status & 0x7F, status >> 8
        if number == signal.SIGKILL and not self._aborted and not self._forced_said:
            self._forced_said = True
            self._say(f"srun: Force Terminated StepId={self.plan.full_name}")
        how = signal.strsignal(number) if number else f"Exited with exit code {code}"
        if status & 0x80:
            how = f"{how} (core dumped)"
        word = "task" if len(ranks) == 1 else "tasks"
        self._say(f"srun: error: {node}: {word} {ranges(ranks)}: {how}")

    # -- ends by force --

    def terminate(self, why: str, signals: list[int], kill_after: float | None) -> None:
        """Signal everything, say so, and kill what is left later."""
        self._terminating = True
        self._say_cancelled(why)
        for number in signals:
            self.signal_all(number)
        if kill_after is not None:
            self._kill_at = time.monotonic() + kill_after
            self._after(kill_after, self.kill)

    def kill(self) -> None:
        self._terminating = True
        self.signal_all(signal.SIGKILL)
        self._after(2, self._stop_listening)  # whoever escaped and still holds the output

    def _stop_listening(self) -> None:
        for reader in list(self._pipes):
            self._pipes[reader](b"")
            self._forget_pipe(reader)

    def signal_all(self, number: int, nodes: list[str] | None = None) -> None:
        """To all processes of the step (on these nodes), however deep."""
        pids = [pid for pid, task in self._tasks.items() if nodes is None or task.node in nodes]
        if nodes is None:
            processes.send(processes.descendants(os.getpid(), but=self._daemon_pid()), number)
            if number == signal.SIGKILL:
                for session in self._sessions:
                    processes.send_group(session, number)
            return
        below = [child for pid in pids for child in processes.descendants(pid)]
        processes.send([*pids, *below], number)

    def _daemon_pid(self) -> int:
        """A daemon that was started again from within this step has come to us as an orphan, and is none of ours."""
        try:
            with open(os.path.join(self.plan.cluster, "daemon.pid")) as file:
                return int(file.read())
        except (OSError, ValueError):
            return 0

    def _signal_script(self, number: int) -> None:
        """The batch shell alone, not its children."""
        processes.send(self._tasks, number)

    def _say_cancelled(self, why: str) -> None:
        if self._cancelled_said or why is None:
            return
        self._cancelled_said = True
        what = "JOB" if self.plan.batch else "STEP"
        name = self.plan.job if self.plan.batch else self.plan.full_name
        how = why if why.startswith("FAILED") else time.strftime("CANCELLED AT %Y-%m-%dT%H:%M:%S") + (f" {why}" if why else "")
        self._say(f"slurmstepd: error: *** {what} {name} ON {self.plan.nodes[0]} {how} ***")

    def _say_aborted(self) -> None:
        if not self._aborted:
            self._aborted = True
            seconds = int(self.plan.kill_wait_s + 2)
            self._say(f"srun: Job step aborted: Waiting up to {seconds} seconds for job step to finish.")

    def _waited_long_enough(self) -> None:
        """`srun --wait`: the others are killed, without a warning."""
        from .model import ranges

        if not self._tasks or self._terminating:
            return
        self._say(f"srun: First task exited {self.plan.wait_s:g}s ago")
        kinds: dict[str, list[int]] = {}
        for task in self.plan.tasks:
            kinds.setdefault(self._condition(task.rank), []).append(task.rank)
        for kind, ranks in kinds.items():
            word = "task" if len(ranks) == 1 else "tasks"
            self._say(f"srun: StepId={self.plan.full_name} {word} {ranges(ranks)}: {kind}")
        self._say(f"srun: launch/slurm: _step_signal: Terminating StepId={self.plan.full_name}")
        self._force()

    def _condition(self, rank: int) -> str:
        if rank not in self._statuses:
            return "running"
        return "exited abnormally" if self._statuses[rank] else "exited"

    def _force(self) -> None:
        """srun ends its step: KILL at once."""
        self._say_aborted()
        self._killer = os.getuid()
        self._say_cancelled("")
        self.kill()

    # -- srun --

    def _send(self, kind: str, payload: bytes = b"") -> None:
        if self._srun:
            self._to_srun += wire.frame(kind, payload)

    def _say(self, text: str) -> None:
        """A line of srun's or slurmstepd's own."""
        line = (text + "\n").encode("utf-8", "surrogateescape")
        if self._srun:
            self._send("e", line)
        elif self.plan.batch and not text.startswith("srun:"):
            try:
                target = self.plan.stderr or self.plan.stdout
                os.write(self._files.descriptor(target, self.plan.tasks[0]), line)
            except (OSError, OpenFailed):
                pass

    def _flush_srun(self) -> None:
        if self._srun and self._to_srun:
            try:
                sent = self._srun.send(self._to_srun)
                del self._to_srun[:sent]
            except BlockingIOError:
                pass
            except OSError:
                self._srun_gone()
                return
        if self._srun:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._to_srun else 0)
            if self._select.get_key(self._srun).events != wanted:
                self._select.modify(self._srun, wanted, self._read_srun)
        self._hold_tasks(len(self._to_srun) > FULL)

    def _hold_tasks(self, hold: bool) -> None:
        """Do not read tasks while srun does not keep up."""
        known = self._select.get_map()
        for reader in self._pipes:
            if hold and reader in known:
                self._select.unregister(reader)
            elif not hold and reader not in known:
                self._select.register(reader, selectors.EVENT_READ, partial(self._read_pipe, reader))

    def _read_srun(self) -> None:
        assert self._srun
        try:
            data = self._srun.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._srun_gone()
            return
        for kind, payload in self._from_srun.feed(data):
            if kind == "i":
                self._feed_tasks(payload)
            elif kind == "s":
                self._srun_signalled(int(payload))

    def _srun_gone(self) -> None:
        """srun was killed, and its step dies with it."""
        if not self._srun:
            return
        self._select.unregister(self._srun)
        self._srun.close()
        self._srun = None
        self._to_srun.clear()
        if self._tasks and not self._terminating:
            self._lost_srun = True
            self._killer = os.getuid()
            self.kill()

    def _srun_signalled(self, number: int) -> None:
        if number == signal.SIGCONT:
            self._say("srun: got SIGCONT")
        elif number == signal.SIGINT:
            self._interrupted()
        elif number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if number == signal.SIGQUIT:
                self._say("srun: Quit")
            self._say("srun: forcing job termination")
            if self._terminating:  # the job ends anyway, and its tasks have their time
                self._say_aborted()
            else:
                self._force()
        elif number != signal.SIGPIPE:
            self.signal_all(number)

    def _interrupted(self) -> None:
        from .model import ranges

        now = time.monotonic()
        if now - self._interrupt_at < 1:
            self._say("srun: sending Ctrl-C to StepId=" + self.plan.full_name)
            self.signal_all(signal.SIGINT)
            self._force()
            return
        self._interrupt_at = now
        self._say("srun: interrupt (one more within 1 sec to abort)")
        kinds: dict[str, list[int]] = {}
        for task in self.plan.tasks:
            kinds.setdefault(self._condition(task.rank), []).append(task.rank)
        for kind, ranks in kinds.items():
            word = "task" if len(ranks) == 1 else "tasks"
            self._say(f"srun: StepId={self.plan.full_name} {word} {ranges(ranks)}: {kind}")

    def _feed_tasks(self, data: bytes) -> None:
        """stdin of srun: to every task (or the one that was asked for)."""
        for writer in list(self._stdins):
            if not data:
                self._close_stdin(writer)
                continue
            try:
                os.set_blocking(writer, True)  # a task that does not read holds up srun's stdin, nothing else that matters
                os.write(writer, data)
            except OSError:
                self._close_stdin(writer)

    def _close_stdin(self, writer: int) -> None:
        os.close(writer)
        del self._stdins[writer]

    # -- the daemon --

    def _listen_to_daemon(self) -> None:
        assert self._daemon
        self._daemon.setblocking(False)
        self._select.register(self._daemon, selectors.EVENT_READ, self._read_daemon)

    def _tell(self, **message: Any) -> None:
        if self._daemon:
            about = {"job": self.plan.job, "step": self.plan.step, "restart": self.plan.restart, "pid": os.getpid()}
            try:
                self._daemon.setblocking(True)
                self._daemon.sendall(wire.frame("J", json.dumps({**about, **message}).encode()))
                self._daemon.setblocking(False)
            except OSError:
                self._daemon_gone()

    def _read_daemon(self) -> None:
        assert self._daemon
        try:
            data = self._daemon.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._daemon_gone()
            return
        for _, payload in self._from_daemon.feed(data):
            self._obey(json.loads(payload))

    def _obey(self, order: dict[str, Any]) -> None:
        op = order["op"]
        if op == "terminate":
            if order.get("abort"):
                self._say_aborted()
            if order.get("killer") is not None:
                self._killer = order["killer"]
            self._timed_out = self._timed_out or order.get("timed_out", False)
            if not self._tasks:
                self._after(0, self.kill)
            self.terminate(order["why"], order["signals"], order["kill_after"])
        elif op == "warn":
            self._say_cancelled(order["why"])
            for number in order["signals"]:
                self.signal_all(number)
        elif op == "signal":
            self.signal_all(order["signal"])
        elif op == "signal-script":
            self._signal_script(order["signal"])
        elif op == "fail-node":
            self.signal_all(signal.SIGKILL, [order["node"]])
        elif op == "say":
            self._say(order["text"])
        elif op == "received":
            self._acknowledged = True
        if order.get("ack"):
            self._tell(op="ack", ack=order["ack"])

    def _daemon_gone(self) -> None:
        """It was killed. The tasks go on; look for the next one, and start it if nobody else does."""
        if self._daemon:
            self._select.unregister(self._daemon)
            self._daemon.close()
            self._daemon = None
            self._from_daemon = wire.Frames()
            self._lost_daemon_at = time.monotonic()
        self._after(0.1, self._seek_daemon)

    def _seek_daemon(self) -> None:
        if self._daemon:
            return
        if not os.path.exists(os.path.join(self.plan.cluster, "up")):  # the cluster is down for good
            self.signal_all(signal.SIGKILL)
            os._exit(1)
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(self.plan.socket)
        except OSError:
            line.close()
            if self._lost_daemon_at and time.monotonic() - self._lost_daemon_at > PATIENCE_S:
                self._lost_daemon_at = time.monotonic()
                revive(self.plan.cluster)
            self._after(0.2, self._seek_daemon)
            return
        self._daemon = line
        self._listen_to_daemon()
        self._tell(op="hello", pids={task.rank: pid for pid, task in self._tasks.items()})

    # -- the end --

    def _finish(self) -> None:
        """Kill what the tasks left behind, tell srun and the daemon, and go when the daemon knows."""
        self.signal_all(signal.SIGKILL)
        statuses = [self._statuses.get(task.rank, 0) for task in self.plan.tasks]
        self._files.close()
        ended = {
            "op": "ended",
            "status": max(statuses, default=0),
            "killer": self._killer,
            "timed_out": self._timed_out,
            "lost_srun": self._lost_srun,
        }
        self._tell(**ended)
        self._wait_for(lambda: self._acknowledged, ended)
        code = max(((status >> 8) or (128 + (status & 0x7F) if status & 0x7F else 0) for status in statuses), default=0)
        self._send("x", str(code).encode())
        deadline = time.monotonic() + 10
        while self._srun and self._to_srun and time.monotonic() < deadline:
            self._turn()

    def _wait_for(self, condition: Callable[[], bool], ended: dict[str, Any]) -> None:
        """For the daemon to have it in its books; a new daemon is told again."""
        told = self._daemon
        while not condition():
            self._after(1, lambda: None)
            self._turn()
            if self._daemon is not None and self._daemon is not told:
                told = self._daemon
                self._tell(**ended)


def revive(folder: str) -> None:
    """Start the daemon of that cluster again; a second one that is started meanwhile gives way by itself."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shims", "revive.py")
    pid = os.fork()
    if pid == 0:
        try:
            words = [sys.executable, "-S", "-E", "-s", script, folder]
            os.execve(sys.executable, words, {"PATH": os.environ.get("PATH", os.defpath)})
        finally:
            os._exit(1)
