"""Keepers: the step with a keeper on each node (see keeper.py), beside the ranks, and the nodes that are silent.

The step holds neither memory nor devices that the ranks need. Each keeper prints a beat every second, which comes over
srun's own connections: nothing listens for it, and no file system is in between. Slurm itself notices a lost node after
SlurmdTimeout, 300 s by default, and never a node whose processes are stopped.
"""

import math
import os
import select
import subprocess
import sys
import time
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Set

from ..decide.evidence import TASKS_ENDED
from ..files.causes import SILENT
from ..files.job import Job
from ..files.record import Record
from ..files.rules import Rules
from ..files.texts import read, size, warn
from ..processes.children import Children, end, term_blocked
from ..processes.slurm import steps_share_memory
from . import keeper

FIRST_S = 1  # least seconds from the start of the ranks to that of the keepers: a program may fail at once
LOOK_S = 0.5  # seconds between two looks at the beats
LOOK_ALONE_S = 60  # the same in a job with one node, whose beats are of no use
SILENT_S = 3.5  # seconds from the last beat of a node to that of another node, after which the node is silent
ANSWER_S = 1.0  # seconds after a request for a beat, in which a node whose ranks have left no word must answer
BLAMED_S = 10.0  # the same, after which the next attempt avoids the node
PAUSE_S = 0.1  # seconds between two looks while nothing else happens
GAP_S = 2.0  # seconds between two looks at the beats, after which they are out of date
END_S = 2  # limit of the seconds for the end of the keepers
SHOWN = 5  # nodes in a warning
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


