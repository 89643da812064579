"""File traps: each system call that changes files waits until a supervisor lets it continue or makes it fail.

File traps need seccomp(2) with SECCOMP_RET_USER_NOTIF and SECCOMP_USER_NOTIF_FLAG_CONTINUE (Linux 5.5 or later). A task
installs the filter before it executes its program, and sends the descriptor of the kernel's notifications to the socket
SlurmConf.file_traps, on which rehearse/observe/file_events.py listens. The supervisor first sends NAMES, which traps
calls that change names or open files, or NAMES_AND_BYTES, which also traps calls that write bytes. Child processes
inherit the filter.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from . import processes, procfs

SECCOMP_SET_MODE_FILTER, NEW_LISTENER = 1, 1 << 3
WAIT_KILLABLE_RECV = 1 << 5  # since Linux 5.19: a trapped call waits on even if its process handles a signal
RET_ALLOW, RET_USER_NOTIF = 0x7FFF_0000, 0x7FC0_0000
PR_SET_NO_NEW_PRIVS = 38
RECEIVE, SEND, IS_VALID = 0xC050_2100, 0xC018_2101, 0x4008_2102  # ioctl(2), linux/seccomp.h
CONTINUE = 1
NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, and seccomp_data: nr, arch, instruction pointer, args
RESPONSE = struct.Struct("=QqiI")
# linux/filter.h: BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K
LOAD, EQUALS, HAS_BITS, RETURN = 0x20, 0x15, 0x45, 0x06
AT_NR, AT_ARCH, AT_ARGS = 0, 4, 16  # in seccomp_data

WRITE, RENAME, LINK, SYMLINK, DELETE = "write", "rename", "link", "symlink", "delete"
BYTES = "bytes"  # a call that writes bytes to a file that is already open
ONE, SEVERAL = "one", "several"
NAMES, NAMES_AND_BYTES = b"n", b"b"
QUIET = b"quiet"
QUIET_S, GAP_S = 20.0, 0.002  # longest wait until all threads are quiet, and the time between two looks
TRAPPED_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class Call:
    """A system call that changes files. All numbers are positions of the call's arguments."""

    kind: str
    # for each file name: position of the descriptor of its folder (None: the working directory), and of the name itself
    names: tuple[tuple[int | None, int], ...] = ()
    flags: int | None = None  # position of the argument with the flags of open(2)
    file: int = 0  # position of the argument with the descriptor of the file that gets the bytes
    buffers: str = (
        ""  # ONE or SEVERAL buffers of the process, at arguments 1 and 2, which have the bytes; "": other bytes
    )
    at: int | None = None  # position of the place in the file that gets the bytes (None: the descriptor's position)


@dataclass(frozen=True)
class Machine:
    arch: int  # AUDIT_ARCH_*
    seccomp: int  # number of the system call seccomp(2)
    calls: dict[int, Call]

    def trapped(self, mode: bytes) -> dict[int, Call]:
        return {number: call for number, call in self.calls.items() if call.kind != BYTES or mode == NAMES_AND_BYTES}


_AT = {
    "openat": Call(WRITE, ((0, 1),), flags=2),
    "renameat": Call(RENAME, ((0, 1), (2, 3))),
    "linkat": Call(LINK, ((0, 1), (2, 3))),
    "symlinkat": Call(SYMLINK, ((None, 0), (1, 2))),
    "unlinkat": Call(DELETE, ((0, 1),)),
}
_OLDER = {
    2: Call(WRITE, ((None, 0),), flags=1),  # open
    85: Call(WRITE, ((None, 0),)),  # creat
    82: Call(RENAME, ((None, 0), (None, 1))),
    86: Call(LINK, ((None, 0), (None, 1))),
    88: Call(SYMLINK, ((None, 0), (None, 1))),
    87: Call(DELETE, ((None, 0),)),  # unlink
    84: Call(DELETE, ((None, 0),)),  # rmdir
}


def _calls(openat: int, renameat: tuple[int, int], linkat: int, symlinkat: int, unlinkat: int) -> dict[int, Call]:
    renames = dict.fromkeys(renameat, _AT["renameat"])
    others = {linkat: _AT["linkat"], symlinkat: _AT["symlinkat"], unlinkat: _AT["unlinkat"]}
    return {openat: _AT["openat"], **renames, **others}


def _writes(
    write: int, pwrite64: int, writev: int, pwritev: int, pwritev2: int, *others: int, copy_file_range: int
) -> dict[int, Call]:
    """Returns the system calls that write bytes. `others`: sendfile, fallocate."""
    return {
        write: Call(BYTES, buffers=ONE),
        pwrite64: Call(BYTES, buffers=ONE, at=3),
        writev: Call(BYTES, buffers=SEVERAL),
        **dict.fromkeys((pwritev, pwritev2), Call(BYTES, buffers=SEVERAL, at=3)),
        **dict.fromkeys(others, Call(BYTES)),
        copy_file_range: Call(BYTES, file=2),
    }


