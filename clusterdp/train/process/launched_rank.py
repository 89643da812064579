"""The process of one rank of launch(): gets the function from its launcher, runs it, and sends back how it ended."""

from __future__ import annotations

import atexit
import io
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TextIO

from clusterdp.errors import ClusterdpError, EntryError, RunError, TrainError
from clusterdp.train.ranks.control import leave_now
from clusterdp.train.ranks.stop import REASONS, STOPPED_EXIT, StopSignal


class Copied:
    """An output stream whose text also goes to a log, except a line of progress that changes on a terminal."""

    def __init__(self, stream: TextIO, log: TextIO):
        self._stream, self.log = stream, log

    def write(self, text: str) -> int:
        if not text.startswith("\r"):
            with suppress(OSError):  # on a full disk, the copy is lost
                self.log.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Launcher:
    """The connection to the process that has launched this rank."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self._link = Connection(int(os.environ.pop("CLUSTERDP_LAUNCHER")))
        os.set_inheritable(self._link.fileno(), False)
        try:
            self._request = self._link.recv_bytes()
        except (OSError, EOFError):  # it has died already
            os._exit(1)
        threading.Thread(target=self._die_with_it, daemon=True).start()

    def function(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Returns the function and its params. Unpickles them, as the launcher has asked."""
        try:
            sys.path[:], packed = pickle.loads(self._request)
            function, params = pickle.loads(packed)
        except Exception as error:  # user code runs here, and may raise anything
            said = f"launch: the function cannot be read in a rank: {type(error).__name__}: {error}. "
            self.fail(EntryError(f"{said}Import or create inside of it what a new process lacks."), error)
        # The classes of the user's main script or notebook can then be pickled in this process by their names, too.
        own = getattr(function, "__globals__", {})
        vars(sys.modules["__main__"]).update({name: own[name] for name in own if not name.startswith("__")})
        return function, params

    def send(self, kind: str, value: Any) -> None:
        self._link.send_bytes(pickle.dumps((kind, value)))

    def fail(self, error: BaseException, cause: BaseException | None = None) -> NoReturn:
        """Sends the error, and waits for the launcher to end this process: another rank's end would follow from it."""
        from clusterdp.train.process.attempt import follows

        shown = cause or error
        plain = isinstance(shown, ClusterdpError)  # a user's mistake, in a line
        text = "" if plain else "".join(traceback.format_exception(shown))
        said = f"{type(error).__name__}: {error}"
        # The launcher shows rank 0's output, and the error.
        with suppress(OSError, ValueError):  # a full disk is a common cause of an error
            print(text or said, file=sys.stderr if self.rank else getattr(sys.stderr, "log", io.StringIO()), flush=True)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        self.send("error", (pickled(error), said, text, follows(error)))
        while True:
            signal.pause()

    def _die_with_it(self) -> None:
        with suppress(OSError, EOFError):
            self._link.recv_bytes()  # the launcher sends nothing more: it has ended
        os.killpg(0, signal.SIGKILL)  # the DataLoader workers, too


def main() -> NoReturn:
    stop = StopSignal().install()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REASONS)  # the launcher has blocked them
    launcher = Launcher()
    if path := os.environ.pop("CLUSTERDP_OUTPUT_COPY", ""):
        log = open(path, "a", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115, it stays open to the end
        sys.stdout, sys.stderr = Copied(sys.stdout, log), Copied(sys.stderr, log)
    function, params = launcher.function()
    from clusterdp.train.process import attempt, entry
    from clusterdp.train.settings import WorkerSettings

    try:
        settings = WorkerSettings.own(params)
    except ClusterdpError as error:
        launcher.fail(error)
    ending = attempt.run_function(entry.with_job(function), settings, stop, lambda error, *_: launcher.fail(error))
    stop.ignore()
    if ending.outcome == "requeue" or ending.reason == "user":
        launcher.send("stopped", (ending.reason, ending.step))
        _leave(STOPPED_EXIT)
    if ending.outcome != "done":
        why = f"{ending.outcome} ({ending.reason})"
        launcher.fail(RunError(f"{settings.run_dir}: the run has ended as {why}. Use another run_dir."))
    result = b"" if launcher.rank or ending.result is None else pickled(ending.result)
    if result is None:
        launcher.fail(
            TrainError(
                f"launch: the return value, a {type(ending.result).__name__}, cannot be pickled. Return tensors, "
                "numbers or a state_dict()."
            )
        )
    launcher.send("result", result)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """Ends this process as Python does, but without the teardown of the interpreter, in which gloo's threads have
    aborted the process now and then (`terminate called without an active exception`)."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    atexit._run_exitfuncs()
    leave_now(code)


def pickled(value: Any) -> bytes | None:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception:  # user code runs here, and may raise anything
        return None
