"""salloc, which also runs a command on this machine while the job has its nodes."""

import _signal as signal  # type: ignore[import-not-found]  # `signal` proper imports enum: 5 ms
import os
import sys
from select import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core import wire
    from . import client
else:
    import client
    import wire

HANDED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
HEARD = (*HANDED_ON, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD)


class Program:
    """The command that salloc runs."""

    def __init__(self) -> None:
        self._pid = 0
        self._status: int | None = None

    def start(self, order: "list[str]") -> None:
        """Starts the program. `order`: the number of the command's words, these words, and its variables as NAME=VALUE.
        If a restarted daemon sends the order again, does nothing, because the program already runs.
        """
        if self._pid:
            return
        count = int(order[0])
        words = order[1 : 1 + count] or [os.environ.get("SHELL", "/bin/sh")]
        os.environ.update(dict(word.split("=", 1) for word in order[1 + count :]))
        self._pid = os.fork()
        if self._pid:
            return
        for number in HEARD:
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(words[0], words)
        except OSError:
            text = f'salloc: error: _fork_command: Unable to find command "{words[0]}"\n'
            client.write(2, text.encode("utf-8", "surrogateescape"))
        finally:
            os._exit(1)

    def signal(self, number: int) -> None:
        if self._pid and self._status is None:
            os.kill(self._pid, number)

    def status(self) -> "int | None":
        """Returns the wait status of the program, or None while it runs."""
        if self._pid and self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status

    @property
    def runs(self) -> bool:
        return bool(self._pid) and self._status is None


def main() -> None:
    folder, address, *words = sys.argv[1:]
    wakeup = client.hear(HEARD)
    program, printer = Program(), client.Printer()
    client.persist("salloc", lambda: attempt(folder, address, words, wakeup, program, printer))


def attempt(
    folder: str, address: str, words: "list[str]", wakeup: int, program: Program, printer: "client.Printer"
) -> None:
    line = client.connect("salloc", folder, address)
    client.request(line, "salloc", words)
    frames, asked = wire.Frames(), False
    printer.again()
    while True:
        ready, _, _ = select([line.fileno(), wakeup], [], [])
        if wakeup in ready:
            for number in os.read(wakeup, 64):
                if not program.runs and number != signal.SIGCHLD:
                    client.send(line, wire.frame("s", str(number).encode()))
                elif number in HANDED_ON:
                    program.signal(number)
        if line.fileno() in ready:
            data = client.receive(line)
            for kind, payload in frames.feed(data):
                if kind in "oe":
                    printer.print(kind, payload)
                elif kind == "a":
                    asked = True
                    program.start(wire.split(payload))
                elif kind == "k":
                    program.signal(int(payload))
                elif kind == "x":
                    os._exit(int(payload))
        status = program.status()
        if status is not None and asked:
            asked = False
            client.send(line, wire.frame("w", str(status).encode()))


main()
