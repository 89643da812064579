"""A file that a verb makes on the cluster for the user's machine: a page of `report`, a picture of `plot`, an export of
a checkpoint. An export stays there until all its bytes have come and are verified: a transfer that was cut goes on."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from clusterdp.errors import DamagedError
from clusterdp.operate.checkpoints.export import check_target
from clusterdp.operate.output.formatting import shown_path
from clusterdp.plainfile import read_plain, sync_folder, write_durably
from clusterdp.remote.connection import Connection
from clusterdp.remote.host import RemoteHost, write_private
from clusterdp.remote.received_project import prepare
from clusterdp.remote.wire import CHUNK, FILE, Notes, Request
from clusterdp.submission.snapshot.sent_project import PRIVATE

KEPT_S = 7 * 86400.0  # how long an export is kept whose bytes have not all come
ABOUT = "about.json"


def with_file(
    folder: Path, request: Request, notes: Notes, stdin: IO[bytes], verb: Callable[[Sequence[str]], int]
) -> int:
    """On the cluster: runs the verb, and sends the file that it makes, before what it prints. Returns its exit code."""
    export = request.words[:2] == ["checkpoint", "export"]
    about: dict[str, Any] = {}
    with ExitStack() as stack:
        if export:
            place, about = _exported(folder, request)
        else:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clusterdp-")))
        if not about:
            name = request.returns or _report_name(request.words)
            path, printed = place / name, sys.stdout
            sys.stdout = text = io.StringIO()
            try:
                code = verb([str(path) if word == FILE else word for word in request.words])
            finally:
                sys.stdout = printed
            said = text.getvalue().replace(str(path), name).replace(shown_path(path), name)
            if code:
                print(said, end="")
                return code
            about = {"name": name, "sha256": _digest(path), "said": said}
            if export:
                write_durably(place / ABOUT, json.dumps(about), mode=0o600)
        sys.stdout.flush()
        _send(place, about, request.has, notes)
        print(about["said"], end="")
        if export and stdin.readline() == b"whole\n":
            shutil.rmtree(place, ignore_errors=True)
    return 0


def _exported(folder: Path, request: Request) -> tuple[Path, dict[str, Any]]:
    """Returns the folder of an export, and what is known of it if it was made before."""
    prepare(folder)
    exports = folder / PRIVATE / "exports"
    exports.mkdir(exist_ok=True, mode=0o700)
    for old in exports.iterdir():
        if old.stat().st_mtime < time.time() - KEPT_S:
            shutil.rmtree(old, ignore_errors=True)
    if request.has and (name := str(request.has[0])).isalnum():
        with suppress(OSError, ValueError):
            return exports / name, json.loads(read_plain(exports / name / ABOUT))
    (exports / request.nonce).mkdir(mode=0o700)
    return exports / request.nonce, {}


def _send(place: Path, about: dict[str, Any], has: Sequence[Any], notes: Notes) -> None:
    with open(place / about["name"], "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = min(int(has[1]), size) if has and has[0] == place.name else 0
        file.seek(offset)
        notes.write(file=about["name"], export=place.name, size=size, offset=offset, sha256=about["sha256"])
        while data := file.read(CHUNK):
            notes.write_bytes(data)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _report_name(words: Sequence[str]) -> str:
    """Returns the name that `clusterdp report` gives its page."""
    from clusterdp.cli.arguments import read_options
    from clusterdp.operate.find.find_run import find_run
    from clusterdp.operate.report.page import default_name

    return default_name([find_run(word) for word in read_options(words).runs or [None]])


class FetchedExport:
    """On the user's machine: the file of `checkpoint export`, of which a part may be here. Raises ConfigError for a
    target that cannot be used."""

    def __init__(self, host: RemoteHost, options: argparse.Namespace):
        self.target = Path(os.path.realpath(Path(options.file).expanduser()))
        check_target(self.target, options.force)
        self.words = ["checkpoint", "export", options.place, FILE]
        for name in ("step", "only"):
            if (value := getattr(options, name)) is not None:
                self.words += [f"--{name}", value]
        self.part = self.target.with_name(f".{self.target.name}.part")
        self.about = self.part.with_suffix(".part.json")
        self.asked = [host.name, host.folder, *self.words]

    def has(self) -> list[Any]:
        """Returns the export of which a part is here, and how many bytes; empty without a part of the same export."""
        with suppress(OSError, ValueError, KeyError):
            about = json.loads(read_plain(self.about))
            if about["asked"] == self.asked:
                return [about["export"], self.part.stat().st_size]
        return []

    def fetch(self, note: dict[str, Any], connection: Connection) -> None:
        """Writes what comes, and if it is whole, verifies it and gives it its name."""
        write_private(self.about, json.dumps({"asked": self.asked, "export": note["export"]}).encode())
        with open(self.part, "ab") as file:
            file.truncate(note["offset"])
            for data in connection.answer.raw(note["size"] - note["offset"]):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if file.tell() < note["size"]:
                return  # the connection was cut: the next call goes on from here
        good = _digest(self.part) == note["sha256"]
        if good:
            self.part.replace(self.target)
            sync_folder(self.target.parent)
        self.part.unlink(missing_ok=True)
        self.about.unlink(missing_ok=True)
        if not good:
            raise DamagedError(f"{self.target}: its bytes are not those that were sent. Type it again.")
        connection.send(b"whole\n")
