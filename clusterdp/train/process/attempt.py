"""Runs one attempt in one rank.

    environment -> Rendezvous -> Group -> claim -> function(job, **params) -> Ending, agreed by all ranks -> outcome

How it ends             outcome                        exit
    function returned   done finished|profile STEP     0
    agreed stop, saved  requeue term|time STEP         0
    the same, requested stop user STEP                 0    by `clusterdp stop` or job.stop()
    claim lost          overtaken claim STEP           0    instead of any other outcome
    run cancelled       stop cancelled 0               0
    bad entry, params   stop entry 0                   2
    Config-, StateError stop entry 0                   2, 5 on rank 0; if the run has saved, only what no node can cause
    a bug in the code   stop entry 0                   1    on rank 0, in a run that has not saved: see BUGS
    port taken          none                           98
    our other errors    none                           the error's own code
    any other exception none                           1

Torch is imported late, so that a wrong entry is found without the import of torch.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from clusterdp import __version__
from clusterdp.batch.decide.evidence import COLLECTIVE_TIMEOUT
from clusterdp.checkpoint.errors import ClaimLost, ReplicasDiffer
from clusterdp.errors import ClusterdpError, ConfigError, EntryError, RunError, StateError
from clusterdp.rundir import RunDir, write_durably
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train.hang import page
from clusterdp.train.hang.note import leave_hung
from clusterdp.train.output.best_effort import LONGEST_WAIT_S, retry_while_full
from clusterdp.train.output.say import say
from clusterdp.train.process import entry, fork_server, reserve
from clusterdp.train.ranks.rendezvous import Rendezvous, listen_early
from clusterdp.train.ranks.stop import Stopped, StopSignal
from clusterdp.train.settings import WorkerSettings

if TYPE_CHECKING:
    from clusterdp.train.job import JobHandle
    from clusterdp.train.ranks.claim import Claim
    from clusterdp.train.ranks.group import Group

ENTRY_EXIT = 2
# Errors that would occur again on another node: a run without a checkpoint would fail at the same line, after another
# wait in the queue. ImportError does not belong here: a node may lack a library that the others have.
BUGS = (AttributeError, ModuleNotFoundError, NameError, SyntaxError, TypeError)
# The errors that torch raises on a rank whose peer is gone. A killed rank leaves no note, and the surviving ranks must
# not be blamed for its end: in one case the healthy node was avoided, and the bad node was kept.
LOST_CONNECTION = re.compile(
    r"gloo/transport|[Cc]onnection (?:closed|reset|refused|was likely closed)|Broken pipe|Socket (?:closed|Timeout)|"
    r"remote process exited or there was a network error|ncclRemoteError|NCCL communicator was aborted|"
    r"TCPStore.*failed|recvValue failed"
)
WAIT_FOR_OUTCOME_S = 10.0
WAIT_FOR_RANK_0_S = 3.0  # seconds to wait in the middle of a run, where rank 0 may have no error


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt. If it is `overtaken`, another attempt owns the run folder and decides about the run."""

    outcome: str  # one of done, requeue, stop and overtaken
    reason: str  # one of finished, profile, term, time, user, cancelled, entry and claim
    step: int = 0
    result: Any = None  # the return value of the user's function
    exit_code: int = 0


def run_folder(run_dir: Path, stop: StopSignal) -> Outcome:
    """Runs an attempt of a run folder; environment variables name the attempt. After a crash, run_folder() does not
    return."""
    try:
        with _without_garbage_collection():
            settings = WorkerSettings.of_worker(run_dir)
            listen_early()
            folder = RunDir(run_dir).attempt(settings.attempt).path if settings.attempt else None
            with fork_server.noting_variables(folder):
                function = entry.load(settings.entry)
            entry.check_params(function, settings.params)
            from clusterdp.checkpoint.state import generators
            from clusterdp.train import job  # noqa: F401  # imports torch, if the entry has not

            generators.note_before_freeze()  # the entry's module may have models
    except (EntryError, ConfigError) as error:
        say(f"clusterdp: {error}", error=True)
        _note_mistake(error, run_dir)
        return _refuse(run_dir)
    return run_function(function, settings, stop)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Turns the garbage collector off during imports, and exempts the imported objects for good. Searching these
    objects takes a tenth of the time of torch's import, and the same time again at each later collection."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def _refuse(run_dir: Path, group: Group | None = None) -> Outcome:
    """Ends the run because of a mistake that another attempt would repeat. Each rank finds the mistake itself. Rank 0
    writes the outcome."""
    ending = Outcome("stop", "entry", exit_code=ENTRY_EXIT)
    slurm = SlurmEnv.read()
    attempt = WorkerSettings.bare({}).attempt
    if attempt is None:
        return ending
    outcome = RunDir(run_dir).attempt(attempt).outcome
    if slurm.rank == 0:
        try:
            write_outcome(outcome, ending)
        except RunError as error:  # the mistake itself is already printed, and the exit code shows it
            say(f"clusterdp: {error}", error=True)
        return ending
    # srun kills the other ranks when one ends with an error: rank 0 may be slower, and needs time to write.
    deadline = time.monotonic() + (WAIT_FOR_RANK_0_S if group else WAIT_FOR_OUTCOME_S)
    while not outcome.exists() and time.monotonic() < deadline:
        if group and group.control and group.control.failure:  # another rank has waited long enough, and is exiting
            break
        time.sleep(0.05 + slurm.world_size / 5000)  # longer with more ranks, because all check the same file
    return ending


