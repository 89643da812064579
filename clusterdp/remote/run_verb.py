"""Runs a verb of the command line on a cluster behind ssh, and shows its output here."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp import __version__
from clusterdp.errors import ConfigError, RemoteError, SubmitInDoubt, Unreachable
from clusterdp.operate.output.formatting import ago
from clusterdp.operate.output.terminal import terminal_columns, underlying
from clusterdp.remote import kept
from clusterdp.remote.connection import SILENT_S, Connection, command, line_of, open_master
from clusterdp.remote.host import RemoteHost, remote_host
from clusterdp.remote.wire import FILE, Request

if TYPE_CHECKING:
    from clusterdp.remote.project import Project
    from clusterdp.remote.returned_file import FetchedExport

READS = frozenset("list status why goodput report plot logs sweep diff".split())  # verbs whose answers are kept
NEW_RUNS = frozenset("submit again profile".split())  # verbs that submit a new run, whose name is chosen here
OF_PROJECT = frozenset("submit check profile rehearse".split())  # verbs that need its files there
ALWAYS_HERE = frozenset("init configs completion fake".split())
HERE_BY_DEFAULT = ALWAYS_HERE | {"rehearse", "show"}  # unless --on names the host
TERMINAL = ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR")


def stays_here(verb: str, options: argparse.Namespace, named: bool) -> bool:
    """Returns whether a verb runs on this machine though there is a host. named: by `--on`, not by the site profile.
    Raises ConfigError if the two exclude each other."""
    local = getattr(options, "cluster", "") == "local"
    if named and (local or verb in ALWAYS_HERE):
        raise ConfigError(
            f"{'--cluster local' if local else verb}: runs on this machine. Leave out --on, or --on here."
        )
    return not named and (local or verb in HERE_BY_DEFAULT)


def run_verb(name: str, words: Sequence[str], options: argparse.Namespace) -> int:
    """Runs `clusterdp WORDS` on the host, and returns its exit code. Raises RemoteError or Unreachable if that cannot
    be done there, and SubmitInDoubt if the connection was cut during a submit."""
    host, verb = remote_host(name), words[0]
    asks = verb in ("rm", "checkpoint") and not (getattr(options, "yes", True) or options.dry_run)
    if (asks or verb == "shell") and sys.stdin.isatty() and sys.stdout.isatty():
        return _on_a_terminal(host, words)
    call = Call(host, Request(os.urandom(8).hex(), [*words], host.folder, *_terminal()))
    if verb in OF_PROJECT or (verb == "show" and options.config):
        call.add_project(options)
    if verb in NEW_RUNS and not getattr(options, "dry_run", False):
        call.add_run(options)
    if verb == "report" or (verb == "plot" and options.file):
        call.target = str(Path(options.file).expanduser()) if options.file else ""
        call.ask(words=[*words, "-o", FILE], returns=os.path.basename(call.target))
    if verb == "checkpoint" and words[1] == "export":
        from clusterdp.remote.returned_file import FetchedExport

        call.export = export = FetchedExport(host, options)
        call.ask(words=export.words, returns=export.target.name, has=export.has())
    return call.answer()


def _terminal() -> tuple[dict[str, str], list[bool]]:
    """Returns the variables that describe this terminal, and whether stdout and stderr are one."""
    out, err = sys.stdout.isatty(), sys.stderr.isatty()
    environ = {each: os.environ[each] for each in TERMINAL if each in os.environ}
    if out:
        environ["COLUMNS"] = str(terminal_columns())
        with suppress(OSError, ValueError):
            environ["LINES"] = str(os.get_terminal_size(underlying(sys.stdout).fileno()).lines)
    return environ, [out, err]


def _on_a_terminal(host: RemoteHost, words: Sequence[str]) -> int:
    """Runs a verb that asks, or a shell: ssh makes a terminal there, and both ends are one."""
    line = line_of(host, Request("", [*words], host.folder, {}, []))
    process = subprocess.Popen(command(host, open_master(host), line, terminal=True))
    while True:
        with suppress(KeyboardInterrupt):  # it goes to the program there
            return process.wait()


class Call:
    """One request, from the connection to the exit code."""

    def __init__(self, host: RemoteHost, request: Request):
        words = self.words = request.words
        follows = words[0] == "watch" or (words[0] == "logs" and not {"-f", "--follow"}.isdisjoint(words))
        self.host, self.request = host, request._replace(follows=follows, cut=kept.cut_calls(host))
        self.keeps = (words[0] in READS or words[:2] == ["checkpoint", "ls"]) and not follows
        self.project: Project | None = None
        self.export: FetchedExport | None = None
        self.target = ""  # the path of a file that comes back; empty: its name there, in the working directory
        self.printed, self.file = b"", ("", b"")
        self.code: int | None = None

    def ask(self, **fields: Any) -> None:
        self.request = self.request._replace(**fields)

    def add_project(self, options: argparse.Namespace) -> None:
        """Makes the files of the working directory travel with the request."""
        if not options.config:
            return
        from clusterdp.cli.named import config_path
        from clusterdp.remote.project import Project, is_shipped

        path = config_path(options.config)
        self.project = Project(path, options.overrides, getattr(options, "sweep", ()))
        whole = self.words[0] != "show" and not getattr(options, "dry_run", False)
        self.ask(sends="project" if whole else "config")
        if os.path.isabs(options.config) and not is_shipped(Path(path)):  # the folder is another one there
            name = os.path.relpath(path, self.project.folder)
            self.ask(words=[name if word == options.config else word for word in self.words])

    def add_run(self, options: argparse.Namespace) -> None:
        """Gives the run its name: the user's own, or a new one."""
        from clusterdp.submission.plan import new_name

        given = [word.partition("=")[2] for word in options.overrides if word.startswith("run_dir=")]
        own = given[-1] if given else self.project and self.project.given.values.get("run_dir")
        if own and "${" in own:
            raise ConfigError(f"run_dir: {own!r} is known on {self.host.name} alone. Write it out: run_dir=runs/NAME.")
        if self.project:
            name = str(self.project.given.values.get("name"))
        else:  # the name of the run that is submitted again, if it was named by its folder
            name = re.sub(r"-\d{8}-\d{6}-[0-9a-f]{4}$", "", os.path.basename(options.run or ""))
        run = str(own or "runs/" + new_name("again" if name.isdecimal() or "${" in name else name))
        self.ask(
            run=run, typed=self.words, words=self.request.words if own else [*self.request.words, f"run_dir={run}"]
        )

    def answer(self) -> int:
        """Returns the exit code. The last answer is shown if the host cannot be reached."""
        try:
            master = open_master(self.host)
            if not self.request.run:
                return self._exchange(master)
        except Unreachable:
            self._show_kept()
            raise
        record = kept.OpenCall(self.host, self.request.typed)
        self.ask(token=record.token)
        try:
            code = self._exchange(master)
        except (Unreachable, KeyboardInterrupt) as error:
            what = f"{self.host.name}: interrupted." if isinstance(error, KeyboardInterrupt) else str(error)
            raise SubmitInDoubt(
                f"{what} It is unknown whether the run was submitted, as {self.request.run}: `clusterdp --on "
                f"{self.host.name} list` says it. To type the same again is safe: it never submits twice."
            ) from None
        except RemoteError:  # the call has not begun
            record.forget()
            raise
        record.forget()
        return code

    def _exchange(self, master: tuple[str, ...]) -> int:
        """Sends the request, shows the answer, and returns the exit code."""
        reads = not (self.request.run or self.request.sends)
        connection = Connection(self.host, master, self.request, SILENT_S if reads else None)
        with closing(connection):
            if self.project:
                connection.send(self.project.as_json())
            version = connection.begin()
            if version != __version__ and not reads:
                print(
                    f"clusterdp: {self.host.name} has clusterdp {version}, and here is {__version__}", file=sys.stderr
                )
            try:
                self._show(connection)
            except KeyboardInterrupt:
                if not self.request.follows:
                    raise
                connection.end_input()  # which ends the verb there, with its last words
                self._show(connection)
        if self.code is None:
            raise Unreachable(f"{self.host.name}: the connection was cut, and the answer is not whole.")
        if self.keeps and self.code == 0:
            kept.keep(self.host, self.words, self.printed, *self.file)
        return self.code

    def _show(self, connection: Connection) -> None:
        sys.stdout.flush()
        out = underlying(sys.stdout).buffer
        for part in connection.answer:
            if isinstance(part, dict):
                self._note(part, connection)
                continue
            out.write(part)
            out.flush()
            if self.keeps and len(self.printed) <= kept.LARGEST:
                self.printed += part

    def _note(self, note: dict[str, Any], connection: Connection) -> None:
        if "wanted" in note and self.project:
            whole = "lacking" not in note
            if self.words[0] != "show":
                print(self.project.told(note["wanted" if whole else "lacking"], whole), file=sys.stderr, flush=True)
            for data in self.project.contents(note["wanted"]):
                connection.send(data)
        elif "settled" in note:
            kept.forget_call(self.host, note["settled"])
        elif "file" in note and self.export:
            self.export.fetch(note, connection)
        elif "file" in note:
            data = b"".join(connection.answer.raw(note["size"]))
            if len(data) == note["size"]:  # else the connection was cut
                self._write_file(os.path.basename(note["file"]), data)
        elif "end" in note:
            self.code = int(note["end"])

    def _write_file(self, name: str, data: bytes) -> None:
        from clusterdp.operate.output.output_file import write_output

        write_output(Path(self.target or name), data, "FILE")
        self.file = (name, data)

    def _show_kept(self) -> None:
        """Shows the last answer, if there is one, with its age on stderr."""
        last = kept.kept_answer(self.host, self.words) if self.keeps and not self.printed else None
        if last:
            then, printed, name, file = last
            sys.stdout.write(printed.decode(errors="replace"))
            if name:
                self._write_file(name, file)
            sys.stdout.flush()
            age = ago(then, time.time())
            print(f"clusterdp: as of {age}, for the cluster cannot be reached", file=sys.stderr, flush=True)


