"""Forks ranks: `python -m tests.scale.fork_server SOCKET`. A rank that is forked before any thread exists takes
some 5 MB and no import; else 64 ranks would spend minutes of two cores in `import torch`.

rank.py, which a task of srun runs in place of Python, sends its arguments, environment, folder and open files."""

from __future__ import annotations

import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import traceback
from typing import Any

MOST = 1 << 20  # bytes of a request


class ForkServer:
    def __init__(self, path: str):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(4096)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.clients: dict[int, socket.socket] = {}  # by the rank's pidfd
        self.ranks: dict[socket.socket, tuple[int, int]] = {}  # client -> the rank's pid and pidfd

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    self.start(self.listener.accept()[0])
                elif isinstance(key.fileobj, socket.socket):
                    self.pass_on(key.fileobj)
                else:
                    self.end(key.fd)

    def start(self, client: socket.socket) -> None:
        data, files, _, _ = socket.recv_fds(client, MOST, 3)
        size = struct.unpack(">I", data[:4])[0]
        while len(data) < size + 4:
            data += client.recv(MOST)
        pid = os.fork()
        if not pid:
            become(json.loads(data[4:]), files)
        for file in files:
            os.close(file)
        pidfd = os.pidfd_open(pid)
        self.clients[pidfd], self.ranks[client] = client, (pid, pidfd)
        self.selector.register(client, selectors.EVENT_READ)
        self.selector.register(pidfd, selectors.EVENT_READ)

    def pass_on(self, client: socket.socket) -> None:
        """Sends the rank a signal that the client has got, or KILL if the client is dead."""
        try:
            numbers = client.recv(64) or bytes([signal.SIGKILL])
        except OSError:
            numbers = bytes([signal.SIGKILL])
        for number in numbers:
            os.kill(self.ranks[client][0], number)
        if signal.SIGKILL in numbers:
            self.selector.unregister(client)

    def end(self, pidfd: int) -> None:
        client = self.clients.pop(pidfd)
        pid, _ = self.ranks.pop(client)
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
    """In the child: becomes `python -u -m MODULE WORDS...`. Never returns."""
    code = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 1 << 16)
        os.setsid()
        os.environ.clear()
        os.environ.update(request["environ"])
        os.chdir(request["folder"])
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
        sys.path[:0] = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]
        module, *sys.argv[1:] = request["words"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import torch._dynamo  # an optimizer's first call imports it

    import clusterdp.recipes.digits
    import clusterdp.train.process.attempt  # noqa: F401

    torch.set_num_threads(1)
    server = ForkServer(sys.argv[1])
    print("ready", flush=True)
    server.serve()
