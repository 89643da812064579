"""A task of the ranks' step that stands for its rank, which the fork server of the node forks.

interface.bash starts it with the program of the rank as its arguments. The task that binds the server's address first
starts this program as the server (train/process/fork_server.py). Each task asks the server for its rank, hands signals
on to it, and ends as the rank has ended. If the server refuses, because anything is in doubt, the task becomes the rank
itself, and runs the program. The task imports little: eight of them read a shared file system on each node.
"""

import array
import os
import select
import signal
import socket
import struct
import sys

TYPE_CHECKING = False  # typing would read as many files as all else here
if TYPE_CHECKING:
    from typing import Iterable, List, NoReturn, Sequence

WANTED = "CLUSTERDP_FORK_SERVER"  # a name for the servers of the attempt, if the ranks come from them
SERVES = "CLUSTERDP_FORK_SERVER_OF"  # tells a program to be the server: the number of its socket, and the program
RESERVE = "CLUSTERDP_RESERVE"  # tells a task to wait for the next attempt (reserve.py)
ROOM = "CLUSTERDP_ROOM"  # makes room for the variables of a rank: see show()
ROOM_BYTES = 4096
BETWEEN = "\x1f"  # unit separator of ASCII
# Variables that libraries read when they are loaded
READ_AT_IMPORT = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "LD_")
BIND = ("OMP_PROC_BIND=", "OMP_PLACES=", "GOMP_CPU_AFFINITY=", "KMP_AFFINITY=")  # threads to CPUs, at the same time
BIND_MEMORY = ("local", "rank", "map_mem", "mask_mem")  # words of --mem-bind: a fork has the binding of the server
OF_RANK = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
SIGNALS = [int(each) for each in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)]
SIGNALS.append(int(signal.SIGTERM))
REFUSED, ACCEPTED = b"-", b"+"
STATUS = struct.Struct("=i")  # an exit code, or the negative number of a signal
LENGTH = struct.Struct("=I")


def main(words: "List[str]") -> None:
    """Stands for the rank of this task. words: the rank's program."""
    if any(kind in os.environ.get("SLURM_MEM_BIND_TYPE", "") for kind in BIND_MEMORY):
        _run(words)
    files = open_files()
    try:
        show(variables(OF_RANK))
        rename("reserve" if RESERVE in os.environ else "task")
        line = _connected(words)
    except OSError as error:
        _run(words, str(error))
    if RESERVE in os.environ:
        _wait_in_reserve(line)
    _stand_for_rank(line, files, words)


def _run(words: "List[str]", why: str = "", seen: "Iterable[int]" = ()) -> "NoReturn":
    """Becomes the rank itself. seen: signals, which the program gets once it handles them (see unblock())."""
    if why:
        os.write(2, "clusterdp: this rank does not come from a fork server: {}\n".format(why).encode())
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in seen:
        os.kill(os.getpid(), number)
    os.environ.pop(WANTED, None)
    os.execvp(words[0], words)


def unblock() -> None:
    """Lets the signals come that a task has held back. Called when this process handles them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _connected(words: "List[str]") -> socket.socket:
    """Returns the connection to the server, which is started if there is none. Raises OSError."""
    line = socket.socket(socket.AF_UNIX)
    address = _address()
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            listening.bind(address)
        except OSError:  # another task has started the server
            _connect(line, address)
            return line
        listening.listen(socket.SOMAXCONN)
        line.connect(address)
        if not os.fork():
            _become_server(listening, words)
    return line


def _connect(line: socket.socket, address: str) -> None:
    for pause_ms in (1, 10, 100, 1000, 0):
        try:
            line.connect(address)
            break
        except ConnectionRefusedError:  # it is bound, and does not listen yet
            if not pause_ms:
                raise
            select.poll().poll(pause_ms)
    if not is_of_this_user(line):
        raise PermissionError("the server's address belongs to another user's process")


def _address() -> str:
    """Returns an address that those tasks of a step have in common which see the same files and processes."""
    spaces = [os.readlink("/proc/self/ns/" + kind).strip("pidmnt:[]") for kind in ("mnt", "pid")]
    names = [os.environ.get(name, "") for name in (WANTED, "SLURM_STEP_ID", "SLURMD_NODENAME")]
    return "\0clusterdp-" + "-".join([*names, *spaces])


def _become_server(listening: socket.socket, words: "List[str]") -> "NoReturn":
    """Starts the rank's program as the server."""
    try:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        os.setsid()  # a signal to the group of a task is not for the other ranks
        os.set_inheritable(listening.fileno(), True)
        for name in OF_RANK:
            os.environ.pop(name, None)
        os.environ.update({SERVES: BETWEEN.join([str(listening.fileno()), *words]), ROOM: "-" * ROOM_BYTES})
        os.execvp(words[0], words)
    finally:
        os._exit(1)