class HostSession:
    """One ssh process that answers many read-only verbs, as `clusterdp top` asks them. Not for several threads."""

    def __init__(self, name: str):
        self.host = remote_host(name)
        request = Request(os.urandom(8).hex(), [], self.host.folder, {}, [False, False], held=True)
        self.connection = Connection(self.host, open_master(self.host), request, SILENT_S)
        try:
            self.connection.begin()
        except BaseException:
            self.connection.close()
            raise

    def ask(self, words: Sequence[str]) -> Any:
        """Returns what `clusterdp WORDS --json` prints there, parsed, such as of ["list", "--all"]. Raises as text()
        does."""
        return json.loads(self.text([*words, "--json"]))

    def text(self, words: Sequence[str]) -> str:
        """Returns what `clusterdp WORDS` prints there. Raises Unreachable if the connection has ended, RemoteError with
        its message if the verb fails."""
        self.connection.send(json.dumps([*words]).encode() + b"\n")
        printed = b""
        for part in self.connection.answer:
            if isinstance(part, bytes):
                printed += part
            elif part.get("end"):
                said = str(part["said"]).strip().removeprefix("clusterdp: ")
                raise RemoteError(f"{self.host.name}: {said or shlex.join(['clusterdp', *words]) + ': failed there'}")
            elif "end" in part:
                return printed.decode(errors="replace")
        raise Unreachable(f"{self.host.name}: the connection has ended. Type: ssh -fN {self.host.name}")

    def close(self) -> None:
        self.connection.close()
