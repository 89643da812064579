"""The process that is the cluster: it owns the clock, the sockets and the supervisors of steps."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from . import attempts, ending, journal, looks, processes, wire
from .accounting import Books
from .commands import COMMANDS
from .controller import Controller
from .conversation import Conversation, Gone
from .daemon_line import is_daemon
from .environ import MARK
from .model import Job, Model, Step
from .paths import Paths
from .plan import StepPlan
from .refusals import NoMore, Refusal
from .running import batch_plan
from .shape import Shape, User
from .stepd import Supervisor
from .stepping import StepRequest

ORDER_DELAY_S = 0.1  # the command that causes a signal has returned when the signal comes: scripts requeue themselves
LEFTOVERS_S = 1.0  # that what a script left in the background has, to end by itself
LOST_AFTER_S = 3.0  # a supervisor that does not come back to a new daemon


class Daemon:
    """Runs the event loop; everything that happens to the cluster happens in it, one thing at a time."""

    def __init__(self, paths: Paths):
        self.paths = paths
        about = json.loads(paths.shape.read_text())
        self.shape = Shape.from_json(about["shape"])
        self.owner: tuple[int, str] | None = tuple(about["owner"]) if about.get("owner") else None
        self.model = Model.of(self.shape, time.time())
        books = Books()
        if paths.journal.exists():
            journal.restore(paths.journal, self.model, books)
            journal.compact(paths.journal, self.model, books)
        self.controller = Controller(
            self.shape, paths.folder, self.model, books, journal.Journal(paths.journal), User.me()
        )
        self.controller.runner = self
        self._supervisors: dict[tuple[int, str], socket.socket] = {}
        self._pids: dict[int, tuple[int, str]] = {}  # of supervisors that are our children
        self._acks: dict[str, asyncio.Event] = {}
        self.waiting_steps: dict[int, list[StepRequest]] = {}  # by job: those that have no CPUs yet, and no number
        self._orders: dict[int, asyncio.Queue[tuple[Job, Step, dict[str, Any]]]] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket
        self._over = asyncio.Event()

    async def run(self, ready: int) -> None:
        """Until the cluster is taken down. `ready` is a descriptor to write to when commands can come."""
        self._loop = asyncio.get_running_loop()
        processes.adopt_orphans()
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._over.set)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._listener = self.paths.listen()
        self.background(self._accept())
        self.background(self._every(self.shape.settings.tick_s, self._tick))
        self.background(self._every(self.shape.settings.look_s, lambda: looks.look(self.controller)))
        if self.owner:
            self.background(self._every(0.5, self._watch_owner))
        self._loop.call_later(LOST_AFTER_S, self._bury_lost_steps)
        self._look_after_restart()
        for job in list(self.model.jobs.values()):
            if job.completing and job.empty:
                ending.finish(self.controller, job)
        os.write(ready, b"ready")
        os.close(ready)
        await self._over.wait()
        await self._take_down()

    def stop(self) -> None:
        """Take the cluster down."""
        self._over.set()

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            traceback.print_exception(task.exception(), file=sys.stderr)

    async def _every(self, seconds: float, action: Any) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                action()
                self.controller.settle()
            except Exception:  # a mistake of ours must not stop the clock
                traceback.print_exc(file=sys.stderr)

    def _tick(self) -> None:
        if any(job.waits for job in self.model.jobs.values()):
            self.controller.wake()
        looks.look_at_nodes(self.controller)
        looks.forget(self.controller)
        self.controller.tidy()

    def _watch_owner(self) -> None:
        """An owned cluster does not outlive the process that made it."""
        if self.owner and processes.birth(self.owner[0]) != self.owner[1]:
            self._over.set()

    # -- connections --

    async def _accept(self) -> None:
        while True:
            connection, _ = await self._loop.sock_accept(self._listener)
            connection.setblocking(False)
            self.background(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        """One command, or one supervisor that looks for its daemon."""
        talk = Conversation(connection, self._loop)
        try:
            opening = await talk.open()
            if opening is not None:
                await self._hear_supervisor(talk, opening)
                return
            code = 0
            try:
                command = COMMANDS.get(talk.command)
                if not command:
                    raise Refusal(f"{talk.command}: not supported by this fake cluster")
                code = await command(talk, self)
            except NoMore as end:
                code = end.exit_code
            except Refusal as refusal:
                talk.error(refusal.text)
                code = refusal.exit_code
            except Gone:
                raise
            except Exception:  # shown to the user, for it is a mistake of the fake's
                traceback.print_exc(file=sys.stderr)
                talk.error(
                    f"{talk.command}: error: the fake cluster stumbled over this: {traceback.format_exc(limit=-1)}"
                )
                code = 1
            self.controller.settle()
            await talk.exit(code)
        except (Gone, OSError):
            pass
        finally:
            talk.close()

    # -- supervisors --

    def spawn(self, job: Job, step: Step, plan: StepPlan, srun: socket.socket | None = None) -> None:
        """Fork the supervisor of a step. `srun` is the connection to its command, which it takes over."""
        ours, theirs = socket.socketpair()
        self.controller.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._become_supervisor(ours, [theirs, srun])
                Supervisor(plan, theirs, srun).run()
                code = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(code)
        theirs.close()
        ours.setblocking(False)
        step.supervisor = pid
        step.supervisor_birth = processes.birth(pid)
        self._pids[pid] = (job.id, step.id)
        self._supervisors[job.id, step.id] = ours
        self.controller.changed(job)
        self.background(self._hear_supervisor(Conversation(ours, self._loop), None))

    def _become_supervisor(self, ours: socket.socket, kept: list[socket.socket | None]) -> None:
        """In the child: let go of all that is the daemon's."""
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
            signal.signal(name, signal.SIG_DFL)
        os.setpgid(0, 0)
        keep = sorted(entry.fileno() for entry in kept if entry)
        low = 3
        for number in keep:
            os.closerange(low, number)
            low = number + 1
        os.closerange(low, 4096)
        asyncio._set_running_loop(None)

    async def _hear_supervisor(self, talk: Conversation, opening: dict[str, Any] | None) -> None:
        key: tuple[int, str] | None = None
        message = opening
        try:
            while True:
                if message is None:
                    message = await talk.message()
                key = (message["job"], message["step"])
                self._supervisors[key] = talk.connection
                self._obey_supervisor(talk, message)
                message = None
        except (Gone, OSError):
            if key and self._supervisors.get(key) is talk.connection:
                del self._supervisors[key]
        finally:
            talk.close()

    def _obey_supervisor(self, talk: Conversation, message: dict[str, Any]) -> None:
        job = self.model.jobs.get(message["job"])
        step = job.step(message["step"]) if job else None
        if step and step.restart != message["restart"]:
            step = None
        if message["op"] == "ack":
            event = self._acks.pop(message["ack"], None)
            if event:
                event.set()
            return
        if message["op"] == "ended":
            patient = job is not None and job.completing  # all were told to end, and have their time
            if job and step:
                ending.step_ended(self.controller, job, step, message)
                patient = patient or any(other.live for other in job.steps)
            self.controller.settle()
            talk.send_message(op="received", linger_s=self.shape.settings.kill_wait_s + 0.5 if patient else LEFTOVERS_S)
        elif message["op"] == "gone":
            if job and step:
                ending.script_gone(self.controller, job, step)
            self.controller.settle()
            talk.send_message(op="received")
        elif job and step:
            if not step.supervisor:  # it was forked just before the old daemon could write that down
                step.supervisor, step.supervisor_birth = message["pid"], processes.birth(message["pid"])
            step.pids = list(message["pids"].values())
            self.controller.changed(job)
            self.controller.settle()
            if job.completing and message["op"] == "hello":  # the order may have been lost with the old daemon
                self.order(job, step, op="terminate", why="", abort=False, signals=[signal.SIGTERM],
                           kill_after=self.shape.settings.kill_wait_s)  # fmt: skip
        else:  # of an attempt that is over, as far as we know
            talk.send_message(op="terminate", why="", abort=False, signals=[signal.SIGKILL], kill_after=None)

    # -- what the controller asks for (its Runner) --

    def start_batch(self, job: Job, step: Step) -> None:
        self.spawn(job, step, batch_plan(self.controller, job, self.paths))

    def order(self, job: Job, step: Step, **order: Any) -> None:
        """Orders to the steps of a job are obeyed one after the other: each is acknowledged before the next goes."""
        queue = self._orders.get(job.id)
        if queue is None:
            queue = self._orders[job.id] = asyncio.Queue()
            self.background(self._give_orders(job.id, queue))
        queue.put_nowait((job, step, order))

    async def _give_orders(self, job_id: int, queue: "asyncio.Queue[tuple[Job, Step, dict[str, Any]]]") -> None:
        number = 0
        await asyncio.sleep(ORDER_DELAY_S)
        while not queue.empty():
            job, step, order = queue.get_nowait()
            connection = self._supervisors.get((job.id, step.id))
            if not connection or not step.live:
                continue
            number += 1
            name = f"{job_id}.{number}.{time.monotonic_ns()}"
            event = self._acks[name] = asyncio.Event()
            try:
                await self._loop.sock_sendall(connection, wire.frame("J", json.dumps({**order, "ack": name}).encode()))
                await asyncio.wait_for(event.wait(), 1.0)
            except (OSError, asyncio.TimeoutError):
                self._acks.pop(name, None)
        del self._orders[job_id]

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            action()
            self.controller.settle()

        self._loop.call_later(seconds, act)

    def told(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Until some job changes."""
        await self._changed.wait()

    # -- processes --

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            key = self._pids.pop(pid, None)
            if key:
                self._loop.call_later(0.2, self._supervisor_died, *key, pid)

    def _supervisor_died(self, job_id: int, step_id: str, pid: int) -> None:
        """If it did not say that its step is over, somebody killed it: then its tasks are dead as well."""
        for child in processes.children(os.getpid()):
            if child not in self._pids and not is_daemon(child, str(self.paths.folder)):  # was below it, and came to us
                processes.send([child, *processes.descendants(child)], signal.SIGKILL)
        job = self.model.jobs.get(job_id)
        step = job.step(step_id) if job else None
        if not job or not step or step.supervisor != pid:
            return
        if step.live:
            ending.step_ended(self.controller, job, step, {"status": int(signal.SIGKILL)})
        elif step.lingers:
            ending.script_gone(self.controller, job, step)
        self.controller.settle()

    def _look_after_restart(self) -> None:
        """Steps whose supervisor died while there was no daemon."""
        for job in list(self.model.jobs.values()):
            for step in job.steps:
                gone = step.supervisor and processes.birth(step.supervisor) != step.supervisor_birth
                if gone and (step.live or step.lingers):
                    self._lost(job, step)
        self.controller.wake()
        self.controller.settle()

    def _bury_lost_steps(self) -> None:
        """Supervisors that did not come back to a new daemon, or were never forked by the old one."""
        for job in list(self.model.jobs.values()):
            for step in list(job.steps):
                absent = (job.id, step.id) not in self._supervisors and step.supervisor not in self._pids
                if not absent or not (step.live or step.lingers):
                    continue
                if step.supervisor:
                    processes.send([*processes.descendants(step.supervisor), step.supervisor], signal.SIGKILL)
                    self._lost(job, step)
                else:
                    ending.never_began(self.controller, job, step)
        self.controller.settle()

    def _lost(self, job: Job, step: Step) -> None:
        """As Slurm treats a node that was lost: the job is requeued, or fails."""
        if step.live:
            step.end, step.status = time.time(), int(signal.SIGKILL)
        step.lingers = False
        if not job.completing:
            attempts.lose_node(self.controller, job, step.nodes[0])
        elif job.empty:
            ending.finish(self.controller, job)

    async def _take_down(self) -> None:
        """Kill everything that the cluster started."""
        self.paths.up.unlink(missing_ok=True)
        self._listener.close()
        self.paths.socket.unlink(missing_ok=True)
        conf = f"{MARK}={self.controller.conf_path()}"
        for _ in range(100):
            left = [*processes.descendants(os.getpid()), *processes.marked(conf)]
            left = [pid for pid in left if pid != os.getpid() and processes.alive(pid)]
            if not left:
                break
            processes.send(left, signal.SIGKILL)
            await asyncio.sleep(0.05)
        self.paths.pid.unlink(missing_ok=True)
