"""Receives the files of a project, on the cluster. Files that have not changed since the last time are not sent again.

    .clusterdp/incoming/     the files as they come, under their own names; a cut transfer goes on from there
    .clusterdp/moving        exists while they are moved to their places: until then the project is as it was
    .clusterdp/project.json  what was sent: each file with its state here and there

A file is asked for by its size and the time of its last change. One that was changed on the cluster is never written
over, nor one that came from somewhere else."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from clusterdp.errors import RemoteError, RunError
from clusterdp.plainfile import read_plain, write_durably
from clusterdp.remote.wire import CHUNK
from clusterdp.rundir import RunDir
from clusterdp.submission.send.lock import RunLock
from clusterdp.submission.snapshot.sent_project import MOVING, PRIVATE, SentProject
from clusterdp.wording import some_of

WAIT_S = 60.0  # for another submit of the same project


class SentFile(NamedTuple):
    """A file as the sender has it."""

    size: int
    mtime_ns: int
    mode: int
    link: str  # the target of a symbolic link

    @classmethod
    def of(cls, path: Path, status: os.stat_result) -> SentFile:
        if stat.S_ISLNK(status.st_mode):
            return cls(0, 0, 0, os.readlink(path))
        return cls(status.st_size, status.st_mtime_ns, 0o755 if status.st_mode & 0o100 else 0o644, "")


def prepare(folder: Path) -> None:
    """Makes the project's folder, and a private one in it. Raises RunError if it cannot be used."""
    for each in (folder, folder / PRIVATE):
        each.mkdir(parents=True, exist_ok=True, mode=0o700 if each.name == PRIVATE else 0o777)
        if each.stat().st_uid != os.geteuid() or (each.name == PRIVATE and each.is_symlink()):
            raise RunError(f"{each}: belongs to somebody else. Set remote.folder to a folder of your own.")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """In the body of the with statement, no other process sends files to this folder or submits from it."""
    lock, deadline = RunLock(RunDir(folder / PRIVATE)), time.monotonic() + WAIT_S
    while True:
        try:
            lock.__enter__()
            break
        except RunError as error:
            if time.monotonic() > deadline:
                raise RunError(f"{folder}: another submit of this project goes on. Wait for its end. {error}") from None
            time.sleep(0.2)  # there is no event across hosts
    try:
        yield
    finally:
        lock.release()


class Transfer:
    """The files of a project on their way to `folder`. `sent` is what the sender says about them."""

    def __init__(self, folder: Path, sent: Mapping[str, Any]):
        self.folder, self.private, self.sent = folder, folder / PRIVATE, sent
        self.incoming = self.private / "incoming"
        self.changes: list[str] = []  # files that are not in their places yet, by lacking()
        self.files = {name: SentFile(*each) for name, each in sent["files"].items()}
        for name in self.files:
            if not name or name.startswith("/") or PRIVATE in (parts := Path(name).parts) or ".." in parts:
                raise RemoteError(f"{name!r}: cannot be a file of a project. Rename it.")
        self.there = self._recorded("project.json")
        self.moving = self._recorded(Path(MOVING).name)

    def _recorded(self, name: str) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(read_plain(self.private / name))
            return found
        return {}

    def project(self, whole: bool) -> SentProject:
        diff = self.sent["diff"].encode("utf-8", "surrogateescape")
        return SentProject(self.folder, self.files.keys(), self.sent["git"], diff, whole)

    def lacking(self) -> list[str]:
        """Returns the names of the files that are not here yet. Raises RunError for another project's folder, and for
        files that were changed here."""
        (host, path), (old_host, old_path) = self.sent["origin"], self.there.get("origin") or self.sent["origin"]
        if host == old_host and path != old_path:
            raise RunError(
                f"{self.folder}: holds the project of {old_path}, and this is {path}. Set remote.folder, or if the "
                f"project was moved, remove {self.private / 'project.json'}."
            )
        changed = []
        for name, file in self.files.items():
            if (now := _state(self.folder / name)) == [*file]:
                continue
            known = [each for each in (self.there, self.moving) if now is not None and now == self._put(each, name)]
            if now is not None and not known:
                changed.append(name)
            elif not any(each["files"][name][:4] == [*file] for each in known):
                self.changes.append(name)
        if changed:
            raise RunError(
                f"{self.folder}: {some_of(sorted(changed), 3)}: changed there, or not from here. Copy what you need "
                "from it and remove it there, or set remote.folder."
            )
        files = ((name, self.files[name]) for name in self.changes)
        return [name for name, file in files if not file.link and _state(self.incoming / name) != [*file]]

    @staticmethod
    def _put(record: Mapping[str, Any], name: str) -> list[Any] | None:
        """Returns the state in which a file was put here: a file system may keep a coarser time than the sender's."""
        entry = record.get("files", {}).get(name)
        return entry and [entry[0], entry[4], entry[2], entry[3]]

    def receive(self, names: list[str], stream: IO[bytes], into: Path | None = None) -> None:
        """Reads the bytes of these files in turn. Raises RemoteError if the stream ends before."""
        incoming = into or self.incoming
        incoming.mkdir(exist_ok=True, mode=0o700)
        for name in names:
            file, target, part = self.files[name], incoming / name, incoming / ".part"
            target.parent.mkdir(parents=True, exist_ok=True)
            left = file.size
            with open(part, "wb") as out:
                while left:
                    if not (data := stream.read(min(left, CHUNK))):
                        raise RemoteError("the connection ended before all files had come. Type it again: it goes on.")
                    out.write(data)
                    left -= len(data)
            os.utime(part, ns=(file.mtime_ns, file.mtime_ns))
            part.chmod(file.mode)
            part.replace(target)

    def put_in_place(self) -> None:
        """Moves what has come to its place, and removes files that the sender no longer has. Killed in between, it is
        done again by the next transfer."""
        come = {name: _state(self.incoming / name) for name in self.changes}
        files = {name: [*file, 0] for name, file in self.files.items()}
        for name, entry in files.items():
            entry[4] = (come.get(name) or _state(self.folder / name) or [0, 0])[1]
        record = json.dumps({"origin": self.sent["origin"], "files": files})
        write_durably(self.folder / MOVING, record, mode=0o600)
        for name in self.changes:
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.parent.resolve() != self.folder.resolve() / target.parent.relative_to(self.folder):
                raise RunError(f"{target.parent}: is a link there, and a folder here. Remove the link.")
            if link := self.files[name].link:
                target.unlink(missing_ok=True)
                target.symlink_to(link)
            else:
                (self.incoming / name).replace(target)
        for name in self.there.get("files", {}).keys() - self.files.keys():
            if _state(self.folder / name) == self._put(self.there, name):
                (self.folder / name).unlink(missing_ok=True)
                with suppress(OSError):  # other files are there
                    (self.folder / name).parent.rmdir()
        write_durably(self.private / "project.json", record, mode=0o600)
        shutil.rmtree(self.incoming, ignore_errors=True)
        (self.folder / MOVING).unlink()


def _state(path: Path) -> list[Any] | None:
    """Returns the fields of a SentFile for a file here; None if it does not exist."""
    try:
        return [*SentFile.of(path, path.lstat())]
    except (FileNotFoundError, NotADirectoryError):
        return None
