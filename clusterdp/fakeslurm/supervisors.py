"""The supervisors of steps, as the daemon has them: forked, heard, told what to do, and missed when they are gone."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from . import attempts, ending, processes, wire
from .conversation import Conversation, Gone
from .daemon_line import is_daemon
from .model import Job, Step
from .plan import StepPlan
from .stepd import Supervisor

if TYPE_CHECKING:
    from .daemon import Daemon

ORDER_DELAY_S = 0.1  # the command that causes a signal has returned when the signal comes: scripts requeue themselves
LEFTOVERS_S = 1.0  # that what a script left in the background has, to end by itself


class Supervisors:
    def __init__(self, daemon: Daemon):
        self._daemon = daemon
        self._supervisors: dict[tuple[int, str], socket.socket] = {}
        self._pids: dict[int, tuple[int, str]] = {}  # of those that are our children
        self._acks: dict[str, asyncio.Event] = {}
        self._orders: dict[int, asyncio.Queue[tuple[Job, Step, dict[str, Any]]]] = {}

    def spawn(self, job: Job, step: Step, plan: StepPlan, srun: socket.socket | None = None) -> None:
        """Fork the supervisor of a step. `srun` is the connection to its command, which it takes over."""
        ours, theirs = socket.socketpair()
        self._daemon.controller.flush()
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
        self._daemon.controller.changed(job)
        self._daemon.background(self.hear(Conversation(ours, self._daemon.loop), None))

    def _become_supervisor(self, ours: socket.socket, kept: list[socket.socket | None]) -> None:
        """In the child: let go of all that is the daemon's."""
        gc.disable()  # a look for garbage would copy all of the daemon's memory, page by page
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

    async def hear(self, talk: Conversation, opening: dict[str, Any] | None) -> None:
        key: tuple[int, str] | None = None
        message = opening
        try:
            while True:
                if message is None:
                    message = await talk.message()
                key = (message["job"], message["step"])
                self._supervisors[key] = talk.connection
                self._obey(talk, message)
                message = None
        except (Gone, OSError):
            if key and self._supervisors.get(key) is talk.connection:
                del self._supervisors[key]
        finally:
            talk.close()

    def _obey(self, talk: Conversation, message: dict[str, Any]) -> None:
        job = self._daemon.model.jobs.get(message["job"])
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
                ending.step_ended(self._daemon.controller, job, step, message)
                patient = patient or any(other.live for other in job.steps)
            self._daemon.controller.settle()
            linger_s = self._daemon.shape.settings.kill_wait_s + 0.5 if patient else LEFTOVERS_S
            self._daemon.background(self._received(talk, message["job"], linger_s))
        elif message["op"] == "gone":
            if job and step:
                ending.script_gone(self._daemon.controller, job, step)
            self._daemon.controller.settle()
            talk.send_message(op="received")
        elif job and step:
            if not step.supervisor:  # it was forked just before the old daemon could write that down
                step.supervisor, step.supervisor_birth = message["pid"], processes.birth(message["pid"])
            step.pids = list(message["pids"].values())
            self._daemon.controller.changed(job)
            self._daemon.controller.settle()
            if job.completing and message["op"] == "hello":  # the order may have been lost with the old daemon
                self.order(job, step, op="terminate", why="", abort=False, signals=[signal.SIGTERM],
                           kill_after=self._daemon.shape.settings.kill_wait_s)  # fmt: skip
        else:  # of an attempt that is over, as far as we know
            talk.send_message(op="terminate", why="", abort=False, signals=[signal.SIGKILL], kill_after=None)

    async def _received(self, talk: Conversation, job_id: int, linger_s: float) -> None:
        """A step may go, and its srun end, when all of the job have heard what they are to hear: else the script would
        see srun end before its own signal comes, and would do who knows what."""
        while job_id in self._orders:
            await asyncio.sleep(0.02)
        talk.send_message(op="received", linger_s=linger_s)

    def order(self, job: Job, step: Step, **order: Any) -> None:
        """Orders to the steps of a job are obeyed one after the other: each is acknowledged before the next goes."""
        queue = self._orders.get(job.id)
        if queue is None:
            queue = self._orders[job.id] = asyncio.Queue()
            self._daemon.background(self._give_orders(job.id, queue))
        queue.put_nowait((job, step, order))

    async def _give_orders(self, job_id: int, queue: asyncio.Queue[tuple[Job, Step, dict[str, Any]]]) -> None:
        number = 0
        await asyncio.sleep(ORDER_DELAY_S)
        while not queue.empty():
            job, step, order = queue.get_nowait()
            connection = self._supervisors.get((step.runs_in or job.id, step.id))
            if not connection or not step.live:
                continue
            number += 1
            name = f"{job_id}.{number}.{time.monotonic_ns()}"
            event = self._acks[name] = asyncio.Event()
            try:
                await self._daemon.loop.sock_sendall(
                    connection, wire.frame("J", json.dumps({**order, "ack": name}).encode())
                )
                await asyncio.wait_for(event.wait(), 1.0)
            except (OSError, asyncio.TimeoutError):
                self._acks.pop(name, None)
        del self._orders[job_id]

    def reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            key = self._pids.pop(pid, None)
            if key:
                self._daemon.loop.call_later(0.2, self._died, *key, pid)

    def _died(self, job_id: int, step_id: str, pid: int) -> None:
        """If it did not say that its step is over, somebody killed it: then its tasks are dead as well."""
        for child in processes.children(os.getpid()):
            if child not in self._pids and not is_daemon(
                child, str(self._daemon.paths.folder)
            ):  # was below it, and came to us
                processes.send([child, *processes.descendants(child)], signal.SIGKILL)
        job = self._daemon.model.jobs.get(job_id)
        step = job.step(step_id) if job else None
        if not job or not step or step.supervisor != pid:
            return
        if step.live:
            ending.step_ended(self._daemon.controller, job, step, {"status": int(signal.SIGKILL)})
        elif step.lingers:
            ending.script_gone(self._daemon.controller, job, step)
        self._daemon.controller.settle()

    def look_after_restart(self) -> None:
        """Steps whose supervisor died while there was no daemon."""
        for job in list(self._daemon.model.live_jobs()):
            for step in job.steps:
                gone = step.supervisor and processes.birth(step.supervisor) != step.supervisor_birth
                if gone and (step.live or step.lingers):
                    self._lost(job, step)
        self._daemon.controller.wake()
        self._daemon.controller.settle()

    def bury_lost(self) -> None:
        """Supervisors that did not come back to a new daemon, or were never forked by the old one."""
        for job in list(self._daemon.model.live_jobs()):
            for step in list(job.steps):
                absent = (job.id, step.id) not in self._supervisors and step.supervisor not in self._pids
                if not absent or step.runs_in or not (step.live or step.lingers):
                    continue
                if step.supervisor:
                    processes.send([*processes.descendants(step.supervisor), step.supervisor], signal.SIGKILL)
                    self._lost(job, step)
                else:
                    ending.never_began(self._daemon.controller, job, step)
        self._daemon.controller.settle()

    def _lost(self, job: Job, step: Step) -> None:
        """As Slurm treats a node that was lost: the job is requeued, or fails."""
        if step.live:
            step.end, step.status = self._daemon.controller.clock(), int(signal.SIGKILL)
            ending.end_mirrors(self._daemon.controller, job, step, {"status": step.status})
        step.lingers = False
        if not job.completing:
            attempts.lose_node(self._daemon.controller, job, step.nodes[0])
        elif job.empty:
            ending.finish(self._daemon.controller, job)
