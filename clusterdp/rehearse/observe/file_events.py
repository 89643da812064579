"""FileEvents: the system calls by which the ranks of a run change files, in order. A drill can hold a system call
before it is done, and can make the disk appear full.

The kernel sends a notice of each system call, and lets the call go on when FileEvents answers
(fakeslurm/core/file_traps.py).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clusterdp import procfs
from clusterdp.fakeslurm.core import file_traps
from clusterdp.fakeslurm.core.file_traps import (
    BYTES,
    DELETE,
    LINK,
    NAMES,
    NAMES_AND_BYTES,
    RENAME,
    SEVERAL,
    WRITE,
    Call,
)
from clusterdp.rehearse.observe import processes

MOST = 20_000  # maximum number of events that are kept: a save of a large model in thousands of files has fewer
WAIT_MS = 200
DONE_S = 1.0  # longest wait until the effect of a released call is visible
PAGE = 4096
SHARED_MEMORY = re.compile(r"/dev/shm/(torch_|sem\.|psm_|mp-|nccl|cuda)")  # such as batches of data-loader workers
LARGEST = 1 << 24  # maximum number of bytes that half() writes
TMPFILE = getattr(os, "O_TMPFILE", -1)  # only Linux has O_TMPFILE
DESCRIPTOR = re.compile(r"/(?:proc/(?:(?:thread-)?self|\d+)|dev)/fd/(\d+)")
NAMELESS = "#"  # the name of a file that is opened with O_TMPFILE, until a link gives it a name
SNIFFED = 512  # number of first bytes that are read: a zero byte shows that the file is not text


@dataclass(frozen=True)
class FileEvent:
    """A system call by which a rank changes a file."""

    kind: str  # WRITE, RENAME, LINK, SYMLINK, DELETE or BYTES of file_traps
    path: str  # absolute, as the rank sees it
    to: str = ""  # the new path of a rename or a link, absolute, as the rank sees it
    rank: int = 0
    at: float = 0.0  # seconds since 1970
    step: int = 0  # the step of rank 0 at this time; 0 if the step is not known
    pid: int = 0  # id of the thread that makes the call
    appends: bool = False  # whether the file is opened with O_APPEND
    truncates: bool = False  # whether the file is opened with O_TRUNC

    @property
    def here(self) -> Path:
        """The file's path on this machine, valid while the rank lives. The path differs from `path` if the rank's node
        has a /tmp of its own."""
        if self.path.endswith(f"/{NAMELESS}"):
            folder = os.path.realpath(os.path.dirname(self.path))
            found = (
                at for at, to in procfs.descriptors(self.pid) if _is_nameless(to) and os.path.dirname(to) == folder
            )
            return Path(f"/proc/{self.pid}/fd/{max(found, default='')}")
        return Path(f"/proc/{self.pid}/root{self.path}")

    @property
    def to_here(self) -> Path:
        return Path(f"/proc/{self.pid}/root{self.to}")

    def is_done(self) -> bool:
        """Whether the effect of the call is visible. Returns True for a file that is opened, which may have existed
        before."""
        if self.kind in (RENAME, DELETE) and os.path.lexists(self.here):
            return False
        return not self.to or os.path.lexists(self.to_here)


@dataclass(frozen=True)
class Held:
    """A file event whose system call is held."""

    event: FileEvent
    listener: int
    notice: int  # id of the kernel's notice, with which the call is released
    call: Call
    arguments: Sequence[int]


class FileEvents:
    """Listens for file events in a thread of its own, from the start of the tasks to close().

    Where file traps are not possible, FileEvents sees no event.
    """

    def __init__(self, socket_path: Path, *, sees_bytes: bool = False):
        """`socket_path`: the socket to which tasks send their descriptors, in a folder that is private to this user.

        `sees_bytes`: whether calls that write bytes are events, too, which hold() and disk_full() need; each write to a
        file or a socket then takes 150 microseconds longer.
        """
        self.socket = socket_path
        self._mode = NAMES_AND_BYTES if sees_bytes else NAMES
        self.unwritten = 0  # number of calls that failed on the full disk since the last disk_full()
        self._refused: Callable[[int], bool] = lambda rank: False
        self._is_full: Callable[[Path], bool] | None = None
        self.events: list[FileEvent] = []
        self._appended: Counter[str] = Counter()  # by path: how often a file was opened to append to it
        self.binary: dict[str, int] = {}  # by the first path of each written file that is not text: its number of bytes
        self.step: Callable[[], int | None] = lambda: None
        self.heard: Callable[[FileEvent], None] = lambda event: None  # called before each call goes on
        self.held: Held | None = None
        self._wanted: Callable[[FileEvent], bool] | None = None
        # Guards held and _wanted: without the lock, the next hold() got a late notice of a dead rank (seen under load).
        self._holding = threading.Lock()
        self._writing: dict[int, FileEvent] = {}  # by rank: the file that the rank writes now
        self._calls: Counter[str] = Counter()  # by path: number of calls that wrote bytes since the file was opened
        self._calls_before: dict[str, int] = {}  # the same until the file was last opened
        self._ranks: dict[int, int] = {}  # by thread
        self._listeners: dict[int, int] = {}  # by descriptor: the rank of the task that sent it
        self._quiet: dict[int, socket.socket] = {}  # connections that want no call to go on, by descriptor
        self._waiting: list[tuple[int, bytearray]] = []  # notices that wait for the end of these connections
        self._over = threading.Event()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.socket))
        self._server.listen(128)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def logs(self) -> set[str]:
        """Files that were opened more often to append than to write. The first opening does not count, because a
        tensorboard log is first opened to write."""
        written = Counter(event.path for event in self.events if event.kind == WRITE)
        return {path for path, count in self._appended.items() if count > written[path]}

    # -- holding --

    def hold(self, wanted: Callable[[FileEvent], bool]) -> None:
        """Holds the call of the next event that `wanted` accepts, and puts the event in `held`."""
        with self._holding:
            self.held, self._wanted = None, wanted

    def release(self) -> None:
        """Lets the held call go on, and holds no further event."""
        with self._holding:
            self._wanted = None
            held, self.held = self.held, None
        self._go_on(held)

    def _go_on(self, held: Held | None) -> None:
        if held and held.event.kind != BYTES:
            self.heard(held.event)
        if held:
            _let_go(held.listener, held.notice)

    @contextmanager
    def refused(self, only: int | None = None) -> Iterator[None]:
        """Makes each call of the ranks (or only of one) fail inside the `with` block, also the held call. A call
        that goes on just after a SIGKILL may still be done (seen under load).
        """
        self._refused = lambda rank: only in (None, rank)
        try:
            yield
            held, self.held = self.held, None
            if held:
                _let_go(held.listener, held.notice, errno.EINTR)
        finally:
            self._refused = lambda rank: False

    def go_on_to(self, wanted: Callable[[FileEvent], bool]) -> None:
        """Lets the held call go on, and holds the call of the next event that `wanted` accepts."""
        held = self.held
        self.hold(wanted)
        self._go_on(held)

    def finish(self) -> None:
        """Lets the held call go on, holds the call of the next event, and returns when the first call's effect is
        visible."""
        held = self.held
        if held:
            self.events.append(held.event)
        self.go_on_to(lambda event: True)
        deadline = time.monotonic() + DONE_S
        while held and not held.event.is_done() and time.monotonic() < deadline:
            pass  # no sleep, because the call takes microseconds and the rank runs on after the call

    def calls_for(self, is_one: Callable[[str], bool]) -> int:
        """Returns how many calls have written the bytes of a file, of the files whose path `is_one` accepts; 0 if no
        such file was written."""
        found = [*self._calls.items(), *self._calls_before.items()]
        return max((calls for path, calls in found if is_one(path)), default=0)

    def half(self, *, in_pages: bool) -> None:
        """Writes the first half of the bytes of the held call, as a kill in the midst of the call leaves them.

        `in_pages`: whether to write whole pages only, because the kernel writes no part of a page.
        """
        assert self.held
        pid, call, arguments = self.held.event.pid, self.held.call, self.held.arguments
        if not call.buffers:
            return
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            pieces = [(arguments[1], arguments[2])]
            if call.buffers == SEVERAL:
                pieces = [*struct.iter_unpack("=QQ", os.pread(memory.fileno(), 16 * arguments[2], arguments[1]))]
            left = min(LARGEST, sum(size for _, size in pieces) // 2)
            left -= left % PAGE if in_pages else 0
            data = b""
            for address, size in pieces:
                data += os.pread(memory.fileno(), min(size, left - len(data)), address)
        number = arguments[call.file]
        position = next(line for line in procfs.read(pid, "fdinfo", number).splitlines() if line.startswith("pos:"))
        file = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY)
        try:
            os.pwrite(file, data, int(position.split()[1]) if call.at is None else arguments[call.at])
        finally:
            os.close(file)

    @contextmanager
    def disk_full(self, is_there: Callable[[Path], bool]) -> Iterator[None]:
        """Makes each write to a file on the full disk fail inside the `with` block.

        `is_there`: a function that decides whether a file is on the full disk. `is_there` gets a path that is valid
        only while the call waits.
        """
        self.unwritten, self._is_full = 0, is_there
        try:
            yield
        finally:
            self._is_full = None

    # -- listening --

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._server, select.POLLIN)
        while not self._over.is_set():
            for number, mask in poll.poll(WAIT_MS):
                if number == self._server.fileno():
                    poll.register(self._accept(), select.POLLIN)
                elif number in self._quiet:
                    poll.unregister(number)
                    self._quiet.pop(number).close()
                    waiting, self._waiting = ([], self._waiting) if self._quiet else (self._waiting, [])
                    for listener, notice in waiting:
                        if listener in self._listeners:  # else the task is gone
                            self._notified(listener, notice)
                elif mask & select.POLLIN:
                    self._receive(number)
                else:  # the task and all its child processes are gone
                    poll.unregister(number)
                    del self._listeners[number]
                    os.close(number)

    def _accept(self) -> int:
        task, _ = self._server.accept()
        task.send(self._mode)
        told, descriptors, _, _ = socket.recv_fds(task, 256, 1)
        task.send(b"!")
        if told == file_traps.QUIET:
            self._quiet[task.fileno()] = task
            return task.fileno()
        task.close()
        self._listeners[descriptors[0]] = int(told.split()[1])
        return descriptors[0]

    def _receive(self, listener: int) -> None:
        buffer = bytearray(file_traps.NOTIFICATION.size)
        with suppress(OSError):  # a signal has interrupted the call, or the calling thread is gone
            fcntl.ioctl(listener, file_traps.RECEIVE, buffer)
            if self._quiet:
                self._waiting.append((listener, buffer))
            else:
                self._notified(listener, buffer)

    def _notified(self, listener: int, buffer: bytearray) -> None:
        notice, pid, _, number, _, _, *arguments = file_traps.NOTIFICATION.unpack(buffer)
        machine = file_traps.machine()
        assert machine
        call = machine.calls[number]
        if self._refused(self._rank(pid, self._listeners[listener])):
            _let_go(listener, notice, errno.EINTR)
            return
        if call.kind == BYTES and self._is_full:
            is_unwritten = self._is_on_full_disk(pid, arguments[call.file])
            self.unwritten += is_unwritten
            _let_go(listener, notice, errno.ENOSPC if is_unwritten else 0)
            return
        event = None
        with suppress(OSError):
            event = self._event(pid, call, arguments, self._listeners[listener])
        with suppress(OSError), self._holding:
            # The call may be over by now, and its thread id and paths may belong to another thread.
            fcntl.ioctl(listener, file_traps.IS_VALID, notice.to_bytes(8, "little"))
            if event and self._is_held(event):
                self.held = Held(event, listener, notice, call, arguments)
                return
        _let_go(listener, notice)

    def _is_on_full_disk(self, pid: int, descriptor: int) -> bool:
        with suppress(OSError):  # the calling thread is gone
            return self._is_full is not None and self._is_full(Path(f"/proc/{pid}/fd/{descriptor}"))
        return False

    def _event(self, pid: int, call: Call, arguments: list[int], task: int) -> FileEvent | None:
        """Returns the event of a system call, or None if the call's file is not a file of the program."""
        if call.kind == BYTES:
            path = os.readlink(f"/proc/{pid}/fd/{arguments[call.file]}")
            return FileEvent(BYTES, path, "", self._rank(pid, task), time.time(), 0, pid) if path[0] == "/" else None
        names = [_name(pid, arguments[name], None if at is None else arguments[at]) for at, name in call.names]
        if call.kind == LINK and (opened := DESCRIPTOR.fullmatch(names[0])):
            names[0] = os.readlink(f"/proc/{pid}/fd/{opened[1]}")
        if _is_nameless(names[0]):
            names[0] = f"{os.path.dirname(names[0])}/{NAMELESS}"
        if names[-1].startswith(("/proc/", "/sys/", "/dev/")) and not names[-1].startswith("/dev/shm/"):
            return None
        if SHARED_MEMORY.match(names[-1]):
            return None
        flags = os.O_TRUNC if call.flags is None else arguments[call.flags]
        if call.kind == WRITE and flags & TMPFILE == TMPFILE:
            names[0] += f"/{NAMELESS}"
        to = names[1] if len(names) > 1 else ""
        how = (
            {"appends": bool(flags & os.O_APPEND), "truncates": bool(flags & os.O_TRUNC)} if call.kind == WRITE else {}
        )
        return FileEvent(call.kind, names[0], to, self._rank(pid, task), time.time(), self.step() or 0, pid, **how)

    def _rank(self, pid: int, task: int) -> int:
        """Returns the rank of a process, by its variable RANK, because a task of torchrun has several ranks."""
        if pid not in self._ranks:
            told = processes.variable(pid, "RANK")
            self._ranks[pid] = int(told) if told.isdigit() else task
        return self._ranks[pid]

    def _is_held(self, event: FileEvent) -> bool:
        if event.kind == BYTES:
            self._calls[event.path] += 1
        else:
            self._look_at_last(event)
        if self._wanted and self._wanted(event):
            self._wanted = None
            return True
        if event.kind == BYTES:
            return False
        self.heard(event)
        if event.appends:
            self._appended[event.path] += 1
        elif len(self.events) < MOST:
            self.events.append(event)
        return False

    def _look_at_last(self, event: FileEvent) -> None:
        """Notes in `binary` the size of the last file that this rank wrote, because this file is now complete."""
        last = self._writing.pop(event.rank, None)
        if last and is_binary(last.here):
            with suppress(OSError):
                self.binary[last.path] = last.here.stat().st_size
        if event.kind == WRITE and not event.appends:
            self._writing[event.rank] = event
            if event.path in self._calls:
                self._calls_before[event.path] = self._calls.pop(event.path)

    def close(self) -> None:
        """Stops listening. All tasks must be gone, because calls fail from now on. A second close() does nothing."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        self._server.close()
        for listener in self._listeners:
            os.close(listener)
        self.socket.unlink(missing_ok=True)


def is_binary(path: str | Path) -> bool:
    """Whether a file is not text, or False if it cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        return b"\0" in file.read(SNIFFED)
    return False


