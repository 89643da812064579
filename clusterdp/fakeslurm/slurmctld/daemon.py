"""The daemon: the process that owns a cluster's clock, its socket and the connections to all slurmstepds."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from .. import commands
from ..core import node_folders, processes
from ..core.error_texts import CommandDone, Refusal
from ..core.job_environ import MARK
from ..core.model import JobRecord, Model, Step
from ..core.orders import Order
from ..core.paths import Paths
from ..core.shape import Shape, User
from ..slurmdbd.accounting import Accounting
from ..slurmstepd.forkserver import ForkServer
from . import job_end, journal, timers
from .connection import Connection, ConnectionLost
from .controller import Controller
from .step_layout import StepRequest
from .step_plans import batch_plan
from .stepds import LOST_AFTER_S, Stepds

if TYPE_CHECKING:
    from ..core.faults import Faults
    from .connection import Connection


RETRY_S = 0.1  # wait before the next accept if no descriptor is left
MOST_SILENT = 1024  # maximum number of connections without a request; a further connection closes the oldest
# Errors of unanswered commands: text, and exit status of scancel (which derives from the error's number).
TIMED_OUT = ("Socket timed out on send/recv operation", 140)
NO_CONTACT = ("Unable to contact slurm controller (connect failure)", 8)
LOADS = {"job": "jobs", "jobs": "jobs", "step": "jobs", "node": "node", "nodes": "node", "config": "ctl_conf"}


class Daemon:
    """The daemon of a cluster. The daemon's event loop handles all events of the cluster, one at a time."""

    def __init__(self, paths: Paths, forkserver: ForkServer):
        self.paths = paths
        about = json.loads(paths.shape.read_text())
        self.shape = Shape.from_json(about["shape"])
        self.owner: tuple[int, str] | None = tuple(about["owner"]) if about.get("owner") else None
        self.model = Model.of(self.shape, time.time())
        accounting = Accounting()
        if paths.journal.exists():
            journal.restore(paths.journal, self.model, accounting)
        self.controller = Controller(
            self.shape, paths.folder, self.model, accounting, journal.Journal(paths.journal), User.me()
        )
        self.controller.runner = self
        steps = [step for job in self.model.live_jobs() for step in job.steps if step.live and step.stepd_pid]
        if not any(processes.start_time(step.stepd_pid) == step.stepd_start_time for step in steps):
            self.controller.set_clock()  # after a restart of the machine, the cluster's clock is wrong
        self.controller.records.clock()
        self.waiting_steps: dict[int, list[StepRequest]] = {}  # by job: steps that wait for CPUs and have no number yet
        self._changed: asyncio.Event | None = None  # exists while a coroutine waits for a change of a job
        self.stepds = Stepds(self, forkserver)
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}  # connections that have not sent their request, oldest first
        self._listener: socket.socket
        self._over = asyncio.Event()

    async def run(self, ready: int) -> None:
        """Runs until the cluster is taken down. When commands can connect, writes to the descriptor `ready`."""
        self.loop = asyncio.get_running_loop()
        processes.adopt_orphans()
        self.loop.add_signal_handler(signal.SIGCHLD, self.stepds.reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._over.set)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.stepds.open()
        self._listener = self.paths.listen()
        self.background(self._accept())
        self.background(self._every(self.shape.settings.tick_s, self._tick))
        self.background(self._every(self.shape.settings.look_s, lambda: timers.check_limits(self.controller)))
        if self.owner:
            self.background(self._every(0.5, self._watch_owner))
        self.loop.call_later(LOST_AFTER_S, self.stepds.end_missing)
        self.stepds.recover()
        for job in list(self.model.live_jobs()):
            if job.completing and job.empty:
                job_end.finish(self.controller, job)
        os.write(ready, b"ready")
        os.close(ready)
        await self._over.wait()
        await self._take_down()

    def stop(self) -> None:
        """Takes the cluster down."""
        self._over.set()

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            traceback.print_exception(task.exception(), file=sys.stderr)

    async def _every(self, seconds: float, action: Any) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                action()
                self.controller.settle()
            except Exception:  # a bug in an action must not stop the following actions
                traceback.print_exc(file=sys.stderr)

    def _tick(self) -> None:
        if not self.model.jobs.live:
            self.controller.set_clock()
        if any(job.waits for job in self.model.live_jobs()):
            self.controller.wake()
        timers.check_nodes(self.controller)
        timers.forget(self.controller)
        self.controller.records.tidy()

    def _watch_owner(self) -> None:
        """Takes the cluster down if the process that owns the cluster has ended."""
        if self.owner and processes.start_time(self.owner[0]) != self.owner[1]:
            self._over.set()

    # -- connections --

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self.loop.sock_accept(self._listener)
            except OSError:  # no descriptor is left; commands that end will free some
                await asyncio.sleep(RETRY_S)
                continue
            connection.setblocking(False)
            if len(self._silent) >= MOST_SILENT:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                oldest.cancel()
            task = self.background(self._serve(connection))
            self._silent[task] = None
            task.add_done_callback(lambda task: self._silent.pop(task, None))
            await asyncio.sleep(0)  # lets accepted connections be served while others wait

    async def _serve(self, connection: socket.socket) -> None:
        """Serves one connection: of a command, or of a slurmstepd whose previous daemon was killed."""
        client = Connection(connection, self.loop)
        try:
            opening = await client.open()
            self._silent.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            if opening is not None:
                await self.stepds.serve(client, opening)
                return
            code = 0
            try:
                command = commands.find(client.command)
                if not command:
                    raise Refusal(f"{client.command}: not supported by this fake cluster")
                code = await answer(command, client, self)
            except CommandDone as end:
                code = end.exit_code
            except Refusal as refusal:
                if refusal.text:
                    client.error(refusal.text)
                code = refusal.exit_code
            except ConnectionLost:
                raise
            except Exception:  # a bug of the fake is shown to the user
                traceback.print_exc(file=sys.stderr)
                client.error(
                    f"{client.command}: error: the fake cluster stumbled over this: {traceback.format_exc(limit=-1)}"
                )
                code = 1
            self.controller.settle()
            await client.exit(code)
        except (ConnectionLost, OSError):
            pass
        finally:
            client.close()

    # -- the Runner of the controller --

    def start_batch(self, job: JobRecord, step: Step) -> None:
        self.stepds.spawn(job, step, batch_plan(self.controller, job, self.paths))

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            action()
            self.controller.settle()

        self.loop.call_later(seconds, act)

    def order(self, job: JobRecord, step: Step, order: Order) -> None:
        self.stepds.order(job, step, order)

    def job_changed(self) -> None:
        if self._changed:
            self._changed.set()
        self._changed = None

    async def change(self) -> None:
        """Waits until any job changes."""
        self._changed = self._changed or asyncio.Event()
        await self._changed.wait()

    async def _take_down(self) -> None:
        """Kills all processes that the cluster started."""
        self.paths.up.unlink(missing_ok=True)
        self.stepds.close()
        self._listener.close()
        self.paths.socket.unlink(missing_ok=True)
        conf = f"{MARK}={self.controller.conf_path()}"
        for _ in range(100):
            roots = [os.getpid(), *self.stepds.alive()]  # some may have lost their warden
            left = {*roots, *(below for root in roots for below in processes.descendants(root))}
            left |= {*processes.of_wardens(self.paths.wardens), *processes.marked(conf)}
            left = {pid for pid in left if pid != os.getpid() and processes.alive(pid)}
            if not left:
                break
            processes.send(left, signal.SIGKILL)
            await asyncio.sleep(0.05)
        node_folders.remove(self.paths)
        self.paths.pid.unlink(missing_ok=True)


