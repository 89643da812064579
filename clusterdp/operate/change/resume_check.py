"""The checks of `clusterdp resume` before it submits a new job for a run. submission/resume.py submits the job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from clusterdp.batch.files.causes import FAULTS
from clusterdp.config import Config
from clusterdp.errors import DamagedError, RunError, SlurmError, SubmitInDoubt
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.queue.moved_folder import refuse_copy
from clusterdp.operate.queue.run_status import WAITS, ask_for_all_jobs, is_held, live_jobs, queued_again
from clusterdp.operate.record.next_command import length_param
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir, write_durably
from clusterdp.rundir.lenient_reads import integer
from clusterdp.wording import shares_of

# The reasons of holds that a user cannot release. For example, Slurm holds a job that was requeued too often.
NOT_THE_USERS = frozenset({"JobHeldAdmin", "JobHoldMaxRequeue", "launch failure limit exceeded requeued held"})


def check_resumable(
    run: RunDir, from_step: int | None = None, checkpoint_url: str | os.PathLike[str] | None = None
) -> None:
    """Raises RunError if a job of the run runs or waits, or if `from_step` has no checkpoint. Changes nothing."""
    _refuse_if_alive(read_history(run))
    # Checkpoints are looked at even without from_step: unreadable ones raise an error now, not after a wait in the
    # queue.
    check_step(run, from_step, checkpoint_url)


def check_step(run: RunDir, from_step: int | None, checkpoint_url: str | os.PathLike[str] | None = None) -> None:
    """Raises RunError if no checkpoint has the step `from_step`."""
    from clusterdp.checkpoint.format.manifest import list_checkpoints

    found = list_checkpoints(os.fspath(checkpoint_url or run.checkpoints))
    steps = tuple(sorted({checkpoint.step for checkpoint in found}))
    if from_step is not None and from_step not in steps:
        raise RunError(f"--from {from_step}: there is no checkpoint of that step. {_offer(steps)}")


def size_change(run: RunDir, before: Config, now: Config, ranks: Sequence[int]) -> str:
    """Returns a line about the ranks and the samples of a step, if the ranks are not those that have saved the newest
    checkpoint; else an empty text. before, now: the run's config, without and with the changes. ranks: the possible
    numbers of ranks with them."""
    from clusterdp.checkpoint.format.manifest import list_checkpoints
    from clusterdp.checkpoint.format.verified_reads import read_manifest
    from clusterdp.storage import open_storage

    url = now.checkpoint.url or os.fspath(run.checkpoints)
    found = list_checkpoints(url)
    nodes = before.resources.nodes, now.resources.nodes
    if not found or [was := found[-1].world_size] == [*ranks] or (was in ranks and nodes[0] == nodes[1]):
        return ""
    state: Any = {}
    with suppress(DamagedError, OSError):  # of which the attempt says more
        state = read_manifest(open_storage(url), found[-1]).state
    line = f"{nodes[0]} -> {nodes[1]} nodes, " if nodes[0] != nodes[1] else ""
    line += f"{was} -> {' to '.join(map(str, dict.fromkeys([ranks[0], ranks[-1]])))} ranks"
    position = state.get("loop") or {}
    batch, windows, micro = (integer(position.get(name)) or 0 for name in ("global_batch", "accumulate", "micro_batch"))
    samples = batch * (windows or 1)
    each = micro or samples // (was * (windows or 1))
    if (whole := now.train.global_batch_size) is not None:
        step = f"a step stays {whole} samples" if whole == samples else f"a step has {samples} samples -> {whole}"
        count = whole // each if each else 0
        few = ", which are too few" if count < ranks[-1] else f", {shares_of(count, ranks[0])} on each rank"
        few = few if len(ranks) == 1 or count < ranks[-1] else ""
        return f"{line}: {step}" + (f": {count} micro-batches of {each}{few}." if each else ".")
    if not samples:
        return f"{line}. The program's loader says what a step has on them."
    new = each * ranks[-1] * now.train.accumulate
    if new == samples:
        return f"{line}: a step stays {samples} samples."
    fits = (windows or 1) == 1 and ranks[-1] <= samples // each
    keeps = f" train.global_batch_size={samples} keeps it." if fits else ""
    return f"{line}: a step has {samples} samples -> {new}, with the same batch_size.{keeps}"


def nothing_left(run: RunDir) -> str | None:
    """Returns the message for a resume of a run that is done; None if the run is not done."""
    history = read_history(run)
    if history.state is not RunState.DONE:
        return None
    if not history.entry:
        return f"{shown_path(run.path)}: this run is done. Submit a new one."
    at = "" if history.step is None else f" at step {history.step}"
    longer = f": {name}=..." if (name := length_param(run)) else ", if its params have that."
    return f"{shown_path(run.path)}: is done{at}; nothing is left. To train on, raise what ends it{longer}"


@contextmanager
def uncancelled(run: RunDir) -> Iterator[None]:
    """Removes the run's marks of `cancel` and `stop` before the submit in the body of the with statement. Restores the
    marks if the submit has certainly failed."""
    markers = {}
    for marker in (run.cancelled, run.stop):
        with suppress(FileNotFoundError):
            markers[marker] = read_plain(marker)
            marker.unlink()
    try:
        yield
    except SubmitInDoubt:
        raise
    except BaseException:
        for marker, content in markers.items():
            write_durably(marker, content)
        raise


def _refuse_if_alive(history: RunHistory) -> None:
    """Raises an error if squeue shows that a job of the run may be alive: two jobs would overwrite each other's
    work."""
    try:
        rows = ask_for_all_jobs(history)
    except SlurmError as error:
        job = f"job {history.job}" if history.job else "a job of it"
        raise SlurmError(f"{error} So it is not known whether {job} is over.") from None
    run = shown_path(history.run.path)
    if rows is None:
        if history.state.over or history.cancelled:
            return
        raise RunError(
            f"{run}: job {history.job} was {history.state.value} when last heard of, and no squeue here knows its "
            f"cluster ({history.cluster or 'unknown'}). Look there; if it is gone, `clusterdp cancel {run}` settles it."
        )
    for job in live_jobs(rows):
        refuse_copy(history)
        state = rows[job].state
        if state in WAITS and job == history.job and _ends_at_once(history):
            how = "" if is_held(rows[job]) else f"Wait for it, or `scancel {job}`. "
            raise RunError(f"{run}: is {history.state.value}, and {queued_again(job, rows[job])}. {how}Then resume.")
        if is_held(rows[job]):
            own = rows[job].reason not in NOT_THE_USERS
            who = f"`scontrol release {job}` lets it go on" if own else "Only an administrator can release it"
            raise RunError(
                f"{run}: job {job} is held ({rows[job].reason}). {who}; `clusterdp cancel {run}`, then resume, "
                "goes on in a new job."
            )
        if state == "COMPLETING" or history.cancelled or history.asked_to_stop or history.state is RunState.DONE:
            raise RunError(f"{run}: job {job} is still ending ({state}). Wait for it, then resume.")
        raise RunError(
            f"{run}: job {job} is {state}, so the run goes on by itself. "
            f"`clusterdp cancel {run}` first if you want it to go on otherwise."
        )


def _ends_at_once(history: RunHistory) -> bool:
    """Returns whether another attempt of the same job would find the run over, and end at once. False if only the job's
    requeue failed."""
    causes = FAULTS | {"done", "gave-up", "stopped"}
    return history.state.over and history.last is not None and history.last.cause in causes


def _offer(steps: tuple[int, ...]) -> str:
    if not steps:
        return "There is none at all."
    some = ", ".join(map(str, steps[-12:]))
    return f"There are: {some}." if len(steps) <= 12 else f"The last ones are: {some}."
