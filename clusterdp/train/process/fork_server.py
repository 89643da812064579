"""The fork server of a node: a process that loads torch once, and forks the ranks of the node from itself.

Eight ranks that import torch read its files eight times, and need eight times the CPU time and the memory. The server
loads what each rank needs, runs no operation of torch, and opens no GPU. A rank gets what its task has
(batch/nodes/task.py): variables, files, folder and CPUs. multiprocessing's forkserver does the same for workers. The
server has one thread, and those of OpenBLAS, which OpenBLAS ends at a fork.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from clusterdp.batch.files.job import COLD
from clusterdp.batch.nodes.task import (
    ACCEPTED,
    BETWEEN,
    LENGTH,
    READ_AT_IMPORT,
    REFUSED,
    RESERVE,
    ROOM,
    SERVES,
    SIGNALS,
    STATUS,
    WANTED,
    is_of_this_user,
    open_files,
    program,
    rename,
    show,
)
from clusterdp.train.process import reserve

DEVICES = ("/dev/nvidia-uvm", "/dev/kfd")  # CUDA and ROCm open them, and do not survive a fork then
MOST_FILES = 253  # in a message (SCM_MAX_FD of Linux)
REQUEST_S = 10.0  # limit of the seconds in which a task sends its request
PR_SET_PDEATHSIG = 1

forked_for: list[str] = []  # the program of this process, if it is a rank that a server has forked


class _Request(NamedTuple):
    program: str
    cpus: list[int]
    umask: int
    files: dict[int, int]  # the task's descriptors, and the server's for the same files
    handled: list[int]  # signals that the task does not ignore
    variables: list[str]


class _Server:
    def __init__(self, listening: socket.socket, words: list[str], name: str) -> None:
        self._listening = listening
        self._words = words
        self._name = name  # of a rank's process
        self._lines: dict[int, socket.socket] = {}  # the tasks' connections, by descriptor
        self._ranks: dict[int, int] = {}  # pid of a rank -> the descriptor of its task's connection
        self._poll = select.poll()
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK)
        self._program = ""  # of all tasks; empty if no rank may be forked

    def run(self) -> None:
        """Serves until each task has ended, and then exits. Returns in each rank."""
        for number in SIGNALS:  # again: the program may have been started through another one
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        own = program(self._words)
        if _load():
            self._program = own
        _to_nowhere(1, 2)
        self._poll.register(self._listening, select.POLLIN)
        self._poll.register(self._reading, select.POLLIN)
        is_new = True
        while is_new or self._lines:
            for number, _ in self._poll.poll():
                if number == self._reading:
                    os.read(number, 4096)
                    self._reap()
                elif number == self._listening.fileno():
                    line, is_new = self._listening.accept()[0], False
                    self._lines[line.fileno()] = line
                    self._poll.register(line, select.POLLIN)
                elif number in self._ranks.values():
                    self._hand_on(number)
                elif number in self._lines and self._answer(number):
                    return
        os._exit(0)

    def _hand_on(self, number: int) -> None:
        """Hands a task's signals on to its rank, which is killed when the task has been."""
        try:
            signals = self._lines[number].recv(64)
        except OSError:
            signals = b""
        pid = next(pid for pid, each in self._ranks.items() if each == number)
        for each in signals or [signal.SIGKILL]:
            os.kill(pid, each)  # it exists until _reap()
        if not signals:
            self._poll.unregister(number)

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._end(self._ranks.pop(pid), STATUS.pack(os.waitstatus_to_exitcode(status)))

    def _end(self, number: int, said: bytes) -> None:
        """Ends the connection of a task, after its last words."""
        with suppress(KeyError):
            self._poll.unregister(number)
        with self._lines.pop(number) as line, suppress(OSError):  # the task has been killed
            line.sendall(said)

    def _answer(self, number: int) -> bool:
        """Forks a task's rank, or refuses. Returns whether this process is the rank."""
        line, request, pid = self._lines[number], None, -1
        with suppress(OSError, ValueError):  # the task has ended, or there may be no more processes
            line.settimeout(REQUEST_S)
            request = _received(line) if is_of_this_user(line) else None
            line.setblocking(False)
            if request is not None and request.program == self._program:
                pid = self._fork(request, _early_signals(line))
        if request is not None and pid:
            for each in request.files.values():
                os.close(each)
        if pid < 0:
            self._end(number, REFUSED)
        elif pid:
            self._ranks[pid] = number
            with suppress(OSError):
                line.sendall(ACCEPTED)
        return pid == 0

    def _fork(self, request: _Request, signals: bytes) -> int:
        server, pid = os.getpid(), -1
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
        finally:
            if pid:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if pid:
            return pid
        try:
            for each in signals:
                os.kill(os.getpid(), each)
            for line in (*self._lines.values(), self._listening):
                line.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (self._reading, self._writing):
                os.close(number)
            _become(request, self._words, server, self._name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        return 0


def enter() -> None:
    """Returns in a rank. If this process is to be its node's server, this is a fork of it."""
    told = os.environ.pop(SERVES, None)
    if told is None:
        return
    os.environ.pop(ROOM, None)
    number, *words = told.split(BETWEEN)
    listening = socket.socket(fileno=int(number))
    listening.set_inheritable(False)
    for each in open_files():
        if each > 2 and each != listening.fileno():
            os.close(each)
    _to_nowhere(0)
    _Server(listening, words, rename("fork-server")).run()


@contextmanager
def noting_variables(folder: Path | None) -> Iterator[None]:
    """Surrounds the import of the user's code. If this sets variables that libraries read when they are loaded, it must
    come before torch in this attempt and in all later ones: a forked rank starts anew. folder: of the attempt, or
    None."""
    before = _variables()
    yield
    if folder is not None and _variables() != before:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / COLD).touch()
        if forked_for:
            start_cold()


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(READ_AT_IMPORT)}


