"""Forks processes that have torch in memory: `python -m tests.forked.server SOCKET`. Of a process that is forked before
any thread exists, some 5 MB are its own, and it imports nothing; else 64 ranks would spend minutes of two cores in
`import torch`.

python.py, which a test or a task of srun runs in place of Python, sends its arguments, environment, folder and open
files. The server ends with the last test process that holds a connection open.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
import types
from collections.abc import Callable
from functools import partial
from typing import Any

MOST, MOST_FILES = 1 << 20, 64  # bytes of a request, and files


class ForkServer:
    def __init__(self, path: str):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(4096)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.holders: set[socket.socket] = set()
        self.clients: dict[int, socket.socket] = {}  # by the child's pidfd
        self.children: dict[socket.socket, tuple[int, int]] = {}  # client -> the child's pid and pidfd

    def serve(self) -> None:
        """Returns when nobody holds it."""
        held = False
        while self.holders or not held:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    self.start(self.listener.accept()[0])
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self.holders:
                    self.selector.unregister(key.fileobj)
                    self.holders.remove(key.fileobj)
                elif not isinstance(key.fileobj, socket.socket):
                    self.end(key.fd)
                elif key.fileobj in self.children:  # its child has not ended in this turn
                    self.pass_on(key.fileobj)
            held = held or bool(self.holders)

    def start(self, client: socket.socket) -> None:
        data, files, _, _ = socket.recv_fds(client, MOST, MOST_FILES)
        size = struct.unpack(">I", data[:4])[0]
        if not size:
            self.holders.add(client)
            self.selector.register(client, selectors.EVENT_READ)
            return
        while len(data) < size + 4:
            data += client.recv(MOST)
        pid = os.fork()
        if not pid:
            become(json.loads(data[4:]), files)
        for file in files:
            os.close(file)
        pidfd = os.pidfd_open(pid)
        self.clients[pidfd], self.children[client] = client, (pid, pidfd)
        self.selector.register(client, selectors.EVENT_READ)
        self.selector.register(pidfd, selectors.EVENT_READ)

    def pass_on(self, client: socket.socket) -> None:
        """Sends the child a signal that the client has got, or KILL if the client is dead."""
        try:
            numbers = client.recv(64) or bytes([signal.SIGKILL])
        except OSError:
            numbers = bytes([signal.SIGKILL])
        for number in numbers:
            os.kill(self.children[client][0], number)
        if signal.SIGKILL in numbers:
            self.selector.unregister(client)

    def end(self, pidfd: int) -> None:
        client = self.clients.pop(pidfd)
        pid, _ = self.children.pop(client)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for each in (client, pidfd):
            if each in self.selector.get_map():
                self.selector.unregister(each)
        os.close(pidfd)
        try:
            client.sendall(struct.pack(">i", code))
        except OSError:
            pass
        client.close()


def become(request: dict[str, Any], files: list[int]) -> None:
    """In the child: becomes `python WORDS...`, with WORDS as python.py takes them. Never returns."""
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, 1 << 10) for file in files]
    os.closerange(0, 1 << 10)
    for number, file in zip(request["files"], high, strict=True):
        os.dup2(file, number)
    os.closerange(1 << 10, 1 << 16)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    os.umask(request["umask"])
    live = 1 if request["unbuffered"] or os.isatty(1) else -1
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=live), open(2, "w", buffering=1)  # noqa: SIM115
    sys.executable = request["python"]
    code = _code(partial(_run, *request["words"]))
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does at its end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if code == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code)


def _code(call: Callable[[], None]) -> int:
    """The exit code that Python would have after the call."""
    try:
        call()
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        code = _code(partial(sys.excepthook, type(error), error, error.__traceback__))
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else code or 1


def _run(kind: str, *words: str) -> None:
    own = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]
    if kind == "-m":
        sys.path[:0] = [os.getcwd(), *own]
        sys.argv = list(words)
        sys.modules.pop(words[0], None)  # imported to have its imports
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if kind == "-c":
        text, name = words[0], "<string>"
        sys.path[:0] = ["", *own]
        sys.argv = ["-c", *words[1:]]
    else:
        name = kind
        with open(name) as file:
            text = file.read()
        main.__file__ = name
        sys.path[:0] = [os.path.dirname(os.path.abspath(name)), *own]
        sys.argv = [name, *words]
    exec(compile(text, name, "exec"), main.__dict__)


if __name__ == "__main__":
    import torch

    import tests.forked.preloaded  # noqa: F401

    torch.set_num_threads(1)
    sys.path.pop(0)  # the tests' folder
    server = ForkServer(sys.argv[1])
    print("ready", flush=True)
    server.serve()
