"""Copies: the keepers of this allocation, and the copy of the state in memory that outlives a job on the disk.

The keepers run in a step of their own, one task on each node, beside the ranks, whose memory and devices it does not
hold. They end with their stdin, which ends with this process at the latest.
"""

import json
import math
import os
import re
import select
import subprocess
import sys
import time
from typing import IO, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import keeper
from .children import Children, end, term_blocked
from .job import Job
from .record import Record
from .rules import Rules
from .texts import read, warn, warn_of_fault

OLDEST = (22, 5)  # release of Slurm
FIRST_S = 1  # least seconds from the start of the ranks to that of the keepers: a program may fail at once
LOOK_S = 0.5  # seconds between two looks at the time, and at a TERM
END_S = 2  # limit of the seconds for the end of the keepers
HEAD = 4096  # bytes that hold the first line of a manifest
# srun reads the request of the job, or of the ranks, from variables with these names.
INHERITED = (
    "SLURM_LABELIO",
    "SLURM_STD",
    "SLURM_GPU",
    "SLURM_GRES",
    "SLURM_TRES",
    "SLURM_NTASKS",
    "SLURM_CPU",
    "SLURM_MEM",
    "SLURM_DISTRIBUTION",
)
Age = Tuple[int, float, str]


class Copy(NamedTuple):
    """A commit: a copy in memory, or a checkpoint on the disk."""

    age: Age
    step: int
    token: str
    name: str  # of the manifest
    manifest: bytes


class Copies:
    def __init__(self, job: Job, rules: Rules, children: Children) -> None:
        self.job = job
        self.children = children
        self.folder = os.path.join(job.run, "checkpoints")
        self.is_wanted = rules.copies and sys.platform == "linux"
        self._needs_claim = rules.kind != "entry"  # a program that does not use clusterdp has no claims, and no copies
        self._keeps_local = rules.keeps_local
        self._key = ""
        self._at = math.inf  # time from which the keepers may start
        self._step = None  # type: Optional[subprocess.Popen[bytes]]

    def export(self, url: str) -> None:
        """Sets the variable by which the ranks find the keepers. url: the place of the checkpoints."""
        if self.is_wanted:
            if not self._keeps_local:
                self.folder = url
            self._key = os.urandom(16).hex()
            self.children.export(**{keeper.KEY: self._key + " " + url})

    def begin(self) -> None:
        """Notes the start of the ranks."""
        if self.is_wanted and (self._step is None or self._step.poll() is not None):
            self._at = time.monotonic() + FIRST_S

    @property
    def left_s(self) -> float:
        """Seconds until the keepers may start."""
        left_s = self._at - time.monotonic()
        return left_s if left_s > 0 else math.inf  # then only the ranks' claim may be missing

    def is_due(self) -> bool:
        """Returns whether the keepers must start now."""
        if time.monotonic() < self._at:
            return False
        return not self._needs_claim or os.path.isdir(os.path.join(self.job.run, "claims"))

    def start(self) -> None:
        """Starts the keepers. Before Slurm 22.05, a step with --overlap shares CPUs only: the next step of the ranks
        would wait for the keepers' memory."""
        self._at = math.inf
        release = re.search(r"(\d+)\.(\d+)", self.children.run(["srun", "--version"]).said)
        if release is None or (int(release.group(1)), int(release.group(2))) < OLDEST:
            return
        nodes = str(self.job.node_count)
        words = ["srun", "--job-name=keepers", "--overlap", "--mem=0", "--gres=none", "--mpi=none"]
        words += [
            "--nodes=" + nodes,
            "--ntasks=" + nodes,
            "--ntasks-per-node=1",
            "--cpus-per-task=1",
            "--kill-on-bad-exit=1",
            "--export=ALL",
        ]
        words += [sys.executable, "-I", os.path.abspath(keeper.__file__), self.folder]
        environ = {
            name: value for name, value in self.children.environ.items() if not os.fsdecode(name).startswith(INHERITED)
        }
        environ.pop(b"CLUSTERDP_RUN_DIR", None)  # by which the processes of a program are found
        try:
            with open(os.path.join(self.job.logs, "keepers.log"), "ab") as log, term_blocked():
                self._step = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environ
                )
            assert self._step.stdin is not None
            self.children.private = [self._step.stdin.fileno()]
        except OSError as error:
            warn("copies of the state in memory: {}".format(error))

    def write(self, record: Record, limit_s: Callable[[], float], stops: Callable[[], bool] = lambda: False) -> None:
        """Writes the newest copy to the disk if it is newer than all checkpoints there. Called when no rank is alive,
        and the job is about to leave its nodes. Gives up after limit_s() seconds, or when stops() is true, because a
        requeue must not come too late."""
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
            self.close()
            if copy is not None:
                self._remove(copy)
            return
        warn("step {} was in the memory of the nodes, and is a checkpoint now.".format(copy.step))
        seconds = round(time.monotonic() - began, 4)
        record.event("saved", step=copy.step, seconds=seconds, memory=True)
        record.note("saved", str(copy.step))

    def _newest(self) -> Optional[Copy]:
        """Returns the newest copy if it is newer than the checkpoints. Raises OSError."""
        if self._step is None or self._step.poll() is not None or "://" in self.folder or not self._has_claim():
            return None
        line = keeper.connect(self._key, self.job.host)
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
        assert self._step is not None and self._step.stdin is not None and self._step.stdout is not None
        if time.monotonic() > deadline or stops():
            raise OSError("the job must leave its nodes")
        folder = copy.name.partition("/")[0]
        self._step.stdin.write(os.fsencode("write {} {}\n".format(folder, copy.token)))
        self._step.stdin.flush()
        count, written = len(json.loads(copy.manifest.decode("ascii"))["body"]["files"]), 0
        for answer in _answers(self._step.stdout, self.job.node_count, deadline, stops):
            word, _, rest = answer.partition(" ")
            if word != "wrote":
                raise OSError(answer)
            written += int(rest.split(" ")[1])
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

    def close(self) -> None:
        """Ends the keepers, so that Slurm has their step as completed."""
        if self._step is None or self._step.stdin is None:
            return
        self.children.private = []
        try:
            self._step.stdin.close()
            self._step.wait(END_S)
        except (OSError, subprocess.TimeoutExpired):
            end(self._step)


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


def _answers(stream: IO[bytes], count: int, deadline: float, stops: Callable[[], bool]) -> List[str]:
    """Returns the answers of `count` keepers. Raises OSError if they do not come."""
    said, answers = b"", []  # type: Tuple[bytes, List[str]]
    while len(answers) < count:
        if time.monotonic() > deadline or stops():
            raise OSError("the keepers of {} nodes have not answered in time".format(count - len(answers)))
        if not select.select([stream], [], [], LOOK_S)[0]:
            continue
        more = os.read(stream.fileno(), 65536)
        if not more:
            raise OSError("the keepers have ended")
        said += more
        whole = os.fsdecode(said.rpartition(b"\n")[0]).splitlines()
        answers = [line for line in whole if line.startswith(("wrote ", "failed "))]  # a prolog may print, too
    return answers
