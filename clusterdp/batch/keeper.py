"""The keeper: a process on each node of a job that holds copies of checkpoints in memory.

    keeper.py FOLDER    FOLDER: the run's folder of checkpoints; runs until the end of its stdin

A file of a copy is a memfd: a rank makes it, writes it, and gives its descriptor to the keeper, which outlives the
rank. The kernel frees the memory when the last process that has the descriptor has ended, whatever ended it. The ranks
and the batch program connect to an abstract unix socket, whose name has a random key; processes of other users are
refused. Sources: unix(7), memfd_create(2).

    {"do": "list", "folder": F}                 -> {"sizes": {name: bytes}}
    {"do": "put", "name": N, "life": L} and a descriptor
                                                -> {} or {"error": "exists"}, "replaced" or "lost"
    {"do": "get", "name": N}                    -> {} and a descriptor, or {"error": "missing"}
    {"do": "remove", "name": N, "life": L}      -> {} or {"error": "replaced"}

The batch program writes `write FOLDER TOKEN` to the stdin of all keepers. Each writes its files of this save to the
disk, byte for byte, and prints `wrote NODE COUNT` or `failed NODE ERROR`.

Torch-free, for Python 3.6: the node's own Python runs the copy of this file that is in the run folder.
"""

import array
import errno
import json
import os
import selectors
import signal
import socket
import struct
import sys
from typing import Any, Dict, List, Optional, Tuple

KEY = "CLUSTERDP_MEMORY"  # the variable with the socket's random key, a blank, and the place of the checkpoints
LONGEST = 1 << 20  # bytes of a message
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
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


class Keeper:
    def __init__(self, folder: str, node: str, key: str) -> None:
        self.folder = folder
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
        while True:
            for key, _ in self.waiting.select():
                if key.fileobj is self.listening:
                    self._accept()
                elif key.fileobj == 0:
                    if not self._read_words():
                        return
                else:
                    self._answer(key.fileobj)

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
        do = request["do"]
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
        """Obeys the lines from stdin. Returns False at its end."""
        said = os.read(0, 65536)
        *lines, self._words = (self._words + said).split(b"\n")
        for line in lines:
            order, folder, token = (os.fsdecode(word) for word in line.split(b" "))
            if order == "write":
                try:
                    print("wrote", self.node, self._write(folder, token), flush=True)
                except OSError as error:
                    print("failed", self.node, error, flush=True)
        return bool(said)

    def _write(self, folder: str, token: str) -> int:
        """Writes the files of a save to the disk. Returns their number."""
        mine = sorted(name for name in self.files if name.startswith("{}/{}-".format(folder, token)))
        if not mine:
            return 0
        target = os.path.join(self.folder, folder)
        os.makedirs(target, exist_ok=True)
        made = []  # type: List[str]
        try:
            for name in mine:
                _copy(self.files[name], os.path.join(self.folder, name), made)
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
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    Keeper(words[0], node, os.environ[KEY].partition(" ")[0]).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
