"""The client part of every command: sends the command line to the cluster's daemon and prints the answer.

Runs as `python -S -E client.py`: no site-packages, and only modules that are built in or small.
"""

import _signal as signal  # type: ignore[import-not-found]  # `signal` proper imports enum: 5 ms
import os
import sys
from _socket import AF_UNIX, SOCK_STREAM, socket  # importing `socket` costs 5 ms, `_socket` less
from time import sleep, time_ns

PACKAGE = __file__.rpartition("/client/")[0]
TYPE_CHECKING = False  # importing `typing` would cost 7 ms
if TYPE_CHECKING:
    from ..core import wire
else:
    sys.path.append(PACKAGE + "/core")
    import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ATTEMPTS = 50  # failed attempts in a row, after which the command gives up
heard = False  # whether this attempt got an answer
TOKEN = f"{os.getpid()}.{time_ns()}"  # id of the request, by which the daemon recognizes a repeated request
FILES: "dict[str, bytes]" = {}
VERB = "clusterdp fake" if PACKAGE.endswith("/clusterdp/fakeslurm") else "fakeslurm"
UNREACHABLE = "{}: error: the fake cluster in {} is down. Start it again with `" + VERB + " up`.\n"


class Unanswered(Exception):
    """The connection broke before the answer was complete."""


def connect(command: str, folder: str, address: str) -> socket:
    """Returns a connection to the daemon. If the daemon was killed, restarts it and raises Unanswered."""
    line = socket(AF_UNIX, SOCK_STREAM)
    try:
        line.connect(address)
        return line
    except OSError:
        pass
    if not os.path.exists(folder + "/up"):
        write(2, UNREACHABLE.format(command, folder).encode("utf-8", "surrogateescape"))
        sys.exit(1)
    restart = [sys.executable, "-S", "-E", "-s", PACKAGE + "/daemon_main.py", folder]
    os.spawnve(os.P_WAIT, sys.executable, restart, {"PATH": os.environ.get("PATH", os.defpath)})
    raise Unanswered


def request(line: socket, command: str, words: "list[str]") -> None:
    umask = os.umask(0o77)
    os.umask(umask)
    try:
        here = os.getcwd()
    except OSError:
        here = "/"
    about = [f"cwd={here}", f"umask={umask}", f"pid={os.getpid()}", f"token={TOKEN}", f"terminal={int(os.isatty(0))}"]
    environ = [f"{name}={value}" for name, value in os.environ.items()]
    line.sendall(
        wire.frame("C", wire.joined([command, *words]))
        + wire.frame("D", wire.joined(about))
        + wire.frame("E", wire.joined(environ))
        + wire.frame("G")
    )


def read_file(path: str) -> bytes:
    """Returns the frame with a file's bytes, which answers the daemon's request `r`. Reads each file once, because
    stdin cannot be read twice."""
    if path not in FILES:
        try:
            with open(path or 0, "rb", closefd=bool(path)) as file:
                FILES[path] = wire.frame("F", file.read())
        except OSError as error:
            FILES[path] = wire.frame("Y", str(error.errno or 0).encode())
    return FILES[path]


def write(number: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(number, data) :]
    except OSError:
        pass  # the reader has closed the pipe: Slurm's commands ignore a closed pipe, too


class Printer:
    """Prints the daemon's output, except the part that an earlier attempt has printed."""

    def __init__(self) -> None:
        self._printed, self._seen = {"o": 0, "e": 0}, {"o": 0, "e": 0}

    def again(self) -> None:
        """Begins a new attempt, in which the daemon sends all output again."""
        self._seen = {"o": 0, "e": 0}

    def print(self, kind: str, payload: bytes) -> None:
        self._seen[kind] += len(payload)
        if self._seen[kind] > self._printed[kind]:
            write(1 if kind == "o" else 2, payload)
            self._printed[kind] += len(payload)


def send(line: socket, data: bytes) -> None:
    """Sends bytes to the daemon. If it has hung up, receive() still gets what it had answered before."""
    try:
        line.sendall(data)
    except ConnectionError:
        pass


def receive(line: socket) -> bytes:
    """Returns the next bytes from the daemon."""
    global heard
    data = line.recv(1 << 18)
    if not data:
        raise Unanswered
    heard = True
    return data


def hear(numbers: "Iterable[int]") -> int:
    """Catches these signals. Returns a file descriptor from which each caught signal is read as a byte: its number."""
    wakeup, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return wakeup


def persist(command: str, attempt: "Callable[[], None]") -> None:
    """Calls `attempt` again if the daemon is killed before its answer is complete. `attempt` ends the process when it
    has the whole answer."""
    global heard
    failed = 0
    while failed < ATTEMPTS:
        heard = False
        try:
            attempt()
        except (Unanswered, ConnectionError):
            failed = 0 if heard else failed + 1  # a long srun may lose many daemons, one after the other
            sleep(0.1)
    write(2, f"{command}: error: the fake cluster went away.\n".encode())
    sys.exit(1)


def run(command: str) -> None:
    """Runs a command that only sends its command line and prints the answer, unlike srun and salloc."""
    folder, address, *words = sys.argv[1:]
    printer = Printer()

    def attempt() -> None:
        line = connect(command, folder, address)
        request(line, command, words)
        frames = wire.Frames()
        printer.again()
        while True:
            data = receive(line)
            for kind, payload in frames.feed(data):
                if kind in "oe":
                    printer.print(kind, payload)
                elif kind == "r":
                    send(line, read_file(payload.decode("utf-8", "surrogateescape")))
                elif kind == "x":
                    os._exit(int(payload))  # faster than sys.exit, because there is nothing to clean up

    persist(command, attempt)
