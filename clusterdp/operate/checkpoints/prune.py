"""`clusterdp checkpoint prune`: selects checkpoints by the rules of retention, and deletes them if the user agrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from clusterdp.checkpoint.format import retention
from clusterdp.checkpoint.format.manifest import CheckpointInfo
from clusterdp.errors import CheckpointError, ConfigError, RunError, SlurmError
from clusterdp.operate.checkpoints.place import CheckpointPlace
from clusterdp.operate.checkpoints.read_progress import read_progress
from clusterdp.operate.checkpoints.verify import check
from clusterdp.operate.output.formatting import Colour, shown_path
from clusterdp.operate.queue.moved_folder import refuse_copy
from clusterdp.operate.queue.run_status import ask_squeue, live_jobs
from clusterdp.operate.record.run_history import read_history
from clusterdp.rundir import RunDir
from clusterdp.wording import counted, size, some_of


@dataclass(frozen=True)
class Rule:
    keep_last: int
    keep_every: int | None = None

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ConfigError(f"--keep-last {self.keep_last}: the newest good one always stays. Give 1 or more.")
        if self.keep_every is not None and self.keep_every < 1:
            raise ConfigError(f"--keep-every {self.keep_every}: it counts commits. Give 1 or more.")


@dataclass(frozen=True)
class Pruning:
    """The plan of a deletion, which the user confirms first."""

    commits: Sequence[CheckpointInfo]
    victims: Sequence[CheckpointInfo]
    proved: CheckpointInfo  # the newest good checkpoint: all its bytes were just verified
    skipped: Sequence[str]  # messages about newer checkpoints that are damaged

    @property
    def freed(self) -> int:
        """The number of bytes that the deletion frees. A file that a remaining checkpoint also uses is not deleted."""
        gone = {info.token for info in self.victims}
        used = {info.data for info in self.commits if info.token not in gone}
        return sum({info.data: info.bytes for info in self.victims if info.data not in used}.values())


def plan_pruning(place: CheckpointPlace, rule: Rule, out: TextIO) -> Pruning:
    """Returns the plan of a deletion. Raises CheckpointError if no checkpoint is good, because nothing may be deleted
    without a good one."""
    commits, _ = place.commits()
    skipped: list[str] = []
    bad: set[str] = set()
    unsure: set[str] = set()
    with read_progress(out, commits[-1].bytes if commits else 0) as bar:
        for info in reversed(commits):
            bar.begin(f"verifying step {info.step}")
            finding = check(place.storage, info, bar.advance)
            if finding.good:
                victims = retention.to_delete(commits, rule.keep_last, rule.keep_every, bad=bad, unsure=unsure)
                return Pruning(commits, victims, info, skipped)
            (bad if finding.damage else unsure).add(info.token)
            skipped += [*finding.damage, *finding.unread]
    raise CheckpointError(f"{place.name}: none of the checkpoints is good, so none may go: {'; '.join(skipped)}")


def refuse_if_alive(run: RunDir) -> None:
    """Raises an error if a job is alive: the job may need the checkpoint of an older step, which the rules delete."""
    history = read_history(run)
    name = shown_path(run.path)
    try:
        rows = ask_squeue(history)
    except SlurmError as error:
        raise SlurmError(f"{error} So it is not known whether {name} is over; --force prunes nevertheless.") from None
    if rows is None and not (history.state.over or history.cancelled):
        raise RunError(
            f"{name}: it was {history.state.value} when last heard of, and no squeue here knows its cluster. "
            "Run this where it was submitted; --force prunes nevertheless."
        )
    for job in live_jobs(rows or {}):
        refuse_copy(history)
        raise RunError(
            f"{name}: job {job} is {(rows or {})[job].state}, and prunes by itself (checkpoint.keep_last). "
            "Wait for its end; --force prunes nevertheless."
        )


def show_plan(place: CheckpointPlace, pruning: Pruning, out: TextIO) -> None:
    colour = Colour(out)
    for line in pruning.skipped:
        out.write(f"{colour('red', 'not good')}  {line}\n")
    for info in pruning.victims:
        out.write(f"{colour('yellow', 'goes')}   step {info.step}  {size(info.bytes)}  {info.token}\n")
    gone = {info.token for info in pruning.victims}
    for info in pruning.commits:
        if info.token not in gone:
            proved = "  every byte verified" if info is pruning.proved else ""
            out.write(f"{colour('green', 'stays')}  step {info.step}  {size(info.bytes)}  {info.token}{proved}\n")
    if pruning.victims:
        count = counted(len(pruning.victims), "checkpoint")
        out.write(f"{place.name}: {count} would go, and free {size(pruning.freed)}\n")


def prune(place: CheckpointPlace, pruning: Pruning, out: TextIO) -> None:
    """Deletes the checkpoints. Each manifest is deleted before its files: after an interruption, every checkpoint is
    complete or gone. Raises CheckpointError at the end if a checkpoint could not be deleted."""
    remaining = list(pruning.commits)
    failed = []
    for info in pruning.victims:
        remaining.remove(info)
        try:
            retention.delete(place.storage, info, remaining)
        except OSError as error:
            failed.append(f"step {info.step} could not be deleted: {error.strerror or error}")
    if failed:
        raise CheckpointError(
            f"{place.name}: {some_of(failed, 3, ';')}. {len(pruning.victims) - len(failed)} of {len(pruning.victims)} "
            "are gone."
        )
    out.write(f"{place.name}: {counted(len(pruning.victims), 'checkpoint')} deleted, {size(pruning.freed)} freed\n")


def confirmed(ask_user: Callable[[str], str]) -> bool:
    try:
        return ask_user("Delete them? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
