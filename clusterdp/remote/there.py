"""`python -m clusterdp.remote.there REQUEST`: the side of `--on HOST` that runs on the cluster, one process for a verb.

It runs the verb as the command line would, in the project's folder, with the width and the colours of the terminal at
the other end."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from clusterdp import __version__
from clusterdp.errors import ClusterdpError, RemoteError, SubmitInDoubt
from clusterdp.remote import wire
from clusterdp.remote.wire import Notes, Request

TERMINAL = ("COLUMNS", "LINES", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR")
PROFILE_S = 10.0  # for a login shell to say where Slurm's commands are


class Output(io.TextIOWrapper):
    """stdout or stderr: a pipe here, and perhaps a terminal at the other end."""

    def __init__(self, fd: int, terminal: bool):
        raw = open(fd, "wb", closefd=False)  # noqa: SIM115
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", line_buffering=terminal or fd == 2)
        self.terminal = terminal
        self.said: list[str] | None = None  # what is printed, if it is to be known
        self.lost = False  # nobody reads any more, which does not end what is to be known

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        if self.said is not None:
            self.said.append(text)
        return len(text) if self.lost else self._tried(lambda: super(Output, self).write(text))

    def flush(self) -> None:
        self._tried(super().flush)

    def _tried(self, what: object) -> int:
        try:
            return what() or 0  # type: ignore[operator]
        except BrokenPipeError:
            if self.said is None:
                raise
            self.lost = True
            return 0


def main() -> int:
    version, fields = wire.decoded(sys.argv[1])
    notes = Notes(str(fields["nonce"]))
    if fields["nonce"]:  # else both ends are one terminal
        notes.write(fd=2)
        notes.write(wire=wire.WIRE, version=__version__)
    if version != wire.WIRE:
        return RemoteError.exit_code  # the other end says why
    request = Request(**fields)
    if request.held:
        return _serve(request, notes)
    code = _answered(request, notes)
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        if request.nonce:
            notes.write(end=code)
    return code


def _serve(request: Request, notes: Notes) -> int:
    """Answers requests until stdin ends. Each has a process of its own, in which all is loaded."""
    for line in sys.stdin.buffer:
        if not (child := os.fork()):
            try:
                code = _answered(request._replace(words=json.loads(line)), notes)
                sys.stdout.flush()
                assert isinstance(sys.stderr, Output) and sys.stderr.said is not None
                notes.write(end=code, said="".join(sys.stderr.said))
            except BaseException:
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            notes.write(end=1, said="")
    return 0


def _answered(request: Request, notes: Notes) -> int:
    """Does what the request asks, and returns the exit code."""
    stdin: IO[bytes] = sys.stdin.buffer
    if request.nonce:
        sys.stdout, sys.stderr = (Output(fd, request.terminals[fd - 1]) for fd in (1, 2))
        if request.held:  # what goes wrong is part of the answer
            sys.stderr.said, sys.stderr.lost = [], True
        sys.stdin = open(os.devnull)  # noqa: SIM115
        for name in TERMINAL:
            os.environ.pop(name, None)
        os.environ.update(request.environ)
    if shutil.which("sbatch") is None:
        os.environ.update(_login_environ())
    from clusterdp.cli import streams

    try:
        return _ran(request, notes, stdin)
    except KeyboardInterrupt:
        return 130
    except ClusterdpError as error:
        streams.complain(error)
        return error.exit_code
    except OSError as error:
        where = error.filename or request.folder
        streams.complain(RemoteError(f"{where}: {error.strerror}. Look at that folder, and at the space there."))
        return RemoteError.exit_code


def _login_environ() -> dict[str, str]:
    """Returns where a login shell finds Slurm's commands: on some clusters /etc/profile alone says it."""
    shell = os.environ.get("SHELL", "")
    shell = shell if os.path.basename(shell) in ("bash", "zsh", "ksh", "sh") else "/bin/sh"
    words = [shell, "-lc", 'printf "\\n%s\\n%s" "$PATH" "$SLURM_CONF"']
    with suppress(OSError, subprocess.TimeoutExpired, ValueError):
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PROFILE_S)
        path, conf = done.stdout.rsplit("\n", 2)[1:]
        return {name: value for name, value in (("PATH", path), ("SLURM_CONF", conf)) if value}
    return {}