def _is_nameless(path: str) -> bool:
    """Whether the kernel shows this path for a file that was opened with O_TMPFILE."""
    return re.fullmatch(r".*/#\d+ \(deleted\)", path) is not None


def _let_go(listener: int, notice: int, error: int = 0) -> None:
    """Lets a call go on. With an `error`, the call is not done, and fails with this errno."""
    answer = (0, -error, 0) if error else (0, 0, file_traps.CONTINUE)
    with suppress(OSError):  # the calling thread is gone
        fcntl.ioctl(listener, file_traps.SEND, file_traps.RESPONSE.pack(notice, *answer))


def _name(pid: int, address: int, folder: int | None) -> str:
    """Returns the absolute path whose text is at this address in the memory of `pid`. `folder`: the descriptor of the
    folder to which the path is relative, or AT_FDCWD."""
    path = os.fsdecode(_text(pid, address))
    if not path.startswith("/"):
        at = -1 if folder is None else folder & 0xFFFF_FFFF
        base = os.readlink(f"/proc/{pid}/fd/{at}" if 0 <= at < 1 << 31 else f"/proc/{pid}/cwd")
        path = f"{base}/{path}"
    return os.path.normpath(path)


def _text(pid: int, address: int) -> bytes:
    """Returns the text up to the first zero byte, at most PATH_MAX bytes.

    Reads one memory page after the other, because the next page may not exist.
    """
    found = b""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        while b"\0" not in found and len(found) < PAGE:
            start = address + len(found)
            more = os.pread(memory, PAGE - start % PAGE, start)
            if not more:
                raise ProcessLookupError(f"{pid} has no memory any more")  # else the loop would not end
            found += more
    finally:
        os.close(memory)
    return found.partition(b"\0")[0]
