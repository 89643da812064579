"""srun, which also passes on its stdin and the signals that it receives."""

import _signal as signal  # type: ignore[import-not-found]  # `signal` proper imports enum: 5 ms
import os
import sys
from select import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core import wire
    from . import client
else:
    import client
    import wire

HEARD = [getattr(signal, "SIG" + name) for name in "HUP INT QUIT TERM CONT USR1 USR2 ALRM PIPE".split()]


def main() -> None:
    folder, address, *words = sys.argv[1:]
    if "--pty" in words and os.isatty(0):
        take_terminal()
    wakeup = client.hear(HEARD)
    client.persist("srun", lambda: attempt(folder, address, words, wakeup))


def attempt(folder: str, address: str, words: "list[str]", wakeup: int) -> None:
    line = client.connect("srun", folder, address)
    client.request(line, "srun", words)
    frames, reading, started = wire.Frames(), [line.fileno(), wakeup], False
    while True:
        ready, _, _ = select(reading, [], [])
        if wakeup in ready:
            for number in os.read(wakeup, 64):
                client.send(line, wire.frame("s", str(number).encode()))
        if 0 in ready:
            client.send(line, wire.frame("i", read_stdin()))
            reading.remove(0)  # stdin is not read again until the tasks ask for more
        if line.fileno() in ready:
            try:
                data = client.receive(line)
            except client.Unanswered:
                if not started:
                    raise
                give_back()
                client.write(2, b"srun: error: the fake cluster went away.\n")  # the slurmstepd was killed
                os._exit(1)
            for kind, payload in frames.feed(data):
                if kind in "oe":
                    client.write(1 if kind == "o" else 2, payload)
                elif kind == "r":
                    client.send(line, client.read_file(payload.decode("utf-8", "surrogateescape")))
                elif kind == "i":
                    reading.append(0)
                elif kind == "b":
                    started = True
                elif kind == "x":
                    give_back()
                    os._exit(int(payload))


restore: "list[Callable[[], None]]" = []


def take_terminal() -> None:
    """Passes on each key, for --pty: the terminal of the task shows it, and makes signals of it."""
    import termios
    import tty  # slow to import, and rarely needed

    before = termios.tcgetattr(0)
    tty.setraw(0)
    restore.append(lambda: termios.tcsetattr(0, termios.TCSADRAIN, before))


def give_back() -> None:
    """Puts the terminal back as it was."""
    for each in restore:
        each()


def read_stdin() -> bytes:
    try:
        return os.read(0, 1 << 16)
    except OSError:
        return b""


main()