def start_cold() -> NoReturn:
    """Starts this rank's program anew, without what the server has loaded. Signals wait meanwhile."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execvp(forked_for[0], forked_for)


def _load() -> bool:
    """Loads what each rank needs. Returns whether ranks may be forked afterwards."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # torch then looks for GPUs without opening them
    threads = reserve.load(quietly=RESERVE in os.environ)
    files = [os.readlink(f"/proc/self/fd/{number}") for number in open_files()]
    return 0 < len(os.listdir("/proc/self/task")) <= threads and not any(each in DEVICES for each in files)


def _early_signals(line: socket.socket) -> bytes:
    """Returns the numbers of the signals that a task has got before it has a rank."""
    try:
        return line.recv(64)
    except BlockingIOError:
        return b""


def _received(line: socket.socket) -> _Request | None:
    """Receives a task's request. Returns None if the task has ended, or has more files than a message takes. Raises
    OSError."""
    head, files, flags, _ = socket.recv_fds(line, LENGTH.size, MOST_FILES)
    left, parts = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0, []
    while left and (part := line.recv(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    words = b"".join(parts).decode(errors="surrogateescape").split("\0")
    if left or not parts or flags & socket.MSG_CTRUNC:
        for each in files:
            os.close(each)
        return None
    cpus, [umask], numbers, handled = ([int(each) for each in word.split(",") if each] for word in words[1:5])
    return _Request(words[0], cpus, umask, dict(zip(numbers, files, strict=True)), handled, words[5:])


def _become(request: _Request, words: list[str], server: int, name: str) -> None:
    """Makes this process the rank of a task."""
    global forked_for
    forked_for = words
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != server:
        os._exit(1)
    os.setpgid(0, 0)  # the program may send a signal to its own group
    for number in request.handled:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    high = max([2, *request.files, *request.files.values()]) + 1
    for i, own in enumerate(request.files.values()):
        os.dup2(own, high + i)
        os.close(own)
    for i, number in enumerate(request.files):
        os.dup2(high + i, number, inheritable=True)
        os.close(high + i)
    os.environ.clear()
    os.environ.update(word.partition("=")[::2] for word in request.variables)
    os.environ.pop(WANTED, None)
    os.umask(request.umask)
    if "numpy.random" in sys.modules:  # as Python's own random does after a fork
        numpy: Any = sys.modules["numpy"]
        numpy.random.seed()
    try:
        os.sched_setaffinity(0, request.cpus)
        show(request.variables)
    except OSError:
        start_cold()
    rename(name)


def _to_nowhere(*numbers: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(nowhere, number)
    os.close(nowhere)