def _ran(request: Request, notes: Notes, stdin: IO[bytes]) -> int:
    folder = Path(request.folder).expanduser()
    for token, cut in request.cut.items():
        if (code := _settled(token, cut, request, notes)) is not None:
            return code
    if request.sends or request.token:
        from clusterdp.remote.received_project import prepare

        prepare(folder)
    os.chdir(folder if folder.is_dir() else Path.home())
    if request.sends:
        return _with_project(folder, request, notes, stdin)
    if request.token:
        return _new_run(folder, request, stdin)
    if request.follows:
        _end_with(stdin)
    if wire.FILE in request.words:
        from clusterdp.remote.returned_file import with_file

        return with_file(folder, request, notes, stdin, _verb)
    return _verb(request.words)


def _settled(token: str, cut: Sequence[str], request: Request, notes: Notes) -> int | None:
    """Tells the outcome of an earlier call that was cut: `cut` is its folder, its time, and its words. Returns an exit
    code if this call, which was typed alike, must not submit again."""
    from clusterdp.remote import calls

    folder, when, *typed = cut
    outcome = calls.settle(Path(folder).expanduser(), token)
    submitted = outcome.state == "ended" and outcome.code == 0
    if outcome.state != "unknown":
        notes.write(settled=token)
    if not request.token or typed != request.typed or not (submitted or outcome.state == "unknown"):
        words = shlex.join(["clusterdp", *typed])
        print(f"clusterdp: `{words}` of {when}, which was cut: {outcome.said.strip()}", file=sys.stderr)
        return None
    if not submitted:
        asks = "Nothing more was submitted. `clusterdp list` asks again."
        raise SubmitInDoubt(f"the same call of {when} was cut, and {outcome.said}. {asks}")
    print(outcome.said, end="")
    what = f"that is the outcome of the same call of {when}, which was cut"
    print(f"clusterdp: {what}. Nothing more was submitted; type it again for another.", file=sys.stderr)
    return 0


def _with_project(folder: Path, request: Request, notes: Notes, stdin: IO[bytes]) -> int:
    """Receives the files that are not here yet, and runs the verb for them."""
    from clusterdp.remote.received_project import Transfer, locked
    from clusterdp.submission.snapshot.sent_project import PRIVATE, as_sent

    if not (line := stdin.readline()).endswith(b"\n"):
        raise RemoteError("the connection ended before the files had come. Nothing was submitted.")
    with locked(folder):
        transfer = Transfer(folder, sent := json.loads(line))
        lacking = transfer.lacking()
        if request.sends == "project":
            notes.write(wanted=lacking)
            transfer.receive(lacking, stdin)
            transfer.put_in_place()
            with as_sent(transfer.project(whole=True)):
                return _new_run(folder, request, stdin) if request.token else _verb(request.words)
        with tempfile.TemporaryDirectory(dir=folder / PRIVATE, prefix="config-") as name:
            notes.write(wanted=sent["config"], lacking=lacking)
            transfer.receive(sent["config"], stdin, Path(name))
            for file in transfer.files.keys() - sent["config"]:
                if file.endswith(".py"):  # by its name alone, the module beside the config is found
                    Path(name, file).parent.mkdir(parents=True, exist_ok=True)
                    Path(name, file).touch()
            os.chdir(name)
            with as_sent(transfer.project(whole=False)):
                return _verb(request.words)


def _new_run(folder: Path, request: Request, stdin: IO[bytes]) -> int:
    """Runs a verb that submits a new run. A connection that is cut, or a Ctrl-C at the other end, does not end it."""
    from clusterdp.remote import calls

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    out, err = sys.stdout, sys.stderr
    assert isinstance(out, Output) and isinstance(err, Output)
    out.said, err.said = [], []
    words = [word for word in request.words if word != "--watch"]
    calls.begin(folder, request.token, request.run)
    code = _verb(words)
    out.flush()
    calls.end(folder, request.token, code, "".join(err.said if code else out.said))
    if code or out.lost or len(words) == len(request.words):
        return code
    out.said = err.said = None
    _end_with(stdin)
    return _verb(["watch", request.run])


def _end_with(stdin: IO[bytes]) -> None:
    """Ends this process, as Ctrl-C does, when the other end has gone."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(stdin.fileno(), 1):  # not stdin.read(): at the exit, Python would wait for its lock
                pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def _verb(words: Sequence[str]) -> int:
    """Runs a command line on this machine, and returns its exit code."""
    from clusterdp.cli import main as run

    try:
        return run(["--on", "here", *words])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)


if __name__ == "__main__":
    raise SystemExit(main())
