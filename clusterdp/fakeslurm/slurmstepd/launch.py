"""Starts one task: forks, makes a session, sets streams and environment, executes the program."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from ..core import file_traps, node_folders, processes
from ..core.step_plan import StepPlan, TaskPlan
from .messages import name


def start(plan: StepPlan, task: TaskPlan, stdin: int, stdout: int, stderr: int) -> int:
    """Starts the task in its own session. Returns the task's pid."""
    component = plan.component_of(task)
    argv = task.argv or component.argv
    if plan.node_local or plan.file_traps:
        import ctypes  # noqa: F401 - loaded once, and not by each task
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = errno.ENOENT
    try:
        os.setsid()
        processes.die_with_parent(parent)
        environ = {**component.environ, **task.environ, "SLURM_TASK_PID": str(os.getpid())}
        for source, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, number)
        _default_signals()
        if plan.node_local:
            node_folders.enter(Path(plan.cluster), task.node, plan.shared, environ.get("TMPDIR", ""))
        os.umask(plan.umask)
        if environ.get("SLURM_LOCALID", "0") == "0":
            _check_tmpdir(environ, name(plan))
        try:
            os.chdir(component.folder)
        except OSError:
            os.write(2, f"{name(plan)} error: couldn't chdir to `{component.folder}': going to /tmp instead\n".encode())
            os.chdir("/tmp")
        if plan.file_traps:
            file_traps.install(plan.file_traps, task.rank, task.node)
        code = _exec(argv, environ, name(plan))
    except BaseException as error:  # the forked copy of slurmstepd must never continue below
        os.write(2, f"{name(plan)} error: {error}\n".encode())
    finally:
        os._exit(code)


def _check_tmpdir(environ: dict[str, str], me: str) -> None:
    """Makes sure that TMPDIR names a folder. Slurm checks TMPDIR only for the first task of a node."""
    folder = environ.setdefault("TMPDIR", "/tmp")
    trouble = ""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            trouble = f"TMPDIR [{folder}] is not a directory"
        elif not os.access(folder, os.X_OK | os.W_OK):
            trouble = f"TMPDIR [{folder}] is not writeable"
    except OSError as error:
        trouble = f"Unable to create TMPDIR [{folder}]: {os.strerror(error.errno or 0)}"
    if trouble:
        text = f"{me} error: {trouble}\n{me} error: Setting TMPDIR to /tmp\n"
        os.write(2, text.encode("utf-8", "surrogateescape"))
        environ["TMPDIR"] = "/tmp"


def _exec(argv: tuple[str, ...], environ: dict[str, str], me: str) -> int:
    """Executes the program, or returns the number of the error. The program's argv[0] is the path where it was found,
    like /usr/bin/bash for `bash`."""
    program = argv[0]
    if program.startswith("."):
        program = os.path.join(os.getcwd(), program)
    elif not program.startswith("/"):
        program = _search(program, environ.get("PATH", "")) or program  # else, in the working directory
    try:
        os.execve(program, (program, *argv[1:]), environ)
    except OSError as error:
        what = f"{program}: {os.strerror(error.errno or 0)}"
        if error.errno == errno.ENOENT and os.path.exists(program):
            what = f"bad interpreter({_interpreter(program)}): {os.strerror(errno.ENOENT)}"
        os.write(2, f"{me} error: execve(): {what}\n".encode("utf-8", "surrogateescape"))
        return error.errno or errno.ENOENT


def _search(program: str, path: str) -> str:
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", program)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return ""


def _interpreter(script: str) -> str:
    with open(script, "rb") as file:
        line = file.readline().decode("utf-8", "surrogateescape")
    words = line[2:].split(None, 1)
    return words[0] if line.startswith("#!") and words else "?"


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            pass  # KILL, STOP and signals that libc reserves have no handler
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
