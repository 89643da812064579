"""launch: runs a function in several ranks on this machine, from a script, a notebook or a prompt.

    history = clusterdp.launch(main, ranks=2, run_dir="runs/a", lr=0.1)     # main(job, lr=0.1) in each rank

Each rank is a fresh process (see launched_rank), so that a notebook that has used CUDA or threads can launch ranks. A
pair of sockets connects it to this process: the function and its arguments go through it, results and errors come back.
A rank whose launcher has died reads the end of its socket, and kills itself and its DataLoader workers.
"""

from __future__ import annotations

import codecs
import inspect
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import clusterdp
from clusterdp.errors import ClusterdpError, ConfigError, EntryError, TrainError
from clusterdp.rundir import RunDir
from clusterdp.rundir.names import new_local_attempt
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train.argument_names import checked
from clusterdp.train.output.say import say
from clusterdp.train.process import entry
from clusterdp.train.ranks.rendezvous import PORT_TAKEN_EXIT, PortTaken
from clusterdp.train.ranks.stop import STOPPED_EXIT

FOLLOWS_S = 0.5  # after a lost connection, another rank's own error or death is the cause, if it comes this soon
LOOK_EVERY_S = 0.1
PORTS = 3  # ports to try: another process may take a free one before rank 0 does
TAIL_BYTES = 2000
STOPS = (signal.SIGTERM, signal.SIGUSR2)
# Variables of a launcher around this process, whose job, run folder and rank are not those of these ranks.
FOREIGN = ("CLUSTERDP_", "TORCHELASTIC_", "GROUP_", "ROLE_")


class RankError(Exception):
    """The cause of an error that launch() raises: the traceback in the rank."""


@dataclass
class Launched:
    """A rank's process, and the messages that it has sent."""

    rank: int
    process: subprocess.Popen[bytes]
    link: Connection | None
    log: Path | None  # None for rank 0, whose output is shown here
    result: bytes | None = None  # of the return value on rank 0, empty on the others
    error: tuple[bytes | None, str, str, bool] | None = None  # pickled, in a line, traceback, whether it follows
    stopped: tuple[str, int] | None = None  # reason, step
    has_ended: bool = False
    failed_at: float | None = None
    output: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # pipes, their decoders and where to relay them

    @property
    def follows(self) -> bool:
        """Whether another rank's failure caused this rank's error."""
        return self.error is not None and self.error[3]


@checked
def launch(
    function: Callable[..., Any] | type, /, ranks: int = 2, *, run_dir: str | Path | None = None, **params: Any
) -> Any:
    """Calls `function(job, **params)` in `ranks` processes on this machine, and returns rank 0's return value.

    function: also a lambda, or a function of a notebook or of the main script. Its first parameter is the JobHandle; a
    function without positional parameters gets none, and own_job() returns the handle. run_dir: the folder of the run;
    calling launch() with the same folder continues the run. Without a folder, nothing is saved.

    Rank 0's output is printed here. What the ranks print goes to the run folder's logs, too; without a folder, that of
    the other ranks is deleted. The first error of a rank is raised here, and ends all ranks. An interrupt ends them,
    too; if the run has a folder, at an agreed step, after a save. A run that stops by itself, or at SIGTERM, raises
    SystemExit(75): call launch() again to continue.
    """
    _check(function, ranks, params)
    request = _packed(function, params)
    run = None if run_dir is None else Path(run_dir).absolute()
    if run is not None:
        RunDir(run).stop.unlink(missing_ok=True)  # the mark of `clusterdp stop`: this call continues the run
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for _ in range(PORTS - 1):
        with suppress(PortTaken):
            return _launched(ranks, run, request)
    return _launched(ranks, run, request)


def _launched(ranks: int, run: Path | None, request: bytes) -> Any:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clusterdp-launch-")))
        caught = stack.enter_context(_signals_caught())
        started: list[Launched] = []
        stack.callback(_end, started)
        for rank, environ in enumerate(_environs(ranks, run)):
            started.append(_start(rank, environ, folder, run))
        for each in started:
            _send(each, request)
        return _answer(started, _serve(started, caught, keeps=run is not None))


