"""Slurm's dependency of a run on the runs that it follows, made at its submit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterdp.batch.files.rules import read_rules
from clusterdp.config.after import STATES, read_after
from clusterdp.errors import ConfigError, RunError
from clusterdp.operate.find.find_run import find_run
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.queue.predecessor import KINDS, is_there
from clusterdp.operate.queue.run_cluster import commands_of, is_here
from clusterdp.operate.queue.run_status import RunStatus, current_status
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.rundir import Ledger, RunDir, SweepDir, is_sweep, sweep_of
from clusterdp.wording import counted

if TYPE_CHECKING:
    from clusterdp.config import Given

GOAL = {"done": "is done", "any": "is over", "started": "has begun"}
Standing = tuple[RunHistory, RunStatus]


def with_after(given: Given, words: Sequence[str] = ()) -> Given:
    """Returns the given config with the folders of the runs that `after:` or `words` name, those of --after. Raises
    RunError if there is no such run."""
    after = read_after(list(words) or given.values.get("after"), "" if words else given.sources.get("after", ""))
    if after is None:
        return given
    runs = [{**each, "run": str(_found(each["run"]).path)} for each in after["runs"]]
    first = f"{runs[0]['run']}/0" if runs[0]["state"] == "each" else runs[0]["run"]
    return replace(given, values={**given.values, "after": {"run_dir": first, "runs": runs}})


def _found(word: str) -> RunDir:
    try:
        return find_run(word)
    except RunError as error:
        states = f" Before a `:` stands one of {', '.join(STATES)}." if ":" in word else ""
        raise RunError(f"after: {error}{states}") from None


def dependency(after: Mapping[str, Any], elements: int | None = None) -> str:
    """Returns the value of sbatch's --dependency for a job that follows these runs; empty if they are there already.
    elements: how many elements the sweep of the new job has; None for a single run. Raises RunError if a run can no
    longer get there, and ConfigError for `each` between runs that are not such sweeps."""
    terms: dict[str, None] = {}
    for each in after["runs"]:
        run, state = _found(each["run"]), each["state"]
        standings = _standings(run)
        if state == "each" and (not is_sweep(run.path) or elements != len(standings)):
            what = "the new one is a single run" if elements is None else f"the new one has {elements}"
            has = f"has {counted(len(standings), 'element')}" if is_sweep(run.path) else "is no sweep"
            raise ConfigError(f"after: each:{shown_path(run.path)}: it {has}, and {what}. Leave out `each:`.")
        terms |= dict.fromkeys(_terms(state, standings))
    return ",".join(terms)


def _standings(run: RunDir) -> list[Standing]:
    """Returns the run, or each element of a sweep, as squeue and the records show it now."""
    sweep = SweepDir(run.path)
    runs = [sweep.element(number) for number in sweep.numbers()] if is_sweep(run.path) else [run]
    found = []
    for history in (read_history(each, all_metrics=False) for each in runs):
        with commands_of(history.cluster):
            found.append((history, current_status(history)))
    return found


def _terms(state: str, standings: Sequence[Standing]) -> Iterator[str]:
    # Jobs before the current one of an element: their ends do not count, so an array that has one is named by elements.
    older = {job.partition("_")[0] for history, _ in standings for job in history.jobs[:-1]}
    for history, status in standings:
        path = shown_path(history.run.path)
        if is_there(state, history, status.state):
            continue
        if status.state.over and state != "each":
            said = f"{status.state.value}{f' ({status.why})' if status.why else ''}"
            remedy = f"`clusterdp resume {path}` first, or write any:{path}, or leave it out"
            raise RunError(f"after: {path} is {said}, and this run starts after it {GOAL[state]}. {remedy}.")
        if status.state.over:
            continue
        _check_cluster(history)
        array, job = (history.job or "").partition("_")[0], history.job or ""
        if state == "each" or (len(standings) > 1 and array not in older):
            job = array
        kind = KINDS[state]
        if kind == "afterok" and _is_resubmitted(history.run):
            kind = "afterany"  # the end of one job is not that of the run, so the follower looks for itself
        yield f"{kind}:{job}"


def _check_cluster(history: RunHistory) -> None:
    path = shown_path(history.run.path)
    if history.is_local or not history.job:
        raise RunError(f"after: {path} has no job of Slurm. Wait for its end, then submit this run.")
    if not is_here(history.cluster):
        where = history.cluster or "its cluster's"
        raise RunError(f"after: {path} is a job of another cluster ({where}). Submit this run there, or wait.")


def _is_resubmitted(run: RunDir) -> bool:
    sweep = sweep_of(run)
    try:
        return read_rules(str((sweep.path if sweep else run.path) / "batch")).how == "resubmit"
    except (OSError, ValueError):
        return False


def note_follower(after: Mapping[str, Any], job: str, run: RunDir) -> None:
    """Records a follower in the ledgers of the runs before it. They may belong to another user: then the follower has
    nothing but Slurm's dependency and its own look at their records."""
    for each in after["runs"]:
        with suppress(OSError):
            Ledger(RunDir(Path(each["run"])), f"follower-{job}", "submit").write(
                "followed", by=str(run.path.absolute())
            )
