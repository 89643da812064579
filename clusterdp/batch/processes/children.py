"""Children: the child processes of this program, and the signals that the program gets.

TERM comes at scancel, at a requeue, at the time limit, and at a preemption without a grace time. A TERM is counted, and
ends any wait; the program acts on it later, at a safe place. Slurm's commands run with TERM blocked, because the
requeue that they ask for sends TERM to all processes of the job.
"""

import os
import select
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import IO, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Union

try:
    import ctypes  # some builds of Python lack it

    _prctl: Any = ctypes.CDLL(None).prctl  # found here, because the children of _end_with_parent() load nothing
except (ImportError, OSError, AttributeError):
    _prctl = None

POLL_S = 5
BEFORE = b"CLUSTERDP_BEFORE"
PR_SET_PDEATHSIG = 1  # prctl(2)
STRAY = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Answer(NamedTuple):
    """The exit code of a command (127 if there is no such program) and the command's output on both streams."""

    code: int
    said: str


class Children:
    """environ: the environment of the batch script, byte for byte, which the ranks get. before: those of its variables
    that decide which programs run, and with which libraries, as they were before launch.setup (see environment.sh)."""

    before: Mapping[bytes, bytes] = {}

    def __init__(self, environ: Mapping[bytes, bytes]) -> None:
        self.environ = dict(environ)
        lines = self.environ.pop(BEFORE, b"").split(b"\n")
        before = dict(line.partition(b"=")[::2] for line in lines if not line.endswith(b"=") and b"=" in line)
        if shutil.which("scontrol", path=os.fsdecode(before.get(b"PATH", b""))):  # else setup brings Slurm
            self.before = before
        self.terms = 0  # number of TERMs so far
        self.suspended_s = 0.0  # seconds for which the job was suspended
        self.private: List[int] = []  # descriptors that processes of fork() and detach() must not keep open
        self._forks: List[int] = []
        self._handled = 0
        reading, writing = os.pipe()
        for end in (reading, writing):
            os.set_blocking(end, False)
        self._woken = reading
        signal.set_wakeup_fd(writing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGCHLD])
        signal.signal(signal.SIGTERM, self._count)
        # The signals get handlers instead of SIG_IGN, because a child would inherit SIG_IGN.
        for number in (*STRAY, signal.SIGCHLD):
            signal.signal(number, _nothing)

    def _count(self, number: int, frame: Any) -> None:
        self.terms += 1

    def has_news(self) -> bool:
        """Returns whether a TERM has come on which the program has not acted yet."""
        return self.terms > self._handled

    def take_news(self) -> bool:
        has_news, self._handled = self.has_news(), self.terms
        return has_news

    @property
    def own(self) -> Dict[bytes, bytes]:
        """The environment of Slurm's commands and of this program's other tools. What setup does to PATH or
        LD_LIBRARY_PATH is for the ranks: without Slurm's commands, or with those of another Slurm, no end of the job
        could be recorded."""
        if not self.before:
            return self.environ
        kept = {name: value for name, value in self.environ.items() if not name.startswith((b"LD_", b"PYTHON"))}
        return {**kept, **self.before}

    def with_srun(self, words: Sequence[str]) -> List[str]:
        """Returns the words of a command with the path of srun, because the ranks' environment may lack its folder."""
        srun = shutil.which("srun", path=os.fsdecode(self.own.get(b"PATH", b""))) or "srun"
        at = words.index("srun") if "srun" in words else len(words)
        return [*words[:at], *([srun] if at < len(words) else []), *words[at + 1 :]]

    def export(self, **values: Any) -> None:
        """Sets variables for all later children; None removes one."""
        for name, value in values.items():
            self.environ.pop(os.fsencode(name), None)
            if value is not None:
                self.environ[os.fsencode(name)] = os.fsencode(str(value))

    def start(
        self,
        words: Sequence[str],
        out: Union[int, IO[bytes], None] = None,
        err: Optional[int] = None,
        environ: Optional[Mapping[bytes, bytes]] = None,
        begin: Optional[Callable[[], Any]] = None,
    ) -> "subprocess.Popen[bytes]":
        """Starts a program as a child. Raises OSError if there is no such program. out: a file for both streams. err: a
        file descriptor for stderr alone. environ: an environment that replaces that of this program's tools. begin:
        called in the child before the program."""
        err, environ = subprocess.STDOUT if out is not None else err, self.own if environ is None else environ
        return subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environ,
            preexec_fn=begin,  # noqa: PLW1509 - this program has no threads
        )

    def run(
        self,
        words: Sequence[str],
        err: bool = True,
        environ: Optional[Mapping[bytes, bytes]] = None,
        limit_s: Optional[float] = None,
    ) -> Answer:
        """Runs a command to its end, whatever signals come. err: whether the command's stderr is part of the answer.
        environ: an environment that replaces that of this program's tools. limit_s: seconds after which the command is
        ended, with exit code 137."""
        with term_blocked():
            try:
                child = subprocess.Popen(
                    list(words),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT if err else subprocess.DEVNULL,
                    env=self.own if environ is None else environ,
                )
            except OSError as error:
                return Answer(127, "{}: {}".format(words[0], error.strerror) if err else "")
        try:
            said, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            said, _ = child.communicate()
        return Answer(exit_code(child), os.fsdecode(said).rstrip("\n"))

    def sleep(self, seconds: float, or_if: Callable[[], bool] = lambda: False) -> bool:
        """Waits until the time is over, a TERM comes, or or_if() is true, which is called every few seconds. Returns
        whether the time is over."""
        if seconds <= 0:
            return True
        before, suspended_s = self.terms, self.suspended_s
        sleeper = self.timer(seconds)
        if sleeper is None:
            return True
        self.wait([sleeper], lambda: self.terms > before or or_if())
        if end(sleeper):
            return False
        return self.sleep(min(self.suspended_s - suspended_s, seconds), or_if)

    def timer(self, seconds: float) -> "Optional[subprocess.Popen[bytes]]":
        """Returns a process that ends after `seconds` or with this one, and that no TERM ends; None if the program
        `sleep` is missing."""
        with term_blocked():
            try:
                words, parent = ["sleep", "{:d}".format(int(seconds))], os.getpid()
                return self.start(words, begin=lambda: _end_with_parent(parent))
            except OSError:
                return None

    def wait(
        self,
        children: "Sequence[subprocess.Popen[bytes]]",
        or_if: Callable[[], bool] = lambda: False,
        reading: Callable[[], Sequence[int]] = tuple,
        left_s: Callable[[], float] = lambda: POLL_S,
    ) -> None:
        """Waits until a child has ended or or_if() is true, which is called after each signal, every few seconds, when
        one of the file descriptors has something to read, and after left_s()."""
        looked = time.monotonic()
        while not or_if() and all(child.poll() is None for child in children):
            select.select([self._woken, *reading()], [], [], min(left_s(), POLL_S))
            before, looked = looked, time.monotonic()
            if looked - before > 2 * POLL_S:
                self.suspended_s += looked - before - POLL_S
            try:
                while os.read(self._woken, 512):
                    pass
            except BlockingIOError:
                pass

    def fork(self, work: Callable[[], Any]) -> None:
        """Does the work in a new process that no TERM ends, because each requeue sends TERM."""
        child = os.fork()
        if child:
            self._forks.append(child)
            return
        try:
            self._close_private()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            work()
        finally:
            os._exit(0)

    def _close_private(self) -> None:
        for descriptor in self.private:
            os.close(descriptor)

    def detach(self, work: Callable[[], Any]) -> None:
        """Does the work in a new process that may outlive this one, as far as Slurm permits."""
        if os.fork():
            return
        try:
            self._close_private()
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(nowhere, stream)
            work()
        finally:
            os._exit(0)

    def wait_for_forks(self) -> None:
        """Waits for the processes of fork(), because Slurm kills them when this process has ended."""
        for child in self._forks:
            os.waitpid(child, 0)


@contextmanager
def term_blocked() -> Iterator[None]:
    """Blocks TERM in the with block: children that are started in it never get a TERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def end(child: "subprocess.Popen[bytes]") -> bool:
    """Ends a child if it still runs. Returns whether the child was still running."""
    if child.poll() is not None:
        return False
    child.kill()
    child.wait()
    return True


def exit_code(child: "subprocess.Popen[bytes]") -> int:
    """Returns the exit code as a shell does: 128 plus the number of the signal that ended the process."""
    code = child.returncode
    return 128 - code if code < 0 else code


def _end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends: after a KILL of the batch program, a node whose Slurm
    follows processes by their parents (proctrack/linuxproc) would keep it."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it has ended before
            os._exit(0)


def _nothing(number: int, frame: Any) -> None:
    pass