def _check(function: Callable[..., Any], ranks: int, params: dict[str, Any]) -> None:
    if ranks < 1:
        raise ConfigError(f"launch: ranks={ranks!r} is not a number of processes. Write e.g. ranks=2.")
    here = SlurmEnv.read()
    if here.world_size > 1:
        raise ConfigError(
            f"launch: this process already is rank {here.rank} of {here.world_size}. Call the function itself, with "
            "own_job()."
        )
    with suppress(ValueError):  # some builtins have no signature
        try:
            inspect.signature(entry.with_job(function)).bind(None, **params)
        except TypeError as error:
            name = getattr(function, "__qualname__", repr(function))
            raise EntryError(f"launch: {name}() cannot be called: {error}. Pass its parameters by name.") from None


def _packed(function: Callable[..., Any], params: dict[str, Any]) -> bytes:
    import cloudpickle

    try:
        # The rank finds the user's modules on the first, before it reads the second.
        return pickle.dumps((sys.path, cloudpickle.dumps((function, params))))
    except Exception as error:  # user code runs here, and may raise anything
        name = getattr(function, "__name__", repr(function))
        raise EntryError(
            f"launch: {name} cannot be sent to the ranks: {type(error).__name__}: {error}. Create such objects inside "
            "the function."
        ) from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environs(ranks: int, run: Path | None) -> Iterator[dict[str, str]]:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    kept = {"CLUSTERDP_JOB_END_TIME"}
    environ = {name: value for name, value in os.environ.items() if name in kept or not name.startswith(FOREIGN)}
    environ |= {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, cpus // ranks)),
        "PYTHONUNBUFFERED": "1",  # output is live, and that of a failed rank is complete
    }
    if run is not None:
        environ |= {"CLUSTERDP_RUN_DIR": str(run), "CLUSTERDP_ATTEMPT": new_local_attempt()}
    for rank in range(ranks):
        yield {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}


def _start(rank: int, environ: dict[str, str], folder: Path, run: Path | None) -> Launched:
    log = folder / f"{rank}.out" if rank else None
    if run is not None:
        kept = RunDir(run).attempt(environ["CLUSTERDP_ATTEMPT"]).rank_log(rank)
        kept.parent.mkdir(parents=True, exist_ok=True)
        if rank:
            log = kept
        else:
            environ = {**environ, "CLUSTERDP_OUTPUT_COPY": str(kept)}
    # A notebook's sys.stdout is not a file. On a terminal, rank 0 gets the terminal itself, so that progress is live.
    shown = {1: sys.stdout, 2: sys.stderr}
    relayed = rank == 0 and (sys.stdout is not sys.__stdout__ or sys.stderr is not sys.__stderr__)
    # With -c, the rank's module __main__ is empty, for the classes of the user's own.
    root = str(Path(clusterdp.__file__).parents[1])
    program = (
        f"import sys; sys.path[0] = {root!r}; from clusterdp.train.process import launched_rank as rank; rank.main()"
    )
    ours, theirs = socket.socketpair()
    ours.setblocking(True)  # whatever socket.setdefaulttimeout() has set
    theirs.setblocking(True)
    with ExitStack() as stack:
        stack.enter_context(theirs)
        pipe: Any = stack.enter_context(log.open("ab")) if log else subprocess.PIPE if relayed else None
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until the rank has its handlers
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**environ, "CLUSTERDP_LAUNCHER": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,  # a terminal's Ctrl-C reaches this process only
        )
    launched = Launched(rank, process, Connection(ours.detach()), log)
    if relayed:
        for number, file in ((1, process.stdout), (2, process.stderr)):
            assert file is not None
            os.set_blocking(file.fileno(), False)
            launched.output[file.fileno()] = codecs.getincrementaldecoder("utf-8")("replace"), shown[number]
    return launched


