"""The keeper: a process on each node of a job. It holds copies of checkpoints in memory, beats, and in a --no-kill job
looks whether the job still has its batch script.

    keeper.py FOLDER [JOB NODES RESCUE...]    FOLDER: the run's folder of checkpoints
                                              JOB NODES: the job's id and the number of its nodes
                                              RESCUE: the command that requeues a job without a script

A file of a copy is a memfd: a rank makes it, writes it, and gives its descriptor to the keeper, which outlives the
rank. The kernel frees the memory when the last process that has the descriptor has ended, whatever ended it. The ranks
and the batch program connect to an abstract unix socket, whose name has a random key; processes of other users are
refused. Sources: unix(7), memfd_create(2).

    {"do": "list", "folder": F}                 -> {"sizes": {name: bytes}}
    {"do": "put", "name": N, "life": L} and a descriptor
                                                -> {} or {"error": "exists"}, "replaced" or "lost"
    {"do": "get", "name": N}                    -> {} and a descriptor, or {"error": "missing"}
    {"do": "remove", "name": N, "life": L}      -> {} or {"error": "replaced"}

Each second, the keeper prints `beat NODE`. The batch program writes lines to the stdin of all keepers:

    write FOLDER TOKEN    write the files of this save to the disk, byte for byte; print `wrote NODE COUNT`, or
                          `failed NODE ERROR`
    kill ATTEMPT          kill the attempt's ranks on this node
    drop                  drop all files
    end                   end, as at the end of stdin, except in a --no-kill job

Slurm (24.11 to 26.05) takes a lost node out of a --no-kill job, also the node of the script. The job then goes on
without a script until its time limit. stdin may end then, or not. Therefore keepers of such a job look at it, and run
RESCUE if it has lost nodes. They look in turn, one every LOOK_S: a job of any size asks Slurm as often, and each other
node that is lost costs LOOK_S.

Torch-free, for Python 3.6: the node's own Python runs the copy of this file that is in the run folder.
"""

import array
import errno
import json
import os
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

KEY = "CLUSTERDP_MEMORY"  # the socket's random key, and for the ranks a blank and the place of the checkpoints
HELD = "held"  # folder of the files that a rank of this node keeps for one of another node
LONGEST = 1 << 20  # bytes of a message
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
RANK = (b"RANK=", b"PET_NODE_RANK=")  # variables of a rank, and of torchrun's agent
BEAT_S = 1.0
LOOK_S = 5.0  # seconds between two looks of all keepers at a --no-kill job
NEEDLESS = 3  # exit code of RESCUE if the job still has its script's node
HURRY_S = 0.2  # seconds between two of them if the job may be at its end
ALIVE = ("RUNNING", "SUSPENDED")  # states of a job whose tasks are not at their end
PIECE = 16 << 20
_ONE = array.array("i", [0]).itemsize


def address(key: str, node: str) -> bytes:
    """Returns the address of a node's keeper. (The fake cluster has all nodes on one machine.)"""
    return b"\0clusterdp-" + os.fsencode(key) + b"-" + os.fsencode(node)