class Keepers:
    """silent: the nodes that do not beat, while others do; they are named, and no answer of them is awaited."""

    def __init__(self, job: Job, rules: Rules, children: Children) -> None:
        self.job = job
        self.children = children
        self.key = os.urandom(16).hex()
        self.folder = os.path.join(job.run, "checkpoints")
        self.are_wanted = (rules.copies or job.node_count > 1) and sys.platform == "linux"
        self.silent: List[str] = []
        self._outlive_nodes = rules.no_kill
        # A program that does not use clusterdp has no claims, and no copies.
        self._need_claim = rules.kind != "entry" and job.node_count == 1
        self._pause_s = LOOK_S if job.node_count > 1 else LOOK_ALONE_S
        self._at = math.inf  # time from which the keepers may start
        self._step: "Optional[subprocess.Popen[bytes]]" = None
        self._rest = b""  # the begin of a line
        self._answers: Dict[str, str] = {}  # node -> answer
        self._heard: Dict[str, float] = {}  # node -> time of its last beat
        self._asked = math.inf  # time at which all nodes were asked for a beat
        self._forgotten: Set[str] = set()
        self._nodes = job.node_count
        self._log = os.path.join(job.logs, "keepers.log")
        self._log_began = 0  # where the words of the present step begin
        self._looked = math.inf

    @property
    def are_alive(self) -> bool:
        return self._step is not None and self._step.poll() is None

    def begin(self) -> None:
        """Notes the start of the ranks."""
        self.silent, self._asked = [], math.inf  # the next look names them in the new attempt
        # Keepers of a --no-kill job may outlive their srun, and then have the address.
        if self.are_wanted and not self.are_alive and not (self._outlive_nodes and self._heard):
            self._at = time.monotonic() + FIRST_S

    @property
    def left_s(self) -> float:
        """Seconds until tend() must be called; infinite if only the ranks' claim is missing."""
        now = time.monotonic()
        if self._at < math.inf:
            return self._at - now if self._at > now else math.inf
        return max(self._looked + self._pause_s - now, 0.0) if self.are_alive else math.inf

    def is_due(self) -> bool:
        if self._at == math.inf:
            return self.left_s <= 0
        if time.monotonic() < self._at:
            return False
        return not self._need_claim or os.path.isdir(os.path.join(self.job.run, "claims"))

    def tend(self, record: Record) -> None:
        """Starts the keepers, or looks at their beats."""
        if self._at < math.inf:
            self._start()
        else:
            self._look(record)

    def _start(self) -> None:
        self._at, self._heard, self.silent = math.inf, {}, []
        self._log_began = size(self._log)
        if not steps_share_memory(self.children):
            return
        try:
            with open(self._log, "ab") as log, term_blocked():
                step = subprocess.Popen(
                    self._words(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self._environ()
                )
            self.attach(step)
        except OSError as error:
            warn("the keepers of the nodes: {}".format(error))

    def attach(self, step: "subprocess.Popen[bytes]") -> None:
        assert step.stdin is not None and step.stdout is not None
        self._let_go()
        for stream in (step.stdin, step.stdout):
            os.set_blocking(stream.fileno(), False)
        self.children.private.append(step.stdin.fileno())
        self._step, self._looked = step, time.monotonic()

    def _words(self) -> List[str]:
        nodes = str(self._nodes)
        words = ["srun", "--job-name=keepers", "--overlap", "--mem=0", "--gres=none", "--mpi=none"]
        words += ["--nodes=" + nodes, "--ntasks=" + nodes, "--ntasks-per-node=1", "--cpus-per-task=1", "--export=ALL"]
        ends = ["--no-kill", "--kill-on-bad-exit=0", "--wait=0"] if self._outlive_nodes else ["--kill-on-bad-exit=1"]
        words += [*ends, sys.executable, "-I", os.path.abspath(keeper.__file__), self.folder]
        if self._outlive_nodes:
            package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            words += [self.job.id, nodes, sys.executable, "-I", "-S", "-B", os.path.dirname(package), "rescue"]
            words += [self.job.run, "--script=" + self.job.script, "--lost=" + self.job.host]
        return words

    def _environ(self) -> Dict[bytes, bytes]:
        environ = {
            name: value for name, value in self.children.own.items() if not os.fsdecode(name).startswith(INHERITED)
        }
        environ.pop(b"CLUSTERDP_RUN_DIR", None)  # by which the processes of a program are found
        own = {keeper.KEY: self.key, **(self.job.chain_variables() if self._outlive_nodes else {})}
        environ.update({os.fsencode(name): os.fsencode(value) for name, value in own.items()})
        return environ

    # -- the beats --

    def _look(self, record: Record) -> None:
        """Reads the beats. Records nodes that begin or cease to be silent."""
        now = time.monotonic()
        is_late, self._looked = now - self._looked > GAP_S + self._pause_s, now
        self._hear(now)
        if is_late:  # this program was busy, or the job was suspended: a silent node may beat before it is blamed
            just_silent = now - SILENT_S - LOOK_S
            for node, heard in self._heard.items():
                self._heard[node] = max(heard, just_silent) if node in self.silent else now
        silent = self._silent_for(SILENT_S)
        if set(silent).difference(self.silent):
            self._drop_ended()
            silent = self._silent_for(SILENT_S)
        begun, ended = [node for node in silent if node not in self.silent], set(self.silent).difference(silent)
        self.silent = silent
        if begun:
            warn("no sign of life from {}: {}.".format(_shown(begun), SILENT))
            record.event("silent", nodes=",".join(begun))
        if ended:
            warn("alive again: {}.".format(_shown(sorted(ended))))
            record.event("silent-ended", nodes=",".join(sorted(ended)))

    def _hear(self, now: float) -> None:
        for node in self._read():
            if node not in self._forgotten:
                self._heard[node] = now

    def ask(self) -> None:
        """Asks all nodes for a beat."""
        if self.are_alive:
            self._hear(time.monotonic())
            self._asked = time.monotonic() if self._send("beat") else math.inf

    def _drop_ended(self) -> None:
        """Drops nodes whose keeper has ended by itself, because their ranks may be alive."""
        for node, _, _ in TASKS_ENDED.findall(read(self._log, begin=self._log_began)):
            self._heard.pop(node, None)

    def _silent_for(self, seconds: float) -> List[str]:
        newest = max(self._heard.values(), default=0.0)
        return sorted(node for node, heard in self._heard.items() if newest - heard > seconds)

    def blamed(self, record: Record) -> List[str]:
        """Returns nodes that have been silent for BLAMED_S: no rank starts there again. If most nodes are silent, this
        node may be cut off, and no node is to blame (of two, the other one is)."""
        if self.are_alive:
            self._look(record)
        return self.lost()

    def lost(self) -> List[str]:
        """Returns the same at the time of the last look."""
        return self._few(self._silent_for(BLAMED_S))

    def _few(self, silent: List[str]) -> List[str]:
        return silent if 2 * len(silent) <= len(self._heard) else []

    def settled(self, record: Record, seconds: float, wordless: Sequence[str] = ()) -> List[str]:
        """Waits until each node has beaten, or has been silent for `seconds`. Returns the silent ones, as blamed()
        does. wordless: nodes that are silent, too, if they alone have not answered ask() for ANSWER_S."""
        began = time.monotonic()
        if self._asked == math.inf:
            self.ask()
        asked = min(self._asked, began)
        while self.are_alive and time.monotonic() < began + seconds + LOOK_S:
            self._look(record)
            mute = [node for node, heard in self._heard.items() if heard <= asked]
            if time.monotonic() > self._asked + ANSWER_S and set(wordless).issuperset(mute):
                self._heard.update(dict.fromkeys(mute, -math.inf))
                self._look(record)
            silent = self._silent_for(seconds)
            if all(heard > asked or node in silent for node, heard in self._heard.items()):
                break
            time.sleep(PAUSE_S)
        return self._few(self._silent_for(seconds))

    def forget(self, nodes: Iterable[str], left: Sequence[str]) -> None:
        """Forgets nodes on which no rank starts again: they are not silent, and no answer of them is awaited. left: the
        nodes that the job still has."""
        self._forgotten.update(nodes)
        self._nodes = len(left)
        for node in nodes:
            self._heard.pop(node, None)

    def _read(self) -> List[str]:
        """Reads what the keepers have printed. Returns the nodes that have beaten, and keeps the answers to orders."""
        assert self._step is not None and self._step.stdout is not None
        said = self._rest
        while True:
            try:
                more = os.read(self._step.stdout.fileno(), 65536)
            except BlockingIOError:
                break
            if not more:
                break
            said += more
        *lines, self._rest = said.split(b"\n")
        beats = []
        for line in lines:
            word, _, rest = os.fsdecode(line).partition(" ")
            if word == "beat":
                beats.append(rest)
            elif word in ("wrote", "failed"):  # a prolog may print, too
                self._answers[rest.partition(" ")[0]] = word + " " + rest
        return beats

    # -- orders --

    def order(self, words: str, deadline: float, stops: Callable[[], bool]) -> Sequence[str]:
        """Sends an order. Returns the answers of the keepers that have beaten and are not silent. Raises OSError if
        they do not come until the deadline, or before stops() is true."""
        self._answers = {}
        nodes = {*self._heard, *self._read()}.difference(self.silent, self._forgotten)
        if not self._send(words):
            raise OSError("the keepers take no orders")
        while not nodes.issubset(self._answers):
            if time.monotonic() > deadline or stops():
                missing = sorted(nodes.difference(self._answers))
                raise OSError("no answer of the keepers in time: {}".format(_shown(missing)))
            if self._has_ended(LOOK_S) and not nodes.issubset(self._answers):
                raise OSError("the keepers have ended")
        return list(self._answers.values())

    def kill(self, attempt: str, after: str) -> None:
        """Kills the ranks of an attempt, and those that wait for the one after it. On a silent node, they end as soon
        as it goes on."""
        if self.are_alive:
            self._send("kill {} {}".format(attempt, after))

    def drop(self) -> None:
        """Frees the copies in memory, because other numbers of ranks do not restore them."""
        if self.are_alive:
            self._send("drop")

    def _send(self, line: str) -> bool:
        """Sends a line to all keepers. Returns False if srun does not take it."""
        assert self._step is not None and self._step.stdin is not None
        try:
            return os.write(self._step.stdin.fileno(), os.fsencode(line + "\n")) > 0
        except OSError:  # the pipe is full, or srun has ended
            return False

    def _has_ended(self, limit_s: float) -> bool:
        """Waits until the keepers have printed something, or have ended, and reads it."""
        assert self._step is not None and self._step.stdout is not None
        select.select([self._step.stdout], [], [], limit_s)
        self._read()
        try:
            self._step.wait(0.01)  # at the end of stdout, srun is about to end
            self._read()
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Ends the keepers, so that Slurm has their step as completed."""
        self._at = math.inf
        if self._step is None or self._step.stdin is None or self._step.stdin.closed:
            return
        self._send("end")
        self._let_go()
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:  # srun does not end before its output is read
            if self._has_ended(END_S):
                return
        end(self._step)

    def _let_go(self) -> None:
        """Closes the stdin of the step, if there is one."""
        if self._step is not None and self._step.stdin is not None and not self._step.stdin.closed:
            self.children.private.remove(self._step.stdin.fileno())
            self._step.stdin.close()


def _shown(nodes: Sequence[str]) -> str:
    more = len(nodes) - SHOWN
    return " ".join(nodes[:SHOWN]) + (" and {} more".format(more) if more > 0 else "")