def is_of_this_user(line: socket.socket) -> bool:
    """Returns whether a process of this user is at the other end."""
    _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user == os.getuid())


def _wait_in_reserve(line: socket.socket) -> None:
    """Waits until this task is one of the next attempt, and takes its variables, which come through stdin. Exits if it
    does not become one, or if the server has ended."""
    poll, said = select.poll(), b""
    for each in (0, line.fileno()):
        poll.register(each, select.POLLIN)
    while not said.endswith(b"\n"):
        if line.fileno() in [each for each, _ in poll.poll()]:
            os._exit(1)  # srun reports it, and the other tasks are not used
        more = os.read(0, 65536)
        if not more:
            os._exit(0)
        said += more
    take(said)
    rename("task")


def _stand_for_rank(line: socket.socket, files: "List[int]", words: "List[str]") -> "NoReturn":
    """Asks for the rank, and ends as it ends. files: the descriptors that the rank gets."""
    seen = set()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, lambda number, frame: seen.add(number))
    said = b""
    try:
        _ask(line, files, handled, words)
        line.setblocking(False)
        signal.set_wakeup_fd(line.fileno())  # Python writes the number of each signal there, and so to the server
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        poll = select.poll()
        poll.register(line, select.POLLIN)
        while said != REFUSED and len(said) <= STATUS.size:
            poll.poll()
            more = line.recv(1 + STATUS.size - len(said))
            if not more:
                break
            said += more
    except OSError:  # the server has ended
        pass
    signal.set_wakeup_fd(-1)
    if not said or said == REFUSED:
        _run(words, seen=seen)
    if len(said) <= STATUS.size:
        os.write(2, b"clusterdp: the fork server of this node has been killed, and with it this rank.\n")
        said = ACCEPTED + STATUS.pack(-int(signal.SIGKILL))
    _end_with(STATUS.unpack(said[1:])[0])


def _ask(line: socket.socket, files: "List[int]", handled: "List[int]", words: "List[str]") -> None:
    """Sends the request. Raises OSError."""
    umask = os.umask(0)
    os.umask(umask)
    numbers = [os.sched_getaffinity(0), [umask], files, handled]
    request = [program(words), *(",".join(map(str, each)) for each in numbers), *variables()]
    data = "\0".join(request).encode(errors="surrogateescape")
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
    line.sendmsg([LENGTH.pack(len(data))], [rights])
    line.sendall(data)


def _end_with(status: int) -> "NoReturn":
    if status < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core is the rank's
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


# -- what tasks and their server have in common --


def take(said: bytes) -> None:
    """Takes the variables of an attempt, which the batch program has written to the stdin of a process in reserve."""
    import json

    for name, value in dict(json.loads(said.decode("ascii")), **{RESERVE: None}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)


def program(words: "List[str]") -> str:
    """Returns what a task must have in common with the server: program, folder, number of CPUs, and the variables that
    libraries read when they are loaded. If one of these binds threads to CPUs, also the CPUs."""
    cpus, read = sorted(os.sched_getaffinity(0)), [w for w in variables() if w.startswith((*READ_AT_IMPORT, "PYTHON"))]
    binds = any(word.startswith(BIND) for word in read)
    return repr((words, os.getcwd(), cpus if binds else len(cpus), sorted(read)))


def variables(without: "Sequence[str]" = ()) -> "List[str]":
    return ["{}={}".format(name, value) for name, value in os.environ.items() if name not in without]


def open_files() -> "List[int]":
    """Returns the descriptors that this process has, in order."""
    found = []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            os.fstat(number)
            found.append(number)
        except OSError:  # that of the listing
            pass
    return found


def rename(name: str) -> str:
    """Sets the name of this process, as in `ps -o comm`. Returns the one before."""
    with open("/proc/self/comm", "r+b", buffering=0) as file:
        before = file.read().strip()
        file.write(name.encode())
    return before.decode()


def show(words: "List[str]") -> None:
    """Makes /proc/PID/environ of this process show these variables, as if it had been started with them. They take the
    room of those that it was started with. Raises OSError, also if there is too little room."""
    for name, value in list(os.environ.items()):
        os.environ[name] = value  # C's environ must not point to that room
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    said = "".join(word + "\0" for word in words).encode(errors="surrogateescape")
    if len(said) > end - begin:
        raise OSError("its variables take too much room")
    memory = os.open("/proc/self/mem", os.O_WRONLY)
    try:
        os.pwrite(memory, said.ljust(end - begin, b"\0"), begin)
    finally:
        os.close(memory)


if __name__ == "__main__":
    main(sys.argv[1:])