LOADS |= {"partition": "partitions", "partitions": "partitions"}
LOCAL = ("hostname", "hostlist")  # `scontrol show hostnames` needs no controller
ASKS_TWICE = r"(-j|--jobs?\b|--signal|-s\b|show (job|step)s? \S)"  # commands that ask twice wait twice as long
ELSEWHERE = ("sacct", "sacctmgr", "control")  # commands that ask slurmdbd, or the fake itself, not slurmctld
LOOK_AGAIN_S = 0.1

Command = Callable[["Connection", "Daemon"], Awaitable[int]]


async def answer(command: Command, client: Connection, daemon: Daemon) -> int:
    """Runs a command under the faults of the controller: the answer comes in time, late, too late, or not at all.

    Messages, delays and exit statuses were recorded from Slurm 22.05 with its slurmctld stopped (SIGSTOP: no answer)
    and killed (no listener). Running steps and jobs continue during a fault.
    """
    faults, patience_s = daemon.model.faults, daemon.shape.settings.message_timeout_s
    words = " ".join(client.words)
    if client.command in ELSEWHERE or re.match(rf"(-\S+ )*show {LOCAL[0]}|(-\S+ )*show {LOCAL[1]}", words):
        return await command(client, daemon)
    times = 2 if re.search(ASKS_TWICE, words) and client.command != "sbatch" else 1
    if faults.away:
        await _until_back(faults, (patience_s - 1) * times)
        if faults.away:
            raise complaint(client, *NO_CONTACT)
    if client.command == "sbatch" and faults.draw():
        daemon.controller.records.history.write("flaky", command=" ".join([client.command, *client.words]))
        raise complaint(client, *TIMED_OUT)
    if faults.late_s <= patience_s:
        if faults.late_s:
            await asyncio.sleep(faults.late_s)
        return await command(client, daemon)
    await _in_vain(command, client, daemon, patience_s * times)
    raise complaint(client, *TIMED_OUT)


