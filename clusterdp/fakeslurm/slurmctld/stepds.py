"""The slurmstepds of all running steps. Stepds starts slurmstepds, receives their reports, sends orders to them, and
notices when a slurmstepd has died.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from ..core import orders, processes, reports, wire
from ..core.model import JobRecord, Step
from ..core.step_plan import StepPlan
from ..slurmstepd.controller_connection import is_daemon
from ..slurmstepd.forkserver import GO, ForkServer, end_orphans
from . import job_end, requeue
from .connection import Connection, ConnectionLost

if TYPE_CHECKING:
    from .daemon import Daemon

ORDER_DELAY_S = 0.1  # a script may requeue its own job: its scontrol must return before the signal comes
LAST_REPORTS_S = 0.2  # wait for the last reports after the end of a slurmstepd
LOST_AFTER_S = 3.0  # a slurmstepd that does not connect to a new daemon within this time is lost
BACK_S = 0.05  # interval between checks whether a slurmstepd has connected
FULL_DISK_S = 0.5  # interval between tries to write the journal
LEFTOVERS_S = 1.0  # seconds in which background processes of a script must end by themselves

Key = tuple[int, str]  # the ids of a job and a step
QueuedOrder = tuple[JobRecord, Step, orders.Order]


class Stepds:
    def __init__(self, daemon: Daemon, forkserver: ForkServer):
        self._daemon, self._forkserver = daemon, forkserver
        self._connections: dict[Key, socket.socket] = {}
        self._missing: set[Key] = set()  # slurmstepds that the previous daemon started, and that have not connected yet
        self._starting: dict[Key, asyncio.Event] = {}  # slurmstepds that the fork server was asked for
        self._forked: list[Key] = []  # slurmstepds that were forked, but have not got GO yet
        self._acks: dict[str, asyncio.Event] = {}
        self._closed = False
        self._orders: dict[int, deque[QueuedOrder]] = {}  # queued orders by job; the first order is being sent

    def open(self) -> None:
        self._daemon.loop.add_reader(self._forkserver.line, self._take_forked)

    def close(self) -> None:
        """Stops the start of new slurmstepds."""
        self._closed = True
        self._daemon.loop.remove_reader(self._forkserver.line)

    def alive(self) -> list[int]:
        """Returns the pids of the slurmstepds, also of those that an earlier daemon started."""
        steps = [step for job in self._daemon.model.live_jobs() for step in job.steps if step.stepd_pid]
        return [each.stepd_pid for each in steps if processes.start_time(each.stepd_pid) == each.stepd_start_time]

    def spawn(self, job: JobRecord, step: Step, plan: StepPlan, srun: socket.socket | None = None) -> None:
        """Asks the fork server for the slurmstepd of a step. `srun`: the connection from srun, which the slurmstepd
        takes over.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        key = job.id, step.id
        self._connected(key, ours)
        self._starting[key] = asyncio.Event()
        try:
            self._forkserver.fork_stepd(plan, theirs, srun)
        except OSError:
            pass  # the fork server is dead, which _take_forked notices
        theirs.close()
        self._daemon.loop.call_soon(self._take_forked)  # answers may have been read during the request
        self._daemon.background(self.serve(Connection(ours, self._daemon.loop), None, key))

    def _take_forked(self) -> None:
        forked = [] if self._closed else self._forkserver.forked()
        if forked is None:
            self._replace_forkserver()
            return
        for each in forked:
            job = self._daemon.model.jobs.get(each["job"])
            step = job.step(each["step"]) if job else None
            if job and step:
                step.stepd_pid, step.stepd_start_time = each["pid"], processes.start_time(each["pid"])
                self._daemon.controller.changed(job)
            self._forked.append((each["job"], each["step"]))
        self._let_run()

    def _let_run(self) -> None:
        """Sends GO to new slurmstepds when their pids are in the journal, where the next daemon would find them."""
        if not self._daemon.controller.records.flush():
            self._daemon.loop.call_later(FULL_DISK_S, self._let_run)
            return
        ready, self._forked = self._forked, []
        for key in ready:
            self._starting.pop(key).set()  # from now on, orders can be sent to the slurmstepd
            try:
                if key in self._connections:
                    self._connections[key].send(GO)
            except OSError:
                pass  # the slurmstepd was killed

    def _replace_forkserver(self) -> None:
        """Replaces a killed fork server. Running steps continue. Steps that have not begun count as never started."""
        self._daemon.loop.remove_reader(self._forkserver.line)
        self._forkserver.line.close()
        self._forkserver = ForkServer(str(self._daemon.paths.folder))
        self.open()
        starting, self._starting, self._forked = self._starting, {}, []
        for (job_id, step_id), waited_for in starting.items():
            waited_for.set()
            line = self._connections.pop((job_id, step_id), None)
            if line:
                line.shutdown(socket.SHUT_RDWR)
            job = self._daemon.model.jobs.get(job_id)
            step = job.step(step_id) if job else None
            if job and step:
                job_end.step_never_started(self._daemon.controller, job, step)
        self._daemon.controller.settle()

    async def serve(self, connection: Connection, opening: bytes | None, key: Key | None = None) -> None:
        try:
            while True:
                sender, report = reports.decode(opening or await connection.report())
                opening = None
                if self._find(sender)[1]:  # a sender without a step here must not get this step's orders
                    key = (sender.job, sender.step)
                    self._connected(key, connection.socket)
                self._receive(connection, sender, report)
        except (ConnectionLost, OSError):
            if key and self._connections.get(key) is connection.socket:
                del self._connections[key]
                self._daemon.loop.call_later(LAST_REPORTS_S, self._disconnected, *key)
        finally:
            connection.close()

    def _connected(self, key: Key, connection: socket.socket) -> None:
        self._connections[key] = connection
        self._missing.discard(key)

    def _find(self, sender: reports.Sender) -> tuple[JobRecord | None, Step | None]:
        """Returns the job and step of a sender. The step is None if the sender belongs to another attempt or an earlier
        cluster."""
        job = self._daemon.model.jobs.get(sender.job)
        step = job.step(sender.step) if job else None
        if step and (step.restart, step.stepd_pid) != (sender.restart, sender.pid):
            step = None
        return job, step

    def _receive(self, connection: Connection, sender: reports.Sender, report: reports.Report) -> None:
        job, step = self._find(sender)
        if isinstance(report, reports.Acknowledged):
            event = self._acks.pop(report.ack, None)
            if event:
                event.set()
        elif isinstance(report, reports.Ended):
            self._step_ended(connection, sender, job, step, report)
        elif isinstance(report, reports.ScriptGone):
            if job and step:
                job_end.script_gone(self._daemon.controller, job, step)
            self._daemon.controller.settle()
            connection.send_order(orders.Received())
        elif job and step:
            step.begun, step.pids = True, list(report.pids)
            self._daemon.controller.changed(job)
            self._daemon.controller.settle()
            if job.completing and isinstance(report, reports.Reconnected):
                self._terminate_again(job, step)
        else:  # slurmctld has no such attempt, or the attempt is over
            connection.send_order(orders.Terminate((signal.SIGKILL,), kill_after=None))

    def _step_ended(
        self,
        connection: Connection,
        sender: reports.Sender,
        job: JobRecord | None,
        step: Step | None,
        report: reports.Ended,
    ) -> None:
        patient = job is not None and job.completing  # all steps got the order to end, and have kill_wait_s to obey
        if job and step:
            job_end.step_ended(self._daemon.controller, job, step, report)
            patient = patient or any(other.live for other in job.steps)
        self._daemon.controller.settle()
        linger_s = self._daemon.shape.settings.kill_wait_s + 0.5 if patient else LEFTOVERS_S
        self._daemon.background(self._received(connection, sender.job, linger_s))

    def _terminate_again(self, job: JobRecord, step: Step) -> None:
        """Sends the order to end again, because the first order may have been lost with the previous daemon."""
        waiting = [order for _, of, order in self._orders.get(job.id, ()) if of is step]
        if not any(isinstance(order, orders.Terminate) for order in waiting):
            self.order(job, step, orders.Terminate((signal.SIGTERM,), self._daemon.shape.settings.kill_wait_s))

    async def _received(self, connection: Connection, job_id: int, linger_s: float) -> None:
        """Lets a slurmstepd and its srun end when all steps of the job have got their orders. If srun ended earlier,
        the script would continue until the script's own signal comes.
        """
        while job_id in self._orders:
            await asyncio.sleep(0.02)
        connection.send_order(orders.Received(linger_s))

    def order(self, job: JobRecord, step: Step, order: orders.Order) -> None:
        """Queues an order. The orders to a job's steps are sent one by one, each after the previous order was
        acknowledged.
        """
        queue = self._orders.get(job.id)
        if queue is None:
            queue = self._orders[job.id] = deque()
            self._daemon.background(self._send_orders(job.id, queue))
        queue.append((job, step, order))

    async def _send_orders(self, job_id: int, queue: deque[QueuedOrder]) -> None:
        await asyncio.sleep(ORDER_DELAY_S)
        while queue:
            await self._send(*queue[0])
            queue.popleft()
        del self._orders[job_id]

    async def _send(self, job: JobRecord, step: Step, order: orders.Order) -> None:
        connection = await self._connection((step.runs_in or job.id, step.id))
        if not connection or not (step.live or step.lingers):
            return
        name = f"{job.id}.{step.id}.{time.monotonic_ns()}"
        event = self._acks[name] = asyncio.Event()
        try:
            await self._daemon.loop.sock_sendall(connection, wire.frame("J", orders.encode(order, name)))
            await asyncio.wait_for(event.wait(), 1.0)
        except (OSError, asyncio.TimeoutError):
            self._acks.pop(name, None)

    async def _connection(self, key: Key) -> socket.socket | None:
        """Returns the connection to a slurmstepd. Waits until the slurmstepd is forked and has connected to this
        daemon."""
        starting = self._starting.get(key)
        if starting:
            await starting.wait()
        job = self._daemon.model.jobs.get(key[0])
        step = job.step(key[1]) if job else None
        deadline = time.monotonic() + LOST_AFTER_S
        while (
            key not in self._connections and step and step.live and _stepd_lives(step) and time.monotonic() < deadline
        ):
            await asyncio.sleep(BACK_S)
        return self._connections.get(key)

    def reap(self) -> None:
        """Reaps child processes: the fork server, and processes that the daemon adopted from a killed fork server."""
        reaped = False
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                reaped = True
        except ChildProcessError:
            pass
        if reaped:
            end_orphans({self._forkserver.pid}, str(self._daemon.paths.folder))

    def _disconnected(self, job_id: int, step_id: str) -> None:
        """Handles a lost connection to a slurmstepd. A slurmstepd that has not reported the end of its step was killed,
        and its tasks are dead.
        """
        job = self._daemon.model.jobs.get(job_id)
        step = job.step(step_id) if job else None
        if not job or not step or (job_id, step_id) in self._connections or not (step.live or step.lingers):
            return
        if _stepd_lives(step) or (job_id, step_id) in self._starting:
            self._daemon.loop.call_later(LAST_REPORTS_S, self._disconnected, job_id, step_id)
        elif step.live:
            job_end.step_ended(self._daemon.controller, job, step, reports.Ended(int(signal.SIGKILL)))
        else:
            job_end.script_gone(self._daemon.controller, job, step)
        self._daemon.controller.settle()

    def recover(self) -> None:
        """Finds steps whose slurmstepd died while no daemon ran, and steps whose slurmstepd never got GO."""
        for job in list(self._daemon.model.live_jobs()):
            for step in list(job.steps):
                if step.runs_in or not (step.live or step.lingers):
                    continue
                if _stepd_lives(step):
                    self._missing.add((job.id, step.id))
                else:
                    self._dead(job, step)
        self._daemon.controller.wake()
        self._daemon.controller.settle()

    def end_missing(self) -> None:
        """Kills slurmstepds that have not connected to this daemon, and handles their steps as lost."""
        folder = str(self._daemon.paths.folder)
        missing, self._missing = self._missing, set()
        for job_id, step_id in sorted(missing):
            job = self._daemon.model.jobs.get(job_id)
            step = job.step(step_id) if job else None
            if not job or not step or not (step.live or step.lingers):
                continue
            if _stepd_lives(step):
                # This daemon may be a descendant of the slurmstepd, because a task's command may have started it.
                below = processes.descendants(step.stepd_pid, lambda pid: is_daemon(pid, folder))
                processes.send([*below, step.stepd_pid], signal.SIGKILL)
                self._lost(job, step)
            else:
                self._dead(job, step)
        self._daemon.controller.settle()

    def _dead(self, job: JobRecord, step: Step) -> None:
        """Handles a dead slurmstepd.

        A slurmstepd that sent no report did not get GO, because the daemon was killed after writing its pid to the
        journal.
        """
        if step.begun:
            self._lost(job, step)
        else:
            step.stepd_pid = 0
            job_end.step_never_started(self._daemon.controller, job, step)

    def _lost(self, job: JobRecord, step: Step) -> None:
        """Handles the step as if its node were lost: the job is requeued or fails."""
        if step.live:
            step.end, step.status = self._daemon.controller.clock(), int(signal.SIGKILL)
            job_end.end_mirrors(self._daemon.controller, job, step, reports.Ended(step.status))
        step.lingers = False
        if not job.completing:
            requeue.lose_node(self._daemon.controller, job, step.nodes[0])
        elif job.empty:
            job_end.finish(self._daemon.controller, job)


def _stepd_lives(step: Step) -> bool:
    """Whether the slurmstepd of a step is alive."""
    pid = step.stepd_pid
    return pid > 0 and processes.alive(pid) and processes.start_time(pid) == step.stepd_start_time
