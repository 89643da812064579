"""The fork server: a small process that forks a slurmstepd for each step.

The cost of a fork grows with the size of the forking process, and the daemon grows with the number of jobs. Therefore
the daemon forks the fork server before it loads its modules and jobs.

To get a slurmstepd, the daemon sends the step's plan and connections. A new slurmstepd waits until the daemon has
written the slurmstepd's pid to the journal. If the daemon is killed before this write, the step has not begun, and no
step runs twice.
"""

from __future__ import annotations

import gc
import json
import os
import select
import selectors
import signal
import socket
import sys
import traceback
from array import array
from collections.abc import Collection
from typing import Any

from ..core import processes, wire
from ..core.step_plan import StepPlan, plan_from
from .controller_connection import is_daemon
from .stepd import Stepd

GO = b"!"
HANDED = 32  # maximum number of descriptors in one message


class ForkServer:
    """The daemon's side of the fork server."""

    def __init__(self, folder: str) -> None:
        self.line, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                processes.limit_descriptors()
                _ForkServerProcess(theirs, folder).run()
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(1)
        theirs.close()
        self.line.setblocking(False)
        self._frames = wire.Frames()
        self._forked: list[dict[str, Any]] = []
        self._dead = False

    def fork_stepd(self, plan: StepPlan, daemon: socket.socket, srun: socket.socket | None) -> None:
        """Asks the fork server for the slurmstepd of a step. Raises OSError if the fork server is dead."""
        ends = [daemon.fileno()] + ([srun.fileno()] if srun else [])
        message = memoryview(wire.frame("J", json.dumps(plan, default=vars).encode()))
        handed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", ends))]
        while message:
            self._listen()  # the fork server would read no plans while its answers are not read
            try:
                sent = self.line.sendmsg([message], handed)
                message, handed = message[sent:], []
            except BlockingIOError:
                room_or_news = select.poll()
                room_or_news.register(self.line)
                room_or_news.poll()

    def _listen(self) -> None:
        try:
            data = self.line.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._dead = not data
        self._forked += [json.loads(payload) for _, payload in self._frames.feed(data)]

    def forked(self) -> list[dict[str, Any]] | None:
        """Returns the slurmstepds forked since the last call, or None if the fork server is dead."""
        self._listen()
        forked, self._forked = self._forked, []
        return None if self._dead and not forked else forked


class _ForkServerProcess:
    """The fork server's process: one thread, one loop, and as little memory as possible."""

    def __init__(self, line: socket.socket, folder: str):
        self._line, self._folder = line, folder
        _close_all_but(line.fileno(), line.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        gc.collect()
        gc.disable()  # a child would copy each page that a collection touches, and there is no garbage
        processes.adopt_orphans()
        self._wakeup = processes.wakeup()
        self._frames = wire.Frames()
        self._handed: list[int] = []  # descriptors whose plans have not arrived yet
        self._mine: set[int] = set()

    def run(self) -> None:
        select = selectors.DefaultSelector()
        select.register(self._line, selectors.EVENT_READ)
        select.register(self._wakeup, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in select.select()}
            if self._wakeup in ready:
                self._reap()
            if self._line.fileno() in ready:
                self._read_requests()

    def _reap(self) -> None:
        """Reaps ended child processes, and kills the orphans that they have left."""
        ended = {pid for pid, _, _ in processes.ended(self._wakeup)}
        self._mine -= ended
        if ended:
            end_orphans(self._mine, self._folder)

    def _read_requests(self) -> None:
        space = socket.CMSG_SPACE(HANDED * array("i").itemsize)
        try:
            data, handed, _, _ = self._line.recvmsg(1 << 20, space)
        except ConnectionError:
            data = b""
        if not data:
            os._exit(0)
        for level, kind, content in handed:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                for number in numbers:
                    os.set_inheritable(number, False)  # else programs keep a dead slurmstepd connected
                self._handed += numbers
        for _, payload in self._frames.feed(data):
            self._fork_stepd(plan_from(json.loads(payload)))

    def _fork_stepd(self, plan: StepPlan) -> None:
        ends = [socket.socket(fileno=self._handed.pop(0)) for _ in range(1 if plan.batch else 2)]
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._run_stepd(plan, *ends)
                code = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(code)
        self._mine.add(pid)
        for end in ends:
            end.close()
        forked = {"pid": pid, "job": plan.job, "step": plan.step}
        try:
            self._line.sendall(wire.frame("J", json.dumps(forked).encode()))
        except OSError:
            os._exit(0)  # the daemon is dead; steps continue without the fork server

    def _run_stepd(self, plan: StepPlan, daemon: socket.socket, srun: socket.socket | None = None) -> None:
        """Runs in the new child process: closes the fork server's descriptors, waits for GO, and runs the step."""
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _close_all_but(daemon.fileno(), srun.fileno() if srun else daemon.fileno())
        daemon.setblocking(True)
        if daemon.recv(1) == GO:
            Stepd(plan, daemon, srun).run()


def end_orphans(mine: Collection[int], folder: str) -> None:
    """Kills adopted child processes: the processes of a dead slurmstepd. Spares `mine`, and daemons and slurmstepds of
    the cluster in `folder`.
    """
    for child in processes.children(os.getpid()):
        if child not in mine and not is_daemon(child, folder):
            processes.send([child, *processes.descendants(child)], signal.SIGKILL)


def _close_all_but(one: int, other: int) -> None:
    low, high = sorted((one, other))
    os.closerange(3, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, 4096)
