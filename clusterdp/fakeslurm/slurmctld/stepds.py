"""The supervisors of steps, as the daemon has them: born, heard, told what to do, and missed when they are gone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from clusterdp.fakeslurm.core import orders, processes, reports, wire
from clusterdp.fakeslurm.core.model import Job, Step
from clusterdp.fakeslurm.core.step_plan import StepPlan
from clusterdp.fakeslurm.slurmctld import job_end, requeue
from clusterdp.fakeslurm.slurmctld.connection import Conversation, Gone
from clusterdp.fakeslurm.slurmstepd.controller_connection import is_daemon
from clusterdp.fakeslurm.slurmstepd.forkserver import GO, Nursery, end_orphans

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon

ORDER_DELAY_S = 0.1  # the command that causes a signal has returned when the signal comes: scripts requeue themselves
LAST_WORDS_S = 0.2  # of a supervisor that is dead: what it said may still be on its way
LOST_AFTER_S = 3.0  # a supervisor that does not come back to a new daemon
BACK_S = 0.05  # until the next look whether one is back
FULL_DISK_S = 0.5  # until the next try
LEFTOVERS_S = 1.0  # that what a script left in the background has, to end by itself

Key = tuple[int, str]  # a job, and the id of a step
Given = tuple[Job, Step, orders.Order]


class Supervisors:
    def __init__(self, daemon: Daemon, nursery: Nursery):
        self._daemon, self._nursery = daemon, nursery
        self._supervisors: dict[Key, socket.socket] = {}
        self._unborn: dict[Key, asyncio.Event] = {}  # asked for
        self._born: list[Key] = []  # and to be told to begin
        self._acks: dict[str, asyncio.Event] = {}
        self._closed = False
        self._orders: dict[int, deque[Given]] = {}  # by job; the first is being given

    def open(self) -> None:
        self._daemon.loop.add_reader(self._nursery.line, self._news)

    def close(self) -> None:
        """No more of them."""
        self._closed = True
        self._daemon.loop.remove_reader(self._nursery.line)

    def spawn(self, job: Job, step: Step, plan: StepPlan, srun: socket.socket | None = None) -> None:
        """Have the supervisor of a step forked. `srun` is the connection to its command, which it takes over."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        key = job.id, step.id
        self._supervisors[key], self._unborn[key] = ours, asyncio.Event()
        try:
            self._nursery.ask(plan, theirs, srun)
        except OSError:
            pass  # it is dead, which _news is about to hear
        theirs.close()
        self._daemon.loop.call_soon(self._news)  # some may have been read while it was asked
        self._daemon.background(self.hear(Conversation(ours, self._daemon.loop), None, key))

    def _news(self) -> None:
        news = [] if self._closed else self._nursery.news()
        if news is None:
            self._replace_nursery()
            return
        for each in news:
            job = self._daemon.model.jobs.get(each["job"])
            step = job.step(each["step"]) if job else None
            if job and step:
                step.supervisor, step.supervisor_birth = each["born"], processes.birth(each["born"])
                self._daemon.controller.changed(job)
            self._born.append((each["job"], each["step"]))
        self._release()

    def _release(self) -> None:
        """Who was born may begin when that is written down: whoever comes after us finds it."""
        if not self._daemon.controller.records.flush():
            self._daemon.loop.call_later(FULL_DISK_S, self._release)
            return
        born, self._born = self._born, []
        for key in born:
            self._unborn.pop(key).set()  # its orders may go out
            try:
                if key in self._supervisors:
                    self._supervisors[key].send(GO)
            except OSError:
                pass  # killed already

    def _replace_nursery(self) -> None:
        """It was killed. Who was born goes on; who was not, has not begun."""
        self._daemon.loop.remove_reader(self._nursery.line)
        self._nursery.line.close()
        self._nursery = Nursery(str(self._daemon.paths.folder))
        self.open()
        unborn, self._unborn, self._born = self._unborn, {}, []
        for (job_id, step_id), waited_for in unborn.items():
            waited_for.set()
            line = self._supervisors.pop((job_id, step_id), None)
            if line:
                line.shutdown(socket.SHUT_RDWR)
            job = self._daemon.model.jobs.get(job_id)
            step = job.step(step_id) if job else None
            if job and step:
                job_end.never_began(self._daemon.controller, job, step)
        self._daemon.controller.settle()

    async def hear(self, talk: Conversation, opening: bytes | None, key: Key | None = None) -> None:
        try:
            while True:
                sender, report = reports.decode(opening or await talk.report())
                opening = None
                if self._find(sender)[1]:  # a stranger must not get what is meant for the one it is named like
                    key = (sender.job, sender.step)
                    self._supervisors[key] = talk.connection
                self._receive(talk, sender, report)
        except (Gone, OSError):
            if key and self._supervisors.get(key) is talk.connection:
                del self._supervisors[key]
                self._daemon.loop.call_later(LAST_WORDS_S, self._missed, *key)
        finally:
            talk.close()

    def _find(self, sender: reports.Sender) -> tuple[Job | None, Step | None]:
        """No step if its supervisor is of another attempt, or of a cluster that was here before."""
        job = self._daemon.model.jobs.get(sender.job)
        step = job.step(sender.step) if job else None
        if step and (step.restart, step.supervisor) != (sender.restart, sender.pid):
            step = None
        return job, step

    def _receive(self, talk: Conversation, sender: reports.Sender, report: reports.Report) -> None:
        job, step = self._find(sender)
        if isinstance(report, reports.Acknowledged):
            event = self._acks.pop(report.ack, None)
            if event:
                event.set()
        elif isinstance(report, reports.Ended):
            self._step_ended(talk, sender, job, step, report)
        elif isinstance(report, reports.ScriptGone):
            if job and step:
                job_end.script_gone(self._daemon.controller, job, step)
            self._daemon.controller.settle()
            talk.send_order(orders.Received())
        elif job and step:
            step.pids = list(report.pids)
            self._daemon.controller.changed(job)
            self._daemon.controller.settle()
            if job.completing and isinstance(report, reports.Reconnected):
                self._terminate_again(job, step)
        else:  # of an attempt that is over, as far as we know
            talk.send_order(orders.Terminate((signal.SIGKILL,), kill_after=None))

    def _step_ended(
        self, talk: Conversation, sender: reports.Sender, job: Job | None, step: Step | None, report: reports.Ended
    ) -> None:
        patient = job is not None and job.completing  # all were told to end, and have their time
        if job and step:
            job_end.step_ended(self._daemon.controller, job, step, report)
            patient = patient or any(other.live for other in job.steps)
        self._daemon.controller.settle()
        linger_s = self._daemon.shape.settings.kill_wait_s + 0.5 if patient else LEFTOVERS_S
        self._daemon.background(self._received(talk, sender.job, linger_s))

    def _terminate_again(self, job: Job, step: Step) -> None:
        """The order to end may have been lost with the old daemon."""
        waiting = [order for _, of, order in self._orders.get(job.id, ()) if of is step]
        if not any(isinstance(order, orders.Terminate) for order in waiting):
            self.order(job, step, orders.Terminate((signal.SIGTERM,), self._daemon.shape.settings.kill_wait_s))

    async def _received(self, talk: Conversation, job_id: int, linger_s: float) -> None:
        """A step may go, and its srun end, when all of the job have heard what they are to hear: else the script would
        see srun end before its own signal comes, and would do who knows what."""
        while job_id in self._orders:
            await asyncio.sleep(0.02)
        talk.send_order(orders.Received(linger_s))

    def order(self, job: Job, step: Step, order: orders.Order) -> None:
        """Orders to the steps of a job are obeyed one after the other: each is acknowledged before the next goes."""
        queue = self._orders.get(job.id)
        if queue is None:
            queue = self._orders[job.id] = deque()
            self._daemon.background(self._give_orders(job.id, queue))
        queue.append((job, step, order))

    async def _give_orders(self, job_id: int, queue: deque[Given]) -> None:
        await asyncio.sleep(ORDER_DELAY_S)
        while queue:
            await self._give(*queue[0])
            queue.popleft()
        del self._orders[job_id]

    async def _give(self, job: Job, step: Step, order: orders.Order) -> None:
        connection = await self._connection((step.runs_in or job.id, step.id))
        if not connection or not step.live:
            return
        name = f"{job.id}.{step.id}.{time.monotonic_ns()}"
        event = self._acks[name] = asyncio.Event()
        try:
            await self._daemon.loop.sock_sendall(connection, wire.frame("J", orders.encode(order, name)))
            await asyncio.wait_for(event.wait(), 1.0)
        except (OSError, asyncio.TimeoutError):
            self._acks.pop(name, None)

    async def _connection(self, key: Key) -> socket.socket | None:
        """To a supervisor, when it is born; and if it has lost its daemon, when it has found this one."""
        unborn = self._unborn.get(key)
        if unborn:
            await unborn.wait()
        job = self._daemon.model.jobs.get(key[0])
        step = job.step(key[1]) if job else None
        deadline = time.monotonic() + LOST_AFTER_S
        while key not in self._supervisors and step and step.live and _lives(step) and time.monotonic() < deadline:
            await asyncio.sleep(BACK_S)
        return self._supervisors.get(key)

    def reap(self) -> None:
        """Only the nursery is a child of the daemon, and what comes to it when the nursery is killed."""
        reaped = False
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                reaped = True
        except ChildProcessError:
            pass
        if reaped:
            end_orphans({self._nursery.pid}, str(self._daemon.paths.folder))

    def _missed(self, job_id: int, step_id: str) -> None:
        """It hung up. If it did not say that its step is over, somebody killed it: then its tasks are dead as well."""
        job = self._daemon.model.jobs.get(job_id)
        step = job.step(step_id) if job else None
        if not job or not step or (job_id, step_id) in self._supervisors or not (step.live or step.lingers):
            return
        if _lives(step) or (job_id, step_id) in self._unborn:
            self._daemon.loop.call_later(LAST_WORDS_S, self._missed, job_id, step_id)
        elif step.live:
            job_end.step_ended(self._daemon.controller, job, step, reports.Ended(int(signal.SIGKILL)))
        else:
            job_end.script_gone(self._daemon.controller, job, step)
        self._daemon.controller.settle()

    def look_after_restart(self) -> None:
        """Steps whose supervisor died while there was no daemon, or waited in vain for the old one to let it begin."""
        for job in list(self._daemon.model.live_jobs()):
            for step in list(job.steps):
                if step.runs_in or not (step.live or step.lingers):
                    continue
                if not step.supervisor:
                    job_end.never_began(self._daemon.controller, job, step)
                elif processes.birth(step.supervisor) != step.supervisor_birth:
                    self._lost(job, step)
        self._daemon.controller.wake()
        self._daemon.controller.settle()

    def bury_lost(self) -> None:
        """Supervisors that did not come back to a new daemon."""
        folder = str(self._daemon.paths.folder)
        for job in list(self._daemon.model.live_jobs()):
            for step in list(job.steps):
                present = (job.id, step.id) in self._supervisors or not step.supervisor  # which is yet to be born
                if present or step.runs_in or not (step.live or step.lingers):
                    continue
                if _lives(step):
                    # This daemon itself may have been started from there.
                    below = processes.descendants(step.supervisor, lambda pid: is_daemon(pid, folder))
                    processes.send([*below, step.supervisor], signal.SIGKILL)
                self._lost(job, step)
        self._daemon.controller.settle()

    def _lost(self, job: Job, step: Step) -> None:
        """As Slurm treats a node that was lost: the job is requeued, or fails."""
        if step.live:
            step.end, step.status = self._daemon.controller.clock(), int(signal.SIGKILL)
            job_end.end_mirrors(self._daemon.controller, job, step, reports.Ended(step.status))
        step.lingers = False
        if not job.completing:
            requeue.lose_node(self._daemon.controller, job, step.nodes[0])
        elif job.empty:
            job_end.finish(self._daemon.controller, job)


def _lives(step: Step) -> bool:
    """Its supervisor does."""
    pid = step.supervisor
    return pid > 0 and processes.alive(pid) and processes.birth(pid) == step.supervisor_birth