def refuse(error: ClusterdpError, run_dir: Path | None, group: Group | None = None) -> int:
    """Reports the error. A mistake that another attempt would repeat ends the run. Returns the exit code."""
    say(f"clusterdp: {error}", error=True)
    if group is None and run_dir is not None:
        _note_mistake(error, run_dir)
    final = isinstance(error, (EntryError, StateError)) and not isinstance(error, ReplicasDiffer)
    if run_dir and (final or (isinstance(error, (ConfigError, ReplicasDiffer)) and not _has_saved(run_dir))):
        _refuse(run_dir, group)
    return error.exit_code


def run_function(
    function: Callable[..., Any],
    settings: WorkerSettings,
    stop: StopSignal,
    failed: Callable[..., NoReturn] | None = None,
) -> Outcome:
    """Runs the user's function. Collective from the rendezvous to the end. After a crash, run_function() does not
    return. failed: called with the arguments of fail(), instead of it, by launch(), which has no batch program to act
    on a hang, either."""
    group, attempt = start_group(settings, stop, watched=failed is None)
    if settings.entry:
        say(first_line(group))
    try:
        ending = _run_in_group(function, settings, stop, group, attempt)
    except BaseException as error:
        (failed or fail)(error, group, settings.run_dir)
    group.close()
    return ending


def first_line(group: Group) -> str:
    """Returns the first line of a rank's log: the rank, its node and device, and the versions."""
    import torch

    place, device = group.rendezvous, str(group.device)
    if group.device.type == "cuda":
        device += f" ({torch.cuda.get_device_name(group.device)})"
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    versions = f"clusterdp {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return f"clusterdp: rank {place.rank} of {place.world_size} on {node}, {device}; {versions}"


def start_group(settings: WorkerSettings, stop: StopSignal, *, watched: bool = True) -> tuple[Group, str]:
    """Meets the other ranks, seeds, and agrees on the attempt's name. Collective. If the ranks cannot meet, exits.
    watched: whether the nodes' agents watch the ranks for a hang. They do so only in a job: a program that is run by
    hand may be in a debugger."""
    from clusterdp.rundir.names import new_local_attempt
    from clusterdp.train.hang import hang_watch
    from clusterdp.train.ranks.control import leave_now
    from clusterdp.train.ranks.group import Group, seed_everything  # loads torch

    slurm = SlurmEnv.read()
    if slurm.rank == 0:
        if settings.run_dir:
            stop.watch(RunDir(settings.run_dir).stop, anew=settings.attempt is None)
        if settings.end_time is not None:
            stop.set_end_time(settings.end_time, settings.margin_s)
        if slurm.attempt is not None:  # in a job array, this name contains the array index, which the job's id lacks
            stop.ask_end = partial(_ask_end, slurm.attempt.rpartition(".")[0])
    attempt = settings.attempt or new_local_attempt()
    run = RunDir(settings.run_dir) if settings.run_dir else None
    watch = None
    if watched and settings.run_dir is not None and settings.attempt is not None:
        watch = hang_watch.prepare(settings.run_dir, attempt, settings.restart, settings.train.timeout_s)
    try:
        place = Rendezvous.find()
        limits = {"timeout_s": settings.train.timeout_s, "meet_s": reserve.meet_s}
        key = run.attempt(attempt).key if run and settings.attempt else None  # else each rank has its own name for it
        group = Group.start(
            place, backend=settings.train.backend, **limits, lazy=run is not None, key_file=key, watch=watch
        )
    except ClusterdpError as error:
        leave_now(refuse(error, settings.run_dir))
    seed_everything(settings.train.seed, place.rank, deterministic=settings.train.deterministic)
    attempt = settings.attempt or str(group.gather(attempt)[0])
    if group.control is not None:
        group.control.end_with_others()
    return group, attempt