@contextmanager
def _signals_caught() -> Iterator[list[int]]:
    """Collects signals, because a KeyboardInterrupt in the middle of a message would lose the message."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    numbers = (signal.SIGINT, *STOPS)
    before = {number: signal.signal(number, lambda number, _: caught.append(number)) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _send(each: Launched, request: bytes) -> None:
    assert each.link is not None
    with suppress(OSError):  # it has died already
        each.link.send_bytes(request)


def _serve(started: list[Launched], caught: list[int], *, keeps: bool) -> bool:
    """Reads the ranks' messages until all have ended, or one has failed. Returns whether an interrupt came, at which
    the ranks stop after a save, if the run keeps checkpoints."""
    interrupted = False
    while not _is_over(started):
        _serve_once(started)
        while caught:
            number = caught.pop(0)
            if number == signal.SIGINT:
                if interrupted or not keeps:
                    raise KeyboardInterrupt
                interrupted, number = True, signal.SIGTERM
                say("clusterdp: interrupted: the ranks save and stop. Interrupt again to end them at once.", error=True)
            for each in started:
                if each.process.poll() is None:
                    each.process.send_signal(number)
    return interrupted


def _serve_once(started: list[Launched]) -> None:
    links = {each.link: each for each in started if each.link is not None}
    for ready in wait([*links, *started[0].output], LOOK_EVERY_S):
        if isinstance(ready, Connection):
            _read(links[ready])
        elif isinstance(ready, int):
            _relay(started[0], ready)
    for each in started:
        if not each.has_ended and each.process.poll() is not None:
            while each.link is not None and each.link.poll():
                _read(each)
            each.has_ended = True
            if each.result is None and each.stopped is None:
                each.failed_at = each.failed_at or time.monotonic()


def _read(each: Launched) -> None:
    assert each.link is not None
    try:
        kind, value = pickle.loads(each.link.recv_bytes())
    except (OSError, EOFError):
        each.link.close()
        each.link = None
        return
    setattr(each, kind, value)
    if kind == "error":
        each.failed_at = time.monotonic()


def _relay(first: Launched, pipe: int) -> None:
    try:
        data = os.read(pipe, 1 << 16)
    except BlockingIOError:
        return
    decoder, stream = first.output[pipe]
    if not data:
        del first.output[pipe]
    stream.write(decoder.decode(data, final=not data))
    stream.flush()


def _is_over(started: list[Launched]) -> bool:
    failed = [(each, time.monotonic() - each.failed_at) for each in started if each.failed_at is not None]
    if any(not each.follows or seconds > FOLLOWS_S for each, seconds in failed):
        return True
    return all(each.has_ended for each in started)


def _answer(started: list[Launched], interrupted: bool) -> Any:
    first = started[0]
    for pipe in [*first.output]:  # a process that a rank has left behind may hold a pipe open: no wait for its end
        _relay(first, pipe)
    failed = [(each.follows, each.failed_at, each) for each in started if each.failed_at is not None]
    if failed and not (interrupted and all(each.error is None for _, _, each in failed)):
        _raise(min(failed, key=lambda each: each[:2])[2])
    at = "" if first.stopped is None else f"stopped at step {first.stopped[1]}"
    if interrupted:
        raise KeyboardInterrupt(at and f"{at}; call launch() again to go on")
    if first.stopped is not None:
        say(f"clusterdp: {at} ({first.stopped[0]}); call launch() again to go on.", error=True)
        raise SystemExit(STOPPED_EXIT)
    return _unpickled(first.result) if first.result else None


def _unpickled(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # the classes of the user run here
        raise TrainError(
            f"launch: the return value of rank 0 cannot be read here: {type(error).__name__}: {error}. Return tensors, "
            "numbers or a state_dict()."
        ) from None


def _raise(each: Launched) -> NoReturn:
    """Raises the error of a rank. The traceback in the rank is the error's cause."""
    if each.error is None:
        code = each.process.returncode
        if code == PORT_TAKEN_EXIT:
            raise PortTaken(f"launch: {PORTS} ports were taken by other processes before rank 0 could. Launch again.")
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        said = f" Its last lines: {_tail(each.log)}" if each.log is not None else ""
        raise TrainError(f"launch: rank {each.rank} {how}.{said}")
    pickled, line, traceback, _ = each.error
    error: Any = None
    if pickled is not None:
        with suppress(Exception):
            error = pickle.loads(pickled)
    if not isinstance(error, BaseException):
        error = TrainError(f"launch: rank {each.rank}: {line}")
    if isinstance(error, ClusterdpError) and not traceback:
        raise error
    raise error from RankError(f"in rank {each.rank}:\n\n{traceback}")


def _tail(log: Path) -> str:
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read().decode(errors="replace").strip() or "none."
    return "none."


def _end(started: list[Launched]) -> None:
    """Ends all processes of the ranks, and those that the ranks have left behind."""
    for each in started:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(each.process.pid, signal.SIGKILL)
    for each in started:
        each.process.wait()
        if each.link is not None:
            each.link.close()
        for pipe in (each.process.stdout, each.process.stderr):
            if pipe is not None:
                pipe.close()