async def _until_back(faults: Faults, at_most_s: float) -> None:
    """Waits until the controller is reachable again, at most `at_most_s` seconds."""
    end = time.monotonic() + at_most_s
    while faults.away and time.monotonic() < end:
        await asyncio.sleep(LOOK_AGAIN_S)


async def _in_vain(command: Command, client: Connection, daemon: Daemon, patience_s: float) -> None:
    """Runs a command whose answer comes too late: a job is submitted although sbatch reports a failure."""
    end = time.monotonic() + patience_s
    if client.command in ("sbatch", "scancel", "scontrol"):
        try:
            await asyncio.wait_for(command(client, daemon), patience_s)
            daemon.controller.settle()
        except (Refusal, CommandDone, asyncio.TimeoutError):
            pass
        client.discard_output()
    await asyncio.sleep(max(end - time.monotonic(), 0))


def complaint(client: Connection, text: str, number: int) -> Refusal:
    """Returns the error that a command prints if it got no answer."""
    words, job = client.words, client.environ.get("SLURM_JOB_ID") or client.environ.get("SLURM_JOBID")
    if client.command == "sbatch":
        return Refusal(f"sbatch: error: Batch job submission failed: {text}")
    if client.command == "salloc":
        return Refusal(f"salloc: error: Job submit/allocate failed: {text}")
    if client.command == "srun" and job:
        lost = f"srun: Check SLURM_JOB_ID environment variable. Expired or invalid job {job}"
        return Refusal(f"srun: error: Unable to confirm allocation for job {job}: {text}\n{lost}")
    if client.command == "srun":
        return Refusal(f"srun: error: Unable to allocate resources: {text}")
    if client.command == "sinfo":
        return Refusal(f"slurm_load_partitions: {text}")
    ids = [word for word in words if word[:1].isdigit()]
    if client.command == "scancel" and ids and not re.search(ASKS_TWICE, " ".join(words)):
        lines = [f"scancel: error: Kill job error on job id {each}: {text}" for each in ids]
        return Refusal("\n".join(lines), number)
    if client.command == "scontrol":
        return _of_scontrol(client, [word for word in words if not word.startswith("-")], text)
    return Refusal(f"slurm_load_jobs error: {text}")


def _of_scontrol(client: Connection, words: list[str], text: str) -> Refusal:
    verb, *rest = words or [""]
    if verb == "ping":
        from ..core.shape import host_name

        stars = "*" * 41
        client.print(
            f"Slurmctld(primary) at {host_name()} is DOWN\n{stars}\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n{stars}"
        )
        raise CommandDone(1)
    if verb == "show":
        return Refusal(f"slurm_load_{LOADS.get(rest[0].lower() if rest else '', 'jobs')} error: {text}")
    named = [word.partition("=")[2] for word in rest if word.lower().startswith(("jobid=", "job="))]
    job = named[0] if named else rest[0] if rest and verb != "update" else ""
    return Refusal(f"Unexpected message received for job {job}" if job else f"slurm_update error: {text}")