def _ask_end(job: str) -> float | None:
    from clusterdp.slurm.commands import end_time  # takes 8 ms; needed only near the end of the job's time

    return end_time(job)


def _run_in_group(
    function: Callable[..., Any],
    settings: WorkerSettings,
    stop: StopSignal,
    group: Group,
    attempt: str,
) -> Outcome:
    from clusterdp.train.job import JobHandle
    from clusterdp.train.ranks.claim import Claim
    from clusterdp.train.ranks.shared_flags import agree_on_stop

    first = group.rendezvous.rank == 0
    run = RunDir(settings.run_dir) if settings.run_dir else None

    job, claim = None, None
    if any(group.agree(first and run is not None and run.cancelled.exists())):
        ending = Outcome("stop", "cancelled")
    elif reason := agree_on_stop(group, stop):  # a stop was requested while torch was loading, before any work
        ending = ending_of(Stopped(reason, 0))
    else:
        claim = Claim.take(run.claims, attempt, os.urandom(4).hex()) if run and first else None
        job = JobHandle(settings, group, stop, attempt, claim)
        page.enter(page.PROGRAM)
        ending = _call(function, job)
    page.enter(page.END)
    _agree_on_ending(group, ending)
    if any(group.agree(_is_lost(claim))):
        ending = replace(ending, outcome="overtaken", reason="claim")
    if job and ending.outcome == "done":
        job.record.time.tell()
        job.event("finished", step=job.step)
    if run is not None and first:
        write_outcome(run.attempt(attempt).outcome, ending, min(LONGEST_WAIT_S, group.timeout.total_seconds() / 2))
    group.agree(0)  # all ranks stay until the outcome is written: srun may end the other tasks when one ends
    return ending


def ending_of(stopped: Stopped) -> Outcome:
    """Returns the outcome of an agreed stop. A run that its user stops is not requeued."""
    return Outcome("stop" if stopped.reason == "user" else "requeue", stopped.reason, stopped.step)


def _is_lost(claim: Claim | None) -> bool:
    """Returns whether the claim is lost: a run that saves nothing, or was overtaken after its last save, notices it
    only here."""
    try:
        return claim is not None and not claim.is_newest()
    except OSError as error:  # on a full disk, the batch script still asks Slurm which job owns the run
        say(f"clusterdp: {claim and claim.folder}: cannot be read: {error.strerror}.", error=True)
        return False


def _call(function: Callable[..., Any], job: JobHandle) -> Outcome:
    from clusterdp.train.job import call
    from clusterdp.train.profile.profiling import Profiled

    try:
        result = call(function, job, job.params)
        ending = Outcome("done", "finished", job.step, result)
    except Profiled:
        ending = Outcome("done", "profile", job.step)
    except Stopped as stopped:
        ending = ending_of(stopped)
    except RuntimeError as error:
        if (said := explained(error, job)) is None:
            raise
        raise said from None
    except ClaimLost as error:
        say(f"clusterdp: {error}", error=True)
        ending = Outcome("overtaken", "claim", job.step)
    except SystemExit as leaving:  # some scripts end in sys.exit()
        if leaving.code not in (None, 0):
            raise
        ending = Outcome("done", "finished", job.step)
    job.flags.drain()
    job.metrics.close()
    return ending


def explained(error: RuntimeError, job: JobHandle) -> ClusterdpError | None:
    """Returns a one-line error, with the names of the user's parameters, for an error that torch reports in many
    lines."""
    from torch.nn.parallel import DistributedDataParallel

    from clusterdp.train.parallel import ddp

    if "InvalidCxxCompiler" in str(error):  # torch's module with InvalidCxxCompiler is private and loads slowly
        return ConfigError("train.compile: there is no C++ compiler here. Load one in launch.setup, or leave it out.")
    found = (ddp.explained(error, model) for model in job.wrapped if isinstance(model, DistributedDataParallel))
    return next(filter(None, found), None)


def _agree_on_ending(group: Group, ending: Outcome) -> None:
    """Checks that all ranks end in the same way, before a rank exits or an outcome is written. Collective."""
    code = ("done", "requeue", "stop", "overtaken").index(ending.outcome)
    most, least = group.agree(code, -code)
    if most != -least:
        raise ClusterdpError(
            f"rank {group.rendezvous.rank}: ended with {ending.outcome!r} while another rank ended differently. "
            "Let all ranks return, or all stop by an agreed outcome."
        )


