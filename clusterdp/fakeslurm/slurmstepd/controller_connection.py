"""The connection of a slurmstepd to slurmctld, which may be killed and restarted as another process."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

from ..core import orders, processes, procfs, reports, wire
from ..core.paths import DAEMON_PROGRAM
from ..core.step_plan import StepPlan
from .event_loop import EventLoop
from .output_files import CHUNK

PATIENCE_S = 2.0  # seconds to wait for a daemon before this slurmstepd starts one


class ControllerConnection:
    def __init__(self, loop: EventLoop, connection: socket.socket, plan: StepPlan):
        self._loop, self._plan = loop, plan
        self._connection: socket.socket | None = connection
        self._frames = wire.Frames()
        self._lost_at = 0.0
        self._starter = 0  # pid of a child process that starts a daemon, or waits while another process starts it
        self._answer: orders.Received | None = None
        self.obey: Callable[[orders.Order], None]
        self.on_cluster_down: Callable[[], None]
        self.greeting: Callable[[], reports.Report]  # the first report that a new daemon gets
        self._listen()

    def _listen(self) -> None:
        assert self._connection
        self._connection.setblocking(False)
        self._loop.watch(self._connection.fileno(), self._read)

    def tell(self, report: reports.Report) -> None:
        sender = reports.Sender(self._plan.job, self._plan.step, self._plan.restart, os.getpid())
        if not self._connection:
            return
        try:
            self._connection.setblocking(True)
            self._connection.sendall(wire.frame("J", reports.encode(sender, report)))
            self._connection.setblocking(False)
        except OSError:
            self._lost()

    def report(self, report: reports.Report, turn: Callable[[], None]) -> orders.Received:
        """Sends a report that must not be lost. If the daemon is killed, sends the report again to the next daemon.
        Returns the daemon's answer."""
        self._answer, told = None, self._connection
        self.tell(report)
        while self._answer is None:
            turn()
            if self._connection is not None and self._connection is not told:
                told = self._connection
                self.tell(report)
        return self._answer

    def _read(self) -> None:
        assert self._connection
        try:
            data = self._connection.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        for _, payload in self._frames.feed(data):
            order, ack = orders.decode(payload)
            if isinstance(order, orders.Received):
                self._answer = order
                continue
            self.obey(order)
            if ack:
                self.tell(reports.Acknowledged(ack))

    def _lost(self) -> None:
        """Starts to look for the next daemon, because the daemon was killed. The tasks of the step continue to run."""
        if self._connection:
            self._loop.unwatch(self._connection.fileno())
            self._connection.close()
            self._connection = None
            self._frames = wire.Frames()
            self._lost_at = time.monotonic()
            self._loop.after(0.1, self._seek)

    def _seek(self) -> None:
        if not os.path.exists(os.path.join(self._plan.cluster, "up")):
            self.on_cluster_down()
            return
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(self._plan.socket)
        except OSError:
            line.close()
            if time.monotonic() - self._lost_at > PATIENCE_S and not (self._starter and processes.alive(self._starter)):
                self._lost_at = time.monotonic()
                self._starter = start_daemon_process(self._plan.cluster)
            self._loop.after(0.2, self._seek)
            return
        self._connection = line
        self._listen()
        self.tell(self.greeting())


def is_daemon(pid: int, folder: str) -> bool:
    """Whether this process is a daemon of the cluster in `folder`, or a slurmstepd, which has the daemon's command
    line."""
    return procfs.command(pid)[-3:-1] == [os.fsencode(DAEMON_PROGRAM), os.fsencode(folder)]


def start_daemon_process(folder: str) -> int:
    """Starts the daemon of the cluster in `folder` again. If two daemons are started, the second one exits."""
    pid = os.fork()
    if pid == 0:
        words = [sys.executable, "-S", "-E", "-s", DAEMON_PROGRAM, folder]
        try:
            os.execve(sys.executable, words, {"PATH": os.environ.get("PATH", os.defpath)})
        except OSError:
            os._exit(1)
    return pid
