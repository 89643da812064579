"""Copies: the newest copy of the state in the memory of the nodes becomes a checkpoint when a job leaves them."""

import json
import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ..files.job import Job
from ..files.record import Record
from ..files.rules import Rules
from ..files.texts import read, warn, warn_of_fault
from ..processes.children import Children
from ..processes.slurm import RUNNING, Look
from . import keeper
from .keepers import Keepers

HEAD = 4096  # bytes that hold the first line of a manifest
WRITE_S = 120  # limit of the seconds for writing a copy of the state in memory to the disk
ENDING_WRITE_S = 10  # the same if KILL comes soon
MARGIN_S = 15  # seconds between the end of the write and that of the job's time
Age = Tuple[int, float, str]


class Copy(NamedTuple):
    """A commit: a copy in memory, or a checkpoint on the disk."""

    age: Age
    step: int
    token: str
    name: str  # of the manifest
    manifest: bytes


class Copies:
    def __init__(self, job: Job, rules: Rules, children: Children, keepers: Keepers) -> None:
        self.job = job
        self.children = children
        self.keepers = keepers
        self._are_wanted = rules.copies and keepers.are_wanted
        self._keeps_local = rules.keeps_local

    @property
    def folder(self) -> str:
        return self.keepers.folder

    def export(self, url: str) -> None:
        """Sets the variable by which the ranks find the keepers. url: the place of the checkpoints."""
        if self._are_wanted:
            if not self._keeps_local:
                self.keepers.folder = url
            self.children.export(**{keeper.KEY: self.keepers.key + " " + url})

    def write(self, record: Record, limit_s: Callable[[], float], stops: Callable[[], bool] = lambda: False) -> None:
        """Writes the newest copy to the disk if it is newer than all checkpoints there. Called when no rank is alive,
        and the job is about to leave its nodes, or to go on with fewer ranks. Gives up after limit_s() seconds, or when
        stops() is true, because a requeue must not come too late."""
        copy, began = None, time.monotonic()
        try:
            copy = self._newest()
            if copy is None:
                return
            self._write(copy, time.monotonic() + limit_s(), stops)
        except Exception as error:
            if isinstance(error, OSError):
                warn("the copy of the state in memory could not be written: {}".format(error))
            else:
                warn_of_fault(error, "The copy of the state in memory is lost.")
            if copy is not None:
                self._remove(copy)
            return
        warn("step {} was in the memory of the nodes, and is a checkpoint now.".format(copy.step))
        seconds = round(time.monotonic() - began, 4)
        record.event("saved", step=copy.step, seconds=seconds, memory=True)
        record.note("saved", str(copy.step))

    def _newest(self) -> Optional[Copy]:
        """Returns the newest copy if it is newer than the checkpoints. Raises OSError."""
        if not self._are_wanted or not self.keepers.are_alive or "://" in self.folder or not self._has_claim():
            return None
        line = keeper.connect(self.keepers.key, self.job.host)
        try:
            sizes = keeper.ask(line, {"do": "list", "folder": ""})[0]["sizes"]
            copies = [_copy(name, _content(line, name)) for name in sizes if _is_manifest(name)]
        finally:
            line.close()
        newest = max((copy for copy in copies if copy is not None), default=None, key=lambda copy: copy.age)
        ages = [copy.age for copy in self._on_disk()]
        return newest if newest is not None and newest.age > max(ages, default=(-1, 0.0, "")) else None

    def _has_claim(self) -> bool:
        """Returns whether an attempt of this job owns the run folder (see train/ranks/claim.py)."""
        folder = os.path.join(self.job.run, "claims")
        if not os.path.isdir(folder):
            return False
        newest = max((name for name in os.listdir(folder) if name.isdigit()), default="")
        return bool(newest) and read(os.path.join(folder, newest)).startswith(self.job.id + ".")

    def _on_disk(self) -> List[Copy]:
        found = []
        for folder in os.listdir(self.folder) if os.path.isdir(self.folder) else []:
            if not folder.startswith("step_") or not os.path.isdir(os.path.join(self.folder, folder)):
                continue
            for file in os.listdir(os.path.join(self.folder, folder)):
                name = folder + "/" + file
                if _is_manifest(name):
                    with open(os.path.join(self.folder, name), "rb") as stream:
                        copy = _copy(name, stream.read(HEAD))
                    found += [] if copy is None else [copy]
        return found

    def _write(self, copy: Copy, deadline: float, stops: Callable[[], bool]) -> None:
        """Writes the files on all nodes, and then the manifest. Raises OSError."""
        if time.monotonic() > deadline or stops():
            raise OSError("the job must leave its nodes")
        folder = copy.name.partition("/")[0]
        count = len(json.loads(copy.manifest.decode("ascii"))["body"]["files"])
        order = "write {} {}".format(folder, copy.token)
        written = self._written(order, deadline, stops)
        if written < count:  # the ranks of a lost node have files in the memory of other nodes
            written += self._written(order + " " + keeper.HELD, deadline, stops)
        if written != count:
            raise OSError("{} of its {} files are in memory".format(written, count))
        path = os.path.join(self.folder, copy.name)
        temporary = os.path.join(os.path.dirname(path), ".{}.{}.tmp".format(os.path.basename(path), os.getpid()))
        with open(temporary, "wb") as file:
            file.write(copy.manifest)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        keeper.sync_folder(os.path.dirname(path))

    def _written(self, order: str, deadline: float, stops: Callable[[], bool]) -> int:
        """Returns the number of files that the keepers have written on this order. Raises OSError."""
        written = 0
        for answer in self.keepers.order(order, deadline, stops):
            word, _, rest = answer.partition(" ")
            if word != "wrote":
                raise OSError(answer)
            written += int(rest.split(" ")[1])
        return written

    def _remove(self, copy: Copy) -> None:
        """Removes the files of a copy that has no manifest, because a full disk needs the room."""
        folder = os.path.join(self.folder, copy.name.partition("/")[0])
        try:
            names = os.listdir(folder)
            for name in names if os.path.basename(copy.name) not in names else ():
                if name.startswith(copy.token + "-"):
                    os.unlink(os.path.join(folder, name))
        except OSError:
            pass  # the next attempt removes them


def write_limit_s(look: Look, is_cancelled: bool) -> float:
    """Returns the seconds for the write of a copy. At a preemption, at the time limit and at a cancel, KILL comes
    soon."""
    if look.state != RUNNING or is_cancelled:
        return ENDING_WRITE_S
    return WRITE_S if look.ends_at is None else min(WRITE_S, look.ends_at - time.time() - MARGIN_S)


def _content(line: Any, name: str) -> bytes:
    _, file = keeper.ask(line, {"do": "get", "name": name})
    if file is None:
        return b""
    with os.fdopen(file, "rb") as stream:
        stream.seek(0)
        return stream.read()


def _is_manifest(name: str) -> bool:
    return name.rpartition("/")[2].startswith("MANIFEST.")


def _copy(name: str, data: bytes) -> Optional[Copy]:
    """Returns the commit of a manifest; None if its first line cannot be read. (The ranks verify it.)"""
    line = data.partition(b"\n")[0]
    try:
        head: Dict[str, Any] = json.loads(line.decode("ascii")[len('{"head": ') :].rstrip(","))
        age = int(head["order"]), float(head["committed_at"]), str(head["token"])
        return Copy(age, int(head["step"]), age[2], name, data)
    except (ValueError, KeyError, TypeError):
        return None
