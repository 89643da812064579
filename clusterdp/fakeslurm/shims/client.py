"""The thin half of every command: hands its words to the cluster's daemon and prints what comes back.

Runs as `python -S -E client.py`: no site, no user packages, and only modules that are built in or tiny.
"""

import os
import sys
from _socket import AF_UNIX, SOCK_STREAM, socket  # `socket` proper costs 5 ms

PACKAGE = __file__.rpartition("/shims/")[0]
sys.path.append(PACKAGE)

import wire  # noqa: E402

UNREACHABLE = "{}: error: the fake cluster in {} is down. Start it again with `clusterdp fake up`.\n"


def connect(command: str, folder: str, address: str) -> socket:
    """A connection to the daemon, which is started again if it was killed."""
    line = socket(AF_UNIX, SOCK_STREAM)
    try:
        line.connect(address)
        return line
    except OSError:
        pass
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    restart = [sys.executable, "-S", "-E", "-s", PACKAGE + "/shims/revive.py", folder]
    if os.path.exists(folder + "/up") and os.spawnve(os.P_WAIT, sys.executable, restart, env) == 0:
        line = socket(AF_UNIX, SOCK_STREAM)
        try:
            line.connect(address)
            return line
        except OSError:
            pass
    os.write(2, UNREACHABLE.format(command, folder).encode("utf-8", "surrogateescape"))
    sys.exit(1)


def request(line: socket, command: str, words: "list[str]") -> None:
    umask = os.umask(0o77)
    os.umask(umask)
    try:
        here = os.getcwd()
    except OSError:
        here = "/"
    about = [f"cwd={here}", f"umask={umask}", f"pid={os.getpid()}", f"stdin={int(stdin_open())}"]
    environ = [f"{name}={value}" for name, value in os.environ.items()]
    line.sendall(
        wire.frame("C", wire.joined([command, *words]))
        + wire.frame("D", wire.joined(about))
        + wire.frame("E", wire.joined(environ))
        + wire.frame("G")
    )


def stdin_open() -> bool:
    try:
        os.fstat(0)
        return True
    except OSError:
        return False


def read_file(path: str) -> bytes:
    """The frame that answers `r`."""
    try:
        file = os.open(path, os.O_RDONLY) if path else 0
        parts = []
        while True:
            part = os.read(file, 1 << 20)
            if not part:
                return wire.frame("F", b"".join(parts))
            parts.append(part)
    except OSError as error:
        return wire.frame("Y", str(error.errno or 0).encode())


def write(number: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(number, data) :]
    except OSError:
        pass  # nobody reads any more: Slurm's commands go on as well


def run(command: str) -> None:
    """The whole life of a command that only asks and prints."""
    folder, address, *words = sys.argv[1:]
    line = connect(command, folder, address)
    request(line, command, words)
    frames = wire.Frames()
    while True:
        data = line.recv(1 << 16)
        if not data:
            os.write(2, f"{command}: error: the fake cluster went away.\n".encode())
            sys.exit(1)
        for kind, payload in frames.feed(data):
            if kind in "oe":
                write(1 if kind == "o" else 2, payload)
            elif kind == "r":
                line.sendall(read_file(payload.decode("utf-8", "surrogateescape")))
            elif kind == "x":
                os._exit(int(payload))  # at once: there is nothing to tidy up
