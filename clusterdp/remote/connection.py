"""Connection: one ssh process through the user's open master connection. OpenSSH's own client does all of it: names,
jumps, keys, second factors. It is never allowed to ask."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress

from clusterdp import __version__
from clusterdp.errors import RemoteError, Unreachable
from clusterdp.remote.host import RemoteHost
from clusterdp.remote.wire import CHUNK, LONGEST, WIRE, Incoming, Request

OWN_SOCKET = "~/.ssh/clusterdp-%C"  # for those whose ~/.ssh/config has no ControlPath; ssh fills both in
OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "RemoteCommand=none", "ClearAllForwardings=yes", "LogLevel=ERROR")
SILENT_S = 30.0  # a read is given up if the cluster has not begun to answer
SHOWN = 200  # characters of an answer that is not clusterdp's


def open_master(host: RemoteHost) -> tuple[str, ...]:
    """Returns the options by which ssh finds the open master connection. Raises Unreachable, with the line that opens
    one."""
    own = ("-S", OWN_SOCKET)
    check = _ssh("-O", "check", "--", host.name)
    if check.returncode == 0:
        return ()
    no_path = "No ControlPath" in check.stderr
    if no_path and _ssh("-O", "check", *own, "--", host.name).returncode == 0:
        return own
    settings = dict(line.split(" ", 1) for line in _ssh("-G", "--", host.name).stdout.splitlines() if " " in line)
    if not settings:
        raise RemoteError(f"{host.name}: {check.stderr.strip()}. Correct ~/.ssh/config.")
    name = settings["hostname"]
    if name == host.name and not settings.keys() & {"proxyjump", "proxycommand"} and not _resolves(name):
        raise RemoteError(f"{name}: is not in ~/.ssh/config, and no such host is known. Correct it, or write it there.")
    words = "-fNM" if settings.get("controlmaster", "no") in ("false", "no") else "-fN"
    path = f" -S '{OWN_SOCKET}'" if no_path else ""
    raise Unreachable(f"{host.name}: there is no open connection. Type: ssh {words}{path} {host.name}")


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def _ssh(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["ssh", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise RemoteError(f"ssh: {error.strerror}. Install OpenSSH's client.") from None


def command(host: RemoteHost, master: tuple[str, ...], line: str, terminal: bool = False) -> list[str]:
    """Returns the words of an ssh that runs `line` there. terminal: whether ssh makes one there, too."""
    options = [word for option in OPTIONS for word in ("-o", option)]
    return ["ssh", *master, *options, "-tt" if terminal else "-T", "--", host.name, line]


def line_of(host: RemoteHost, request: Request) -> str:
    """Returns the line that the login shell there gets: words that sh, csh and fish read alike. It leaves the home,
    because Python would import what lies there."""
    if len(encoded := request.encoded()) > LONGEST:
        raise RemoteError(f"{host.name}: the command line is too long to be sent. Write values into the config.")
    return f"cd /; exec {host.python} -m clusterdp.remote.there {encoded}"


def install(host: RemoteHost) -> str:
    """Returns the command that installs this version there."""
    return f"ssh {host.name} {host.python} -m pip install clusterdp=={__version__}"


class Connection:
    """One request there: iterate over `answer` for its output and notes, and send() to its stdin. Close it at the
    end."""

    def __init__(
        self, host: RemoteHost, master: tuple[str, ...], request: Request, silent_s: float | None = None
    ) -> None:
        self.host = host
        self.begun = self.given_up = False
        # A session of its own: Ctrl-C reaches this process alone, which decides what follows.
        self.process = subprocess.Popen(
            command(host, master, line_of(host, request)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr
        self.answer = Incoming(self.stdout, request.nonce)
        self._said = b""  # on stderr, before the answer begins: of ssh, or of a login shell
        self._relay = threading.Thread(target=self._relay_errors, daemon=True)
        self._relay.start()
        self._alarm = threading.Timer(silent_s or threading.TIMEOUT_MAX, self._give_up)
        self._alarm.daemon = True
        self._alarm.start()

    def begin(self) -> str:
        """Returns the version there. Raises Unreachable or RemoteError, with the remedy, if no clusterdp answers."""
        noise = b""
        for part in self.answer:
            if isinstance(part, bytes):
                noise += part
                continue
            self._alarm.cancel()
            self.begun = True
            if part["wire"] != WIRE:
                theirs = f"has clusterdp {part['version']}, and here is {__version__}"
                said = f"{self.host.name}: {theirs}: they do not understand each other. Type: {install(self.host)}"
                raise RemoteError(said)
            return str(part["version"])
        code = self.process.wait()
        self._relay.join(5)
        raise self._reason(code, noise.decode(errors="replace"), self._said.decode(errors="replace"))

    def send(self, data: bytes) -> None:
        """Writes to the cluster. A connection that is gone is found when its answer is read."""
        with suppress(BrokenPipeError):
            self.stdin.write(data)
            self.stdin.flush()

    def end_input(self) -> None:
        with suppress(BrokenPipeError):
            self.stdin.close()

    def close(self) -> None:
        self._alarm.cancel()
        self.end_input()
        try:
            self.process.wait(2 if self.begun else 0)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()
        self._relay.join(5)
        self.stdout.close()
        self.stderr.close()

    def _give_up(self) -> None:
        self.given_up = True
        self.process.terminate()

    def _relay_errors(self) -> None:
        """Passes stderr on from the note with which the process there begins; what comes before is kept."""
        begin, passes = self.answer.mark + b"{}\n", False
        sys.stderr.flush()
        while data := os.read(self.stderr.fileno(), CHUNK):
            if not passes:
                self._said, passed, data = (self._said + data).partition(begin)
                passes = bool(passed)
            with suppress(OSError):
                os.write(2, data)

    def _reason(self, code: int, noise: str, said: str) -> RemoteError:
        name, python = self.host.name, self.host.python
        if self.given_up:
            again = f"Type: ssh -O exit {name}; ssh -fN {name}"
            return Unreachable(f"{name}: no answer for {SILENT_S:.0f} s. {again}")
        if code == 255 or code < 0:
            last = (said.strip() or "ssh was ended").splitlines()[-1].strip()
            return Unreachable(f"{name}: the connection failed: {last}. Type: ssh -fN {name}")
        if missing := re.search(r"No module named '?(clusterdp[.\w]*)", said):
            older = missing[1] != "clusterdp"
            what = f"has an older clusterdp, and here is {__version__}" if older else f"{python} has no clusterdp"
            return RemoteError(f"{name}: {what}. Type: {install(self.host)}")
        if code == 127 or any(words in said for words in ("not found", "No such file", "Unknown command")):
            find = f"`clusterdp init --on {name}` finds one"
            return RemoteError(f"{name}: there is no {python}. Set remote.python: {find}.")
        answer = " ".join((noise + said).split())[-SHOWN:]
        return RemoteError(
            f"{name}: did not run clusterdp (exit {code}), but says: {answer!r}. Is there a ForceCommand, or a login "
            "shell of its own kind? It must run what ssh asks for."
        )