def write_outcome(path: Path, ending: Outcome, seconds: float = WAIT_FOR_OUTCOME_S) -> None:
    """Writes the outcome file; on a full disk, when there is room again. Raises RunError if the disk stays full for
    longer than `seconds`."""

    def write() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, f"{ending.outcome} {ending.reason} {ending.step}\n")

    try:
        retry_while_full(write, path, seconds)
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written: {error.strerror}. It would say that this attempt ended with "
            f"{ending.outcome!r} at step {ending.step}; the next attempt goes on from the last checkpoint. "
            "Free some space, or see who may write there."
        ) from None


def _has_saved(run_dir: Path) -> bool:
    """Returns whether a checkpoint was saved. If one was saved, the config is right, and this node may be at fault."""
    return any(attempt.saved.exists() for attempt in RunDir(run_dir).attempts())


def follows(error: BaseException) -> bool:
    """Returns whether the error is, or comes from, a lost connection between ranks, which follows from the end of
    another rank. (If one of the program's own connections is lost, Python raises an OSError.)"""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return any(isinstance(each, RuntimeError) and LOST_CONNECTION.search(str(each)) for each in chain)


def note_error(said: str, group: Group, run_dir: Path | None) -> None:
    """Writes node, step, message and rank for the batch script, which compares node, step and message with those of
    other attempts. Only the first rank to fail writes the note. If that rank was killed, or if the disk is full, there
    is no note."""
    if run_dir is not None:
        step = page.current()[page.STEP] if page.current()[page.FIRST] >= 0 else None
        _write_note(said, group.rendezvous.rank, step, run_dir)


def _note_mistake(error: ClusterdpError, run_dir: Path) -> None:
    """Writes the note of note_error() before the ranks meet; `clusterdp why` prints it. A failed rendezvous leaves no
    note, because another rank may be to blame."""
    from clusterdp.train.ranks.rendezvous import GpuMissing

    if isinstance(error, (ConfigError, EntryError, GpuMissing)):
        _write_note(str(error).split("\n")[0][:300], SlurmEnv.read().rank, None, run_dir)


def _write_note(said: str, rank: int, step: int | None, run_dir: Path) -> None:
    attempt = WorkerSettings.bare({}).attempt
    if attempt is None:
        return
    node = os.environ.get("SLURMD_NODENAME", "")
    with suppress(OSError), RunDir(run_dir).attempt(attempt).error.open("x") as file:
        file.write(f"{node}\n{'' if step is None else step}\n{said}\n{rank}\n")


def _tell_of_timeout(run_dir: Path | None) -> None:
    """Reports the time-out. The attempt counts as hung, even if no watcher has reported a hang yet."""
    say(
        "clusterdp: time-out of a collective: another rank did not come to it within train.timeout_s. The attempt ends "
        "as hung.",
        error=True,
    )
    attempt = WorkerSettings.bare({}).attempt
    if run_dir is not None and attempt is not None:
        leave_hung(RunDir(run_dir).attempt(attempt))


def fail(error: BaseException, group: Group, run_dir: Path | None) -> NoReturn:
    """Ends this rank, and reports its failure to the others, so that they do not wait for it."""
    from clusterdp.train.ranks.control import leave_now

    leave_now(report_failure(error, group, run_dir))


def report_failure(error: BaseException, group: Group, run_dir: Path | None) -> int:
    """Reports why this rank fails: to its log, to the other ranks, and to the batch script. Returns the exit code."""
    from clusterdp.train.data.loader_defaults import dead_worker, in_a_line

    if threading.current_thread() is threading.main_thread():
        # Torch's signal handler could raise an error about an ended worker within this function.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if worker := dead_worker(error):
        error = ClusterdpError(worker)
    # after another rank's failure, ours is most likely a broken connection
    control = group.control
    first_failure = control.first_failure(is_certain=follows(error)) if control is not None else None
    said = in_a_line(error)[:300]
    if isinstance(error, ClusterdpError):
        refuse(error, run_dir, group)  # comes before control.fail(), after which the other ranks end within a second
    else:
        say("".join(traceback.format_exception(error)).rstrip("\n"), error=True)
        if isinstance(error, BUGS) and not first_failure and run_dir is not None and not _has_saved(run_dir):
            _refuse(run_dir, group)
    if control is not None:
        control.fail(said)
    if COLLECTIVE_TIMEOUT.search(str(error)):
        _tell_of_timeout(run_dir)
    elif not first_failure and not follows(error):
        note_error(said, group, run_dir)
    if first_failure and first_failure.partition(": ")[2] != said:  # not if all ranks found the same error
        say(f"clusterdp: this follows from another rank's failure: {first_failure}", error=True)
    if isinstance(error, ClusterdpError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 130
    return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