def connect(key: str, node: str, limit_s: float = 10.0) -> socket.socket:
    """Returns a connection to the node's keeper. Raises OSError if there is none, or if it is another user's."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.settimeout(limit_s)
        line.connect(address(key, node))
        if not _is_ours(line):
            raise PermissionError("another user's process has the address of this node's keeper")
        return line
    except BaseException:
        line.close()
        raise


def ask(line: socket.socket, request: Dict[str, Any], descriptor: Optional[int] = None) -> Tuple[Any, Optional[int]]:
    """Sends a request, with a descriptor if one is given. Returns the answer, and the descriptor that came with it.
    Raises OSError if the keeper has ended or does not answer."""
    _send(line, request, descriptor)
    answer, found = _receive(line)
    if answer is None:
        raise ConnectionResetError("this node's keeper has ended")
    return answer, found


def _send(line: socket.socket, message: Dict[str, Any], descriptor: Optional[int]) -> None:
    rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    line.sendmsg([json.dumps(message).encode("ascii")], rights)


def _receive(line: socket.socket) -> Tuple[Any, Optional[int]]:
    """Returns a message and a descriptor; (None, None) if the other side has closed the connection."""
    data, ancillary, flags, _ = line.recvmsg(LONGEST, socket.CMSG_SPACE(_ONE), socket.MSG_CMSG_CLOEXEC)
    found = None
    for level, kind, rights in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and len(rights) >= _ONE:
            found = struct.unpack("i", rights[:_ONE])[0]
    if flags & socket.MSG_TRUNC:
        raise OSError("a message between a rank and its keeper is too long")
    return (json.loads(data.decode("ascii")) if data else None), found


def _is_ours(line: socket.socket) -> bool:
    _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user == os.getuid())


def kill_ranks(attempt: str, after: str, node: str) -> None:
    """Kills the ranks of an attempt on a node, torchrun's agents, and those that wait to become ranks of the attempt
    after it. (The fake cluster has all nodes on one machine.)"""
    here, name = os.fsencode("SLURMD_NODENAME=" + node), "CLUSTERDP_ATTEMPT="
    ours, waiting = {here, os.fsencode(name + attempt)}, {here, os.fsencode(name + after), b"CLUSTERDP_RESERVE=1"}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/{}/environ".format(pid), "rb") as file:
                variables = file.read().split(b"\0")
            is_rank = ours.issubset(variables) and any(each.startswith(RANK) for each in variables)
            if is_rank or waiting.issubset(variables):
                os.kill(int(pid), signal.SIGKILL)
        except OSError:  # it has ended, or is another user's
            pass


class Lookout:
    """Looks at a --no-kill job. nodes: their number at the start of the job. rescue: the command for a job that has
    lost nodes; it exits with 0 if the job is requeued or ended, or NEEDLESS.
    task: this keeper's; task 0 is beside the script."""

    def __init__(self, job: str, nodes: int, rescue: List[str], task: int) -> None:
        self._job = job
        self._nodes = nodes
        self._left = self._examined = nodes  # at the last look, and at the last look that a rescue found needless
        self._rescue = rescue
        self._task = task
        self._has_script = True
        self._has_lost = False
        self._restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self._at = time.monotonic() + LOOK_S * task
        self._asked: "Optional[subprocess.Popen[bytes]]" = None
        self._rescues: "Optional[subprocess.Popen[bytes]]" = None

    def hurry(self) -> None:
        """Looks at the job soon, because it may be at its end."""
        self._at = min(self._at, time.monotonic() + HURRY_S * self._task)

    def miss_script(self) -> None:
        """Notes that stdin has ended, and so the script, without the word `end`."""
        self._has_script = False
        self.hurry()

    def is_over(self) -> bool:
        """Returns whether this process must end, because the job is over, or is requeued. Called every second."""
        if self._rescues is not None:
            code = self._rescues.poll()
            if code is not None:
                self._rescues = None
            if code == NEEDLESS:
                self._examined = self._left
            return code == 0
        if self._asked is not None:
            return self._asked.poll() is not None and self._is_over()
        if time.monotonic() >= self._at:
            self._at = time.monotonic() + LOOK_S * max(self._nodes - 1, 1)
            self._asked = _started(["scontrol", "show", "job", self._job], subprocess.PIPE)
        return False

    def _is_over(self) -> bool:
        """Acts on the answer of scontrol."""
        assert self._asked is not None
        said, self._asked = os.fsdecode(self._asked.communicate()[0]), None
        state = re.search(r"(?<!\S)JobState=(\w+)", said)
        left = re.search(r"(?<!\S)NumNodes=([0-9]+)", said)
        restarts = re.search(r"(?<!\S)Restarts=([0-9]+)", said)
        if state is None or left is None:
            return False
        if restarts is not None and int(restarts.group(1)) > self._restart:
            return True
        self._left = int(left.group(1))
        self._has_lost = self._has_lost or self._left < self._nodes
        may_lack_script = self._left < self._examined or (self._has_lost and not self._has_script)
        if may_lack_script and state.group(1) == "RUNNING":
            self._rescues = _started(self._rescue, subprocess.DEVNULL)
        return state.group(1) not in ALIVE and (self._has_lost or not self._has_script)


def _started(words: List[str], out: int) -> "Optional[subprocess.Popen[bytes]]":
    try:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
    except OSError:  # this node is out of processes
        return None