MACHINES = {
    "x86_64": Machine(
        0xC000_003E,
        317,
        _calls(257, (264, 316), 265, 266, 263) | _OLDER | _writes(1, 18, 20, 296, 328, 40, 285, copy_file_range=326),
    ),
    "aarch64": Machine(
        0xC000_00B7,
        277,
        _calls(56, (38, 276), 37, 36, 35) | _writes(64, 68, 66, 70, 287, 71, 47, copy_file_range=285),
    ),
}


def machine() -> Machine | None:
    """Returns this machine's entry of MACHINES, or None if it has another system than Linux or another processor."""
    return MACHINES.get(platform.machine()) if sys.platform == "linux" else None


def bpf(machine: Machine, mode: bytes) -> bytes:
    """Returns the filter, as an array of sock_filter. The filter traps `openat` and `open` only with flags that allow
    writing."""
    code: list[tuple[int, int, int, int]] = []
    calls = machine.trapped(mode)
    size = 3 + sum(1 if call.flags is None else 3 for call in calls.values())
    allow, trap = size, size + 1

    def add(op: int, value: int, true: int = 0, false: int = 0) -> None:
        """Appends an instruction. `true`, `false`: positions of the instructions to jump to; 0: the next one."""
        here = len(code) + 1
        code.append((op, true - here if true else 0, false - here if false else 0, value))

    add(LOAD, AT_ARCH)
    add(EQUALS, machine.arch, false=allow)
    add(LOAD, AT_NR)
    for number, call in calls.items():
        if call.flags is None:
            add(EQUALS, number, true=trap)
        else:
            add(EQUALS, number, false=len(code) + 3)
            add(LOAD, AT_ARGS + 8 * call.flags)
            add(HAS_BITS, TRAPPED_FLAGS, true=trap, false=allow)
    add(RETURN, RET_ALLOW)
    add(RETURN, RET_USER_NOTIF)
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def install(socket_path: str, rank: int, node: str) -> None:
    """Traps the calls of this process and its child processes. Raises OSError if traps are impossible, or no supervisor
    listens."""
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.connect(socket_path)
        listener = _install(supervisor.recv(1))
        try:
            socket.send_fds(supervisor, [f"{os.getpid()} {rank} {node}".encode()], [listener])
            supervisor.recv(1)  # the supervisor answers when it listens to the descriptor
        finally:
            os.close(listener)


def _install(mode: bytes) -> int:
    """Installs the filter and returns the descriptor of its notifications."""
    import ctypes  # imported here because some builds of Python lack ctypes

    here = machine()
    if here is None:
        raise OSError("no traps on this machine")
    code = bpf(here, mode)

    class Program(ctypes.Structure):  # sock_fprog
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(code) // 8, code)
    if os.geteuid() and libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    listener = -1
    for flags in (NEW_LISTENER | WAIT_KILLABLE_RECV, NEW_LISTENER):
        if listener < 0:
            listener = libc.syscall(here.seccomp, SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return listener


def possible() -> bool:
    """Whether file traps work on this machine. A child process tries to install them."""
    if machine() is None:
        return False
    trial = os.fork()
    if trial == 0:
        try:
            _install(NAMES)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(trial, 0)[1] == 0


def send(socket_path: str, pids: Sequence[int], number: int) -> None:
    """Sends a signal to trapped processes, and lets stopped processes go on.

    A handled signal interrupts a call whose notice the supervisor has not received yet, such as a rename, which fails
    with EINTR on no disk. The supervisor thus answers no notice while this function waits until each thread is stopped
    outside of trapped calls, or waits for an answer (state D, see WAIT_KILLABLE_RECV).
    """
    deadline = time.monotonic() + QUIET_S
    with socket.socket(socket.AF_UNIX) as supervisor:
        with suppress(OSError):  # the supervisor is gone
            supervisor.connect(socket_path)
            supervisor.recv(1)
            supervisor.sendall(QUIET)
            supervisor.recv(1)
        while not _are_quiet(pids) and time.monotonic() < deadline:
            processes.send(pids, signal.SIGCONT)
            time.sleep(GAP_S)
        processes.send(pids, number)
    processes.send(pids, signal.SIGCONT)


def _are_quiet(pids: Sequence[int]) -> bool:
    processes.send(pids, signal.SIGSTOP)
    here = machine()
    trapped = {str(call) for call in here.trapped(NAMES)} if here else set()
    for pid in pids:
        for thread in procfs.threads(pid):
            call = procfs.read(pid, "task", thread, "syscall").partition(" ")[0].strip()
            if call == "running" or (call in trapped and procfs.state(int(thread)) != "D"):
                return False
    return True