class Keeper:
    def __init__(self, folder: str, node: str, key: str, lookout: Optional[Lookout] = None) -> None:
        self.folder = folder
        self.lookout = lookout
        self.has_term = False
        self.has_served = False  # whether a rank has ever asked
        self.node = node
        self.files: Dict[str, int] = {}  # name -> descriptor
        self.life = 0  # the newest life that has put a file: a rank of an earlier one cannot change the copies
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(address(key, node))
        self.listening.listen(1024)
        self.waiting = selectors.DefaultSelector()
        self.waiting.register(self.listening, selectors.EVENT_READ)
        self.waiting.register(0, selectors.EVENT_READ)
        self._words = b""  # the begin of a line from stdin

    def run(self) -> None:
        beat_at = time.monotonic()
        while True:
            for key, _ in self.waiting.select(max(beat_at - time.monotonic(), 0)):
                if key.fileobj is self.listening:
                    self._accept()
                elif key.fileobj == 0:
                    if not self._read_words():
                        return
                else:
                    self._answer(key.fileobj)
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT_S
                self._print("beat")
                if self._is_over():
                    return

    def note_term(self, number: int, frame: Any) -> None:
        self.has_term = True

    def _is_over(self) -> bool:
        """Returns whether this process must end. TERM comes to all steps of a job; copies are needed to the job's end.
        But if stdin has not ended, because srun was killed, Slurm waits KillWait for this process."""
        has_term, self.has_term = self.has_term, False
        if self.lookout is None:
            return has_term and not self.has_served
        if has_term:
            self.lookout.hurry()
        return self.lookout.is_over()

    def _accept(self) -> None:
        line, _ = self.listening.accept()
        if _is_ours(line):
            self.waiting.register(line, selectors.EVENT_READ)
        else:
            line.close()

    def _answer(self, line: Any) -> None:
        try:
            request, given = _receive(line)
            if request is None:
                raise ConnectionResetError
            _send(line, *self._done(request, given))
        except (OSError, ValueError, KeyError, TypeError):  # the rank has ended, or is not one
            self.waiting.unregister(line)
            line.close()

    def _done(self, request: Dict[str, Any], given: Optional[int]) -> Tuple[Dict[str, Any], Optional[int]]:
        do, self.has_served = request["do"], True
        if do == "list":
            start = request["folder"] + "/" if request["folder"] else ""
            found = {name: os.fstat(file).st_size for name, file in self.files.items() if name.startswith(start)}
            return {"sizes": found}, None
        name = request["name"]
        if do == "put":
            if given is None:  # this process has too many open files
                return {"error": "lost"}, None
            error = "replaced" if request["life"] < self.life else "exists" if name in self.files else ""
            if error:
                os.close(given)
                return {"error": error}, None
            self.life, self.files[name] = request["life"], given
        elif do == "get":
            return ({}, self.files[name]) if name in self.files else ({"error": "missing"}, None)
        elif do == "remove":
            if request["life"] < self.life:
                return {"error": "replaced"}, None
            if name in self.files:
                os.close(self.files.pop(name))
        return {}, None

    def _read_words(self) -> bool:
        """Obeys the lines from stdin. Returns False if this process must end."""
        said = os.read(0, 65536)
        if not said and self.lookout is not None:
            self.waiting.unregister(0)
            self.lookout.miss_script()
            return True
        *lines, self._words = (self._words + said).split(b"\n")
        for line in lines:
            order, *given = (os.fsdecode(word) for word in line.split(b" "))
            if order == "end":
                return False
            if order == "beat":
                self._print("beat")
            if order == "kill":
                kill_ranks(given[0], given[1], self.node)
            if order == "drop":
                while self.files:
                    os.close(self.files.popitem()[1])
            if order == "write":
                try:
                    self._print("wrote", self._write(*given))
                except OSError as error:
                    self._print("failed", error)
        return bool(said)

    def _print(self, word: str, *more: Any) -> None:
        """Prints a line if the pipe takes it. (The batch program gives orders only while it reads.)"""
        try:
            os.write(1, os.fsencode(" ".join(map(str, (word, self.node, *more))) + "\n"))
        except OSError:
            pass

    def _write(self, folder: str, token: str, kept: str = "") -> int:
        """Writes the files of a save to the disk. Returns their number. kept: HELD for the files of other nodes'
        ranks, of which those are written that these nodes have not written."""
        target = os.path.join(self.folder, folder)
        start = os.path.join(kept, folder, "")
        mine = sorted(name[len(start) :] for name in self.files if name.startswith(start + token + "-"))
        if kept:
            mine = [name for name in mine if not os.path.exists(os.path.join(target, name))]
        if not mine:
            return 0
        os.makedirs(target, exist_ok=True)
        made = []  # type: List[str]
        try:
            for name in mine:
                _copy(self.files[start + name], os.path.join(target, name), made)
            sync_folder(target)
            sync_folder(self.folder)
        except BaseException:
            for path in made:  # on a full disk, the next attempt needs the room
                os.unlink(path)
            raise
        return len(mine)


def _copy(source: int, path: str, made: List[str]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    made.append(path)
    try:
        at, size = 0, os.fstat(source).st_size
        while at < size:
            data = memoryview(os.pread(source, min(PIECE, size - at), at))
            at += len(data)
            while data:
                data = data[os.write(file, data) :]
    except BaseException:
        os.close(file)
        raise
    sync(file)


def sync_folder(path: str) -> None:
    try:
        sync(os.open(path, os.O_RDONLY))
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot sync a folder
            raise


def sync(file: int) -> None:
    try:
        os.fsync(file)
    finally:
        os.close(file)


def main(words: List[str]) -> int:
    for number in IGNORED:  # Slurm sends them to all steps; the memory is needed to the end of the job
        signal.signal(number, signal.SIG_IGN)
    task = int(os.environ.get("SLURM_PROCID") or 0)
    lookout = Lookout(words[1], int(words[2]), words[3:], task) if len(words) > 1 and task else None
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    found = Keeper(words[0], node, os.environ[KEY].partition(" ")[0], lookout)
    signal.signal(signal.SIGTERM, found.note_term)
    os.set_blocking(1, False)
    found.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
