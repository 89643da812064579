"""Which checkpoints of a run were saved, by its ledger, and which are there. A store on the network is not asked."""

from __future__ import annotations

from dataclasses import dataclass

from clusterdp.errors import ClusterdpError
from clusterdp.operate.checkpoints.place import locate, look, url_of
from clusterdp.operate.formatting import clock, size
from clusterdp.operate.run_history import RunHistory
from clusterdp.rundir.lenient_reads import integer, time_of

MANY = 50


@dataclass(frozen=True)
class SavedCheckpoint:
    step: int
    when: str
    size: str
    seconds: str
    attempt: str
    there: str  # yes, or pruned; empty where it is not known


@dataclass(frozen=True)
class SavedCheckpoints:
    rows: list[SavedCheckpoint]  # the newest first
    older: int
    note: str


def saved_checkpoints(history: RunHistory, now: float) -> SavedCheckpoints:
    kept, note = _there(history)
    rows = []
    for event in reversed([event for event in history.events if event.get("event") == "saved"]):
        step, seconds, nbytes = integer(event.get("step")), event.get("seconds"), integer(event.get("bytes"))
        if step is None:
            continue
        rows.append(
            SavedCheckpoint(
                step=step,
                when=clock(time_of(event), now),
                size=size(nbytes) if nbytes is not None else "",
                seconds=f"{seconds:.2f} s" if isinstance(seconds, int | float) else "",
                attempt=str(event.get("attempt") or ""),
                there="" if kept is None else "yes" if (step, event.get("attempt")) in kept else "pruned",
            )
        )
    return SavedCheckpoints(rows[:MANY], max(0, len(rows) - MANY), note)


def _there(history: RunHistory) -> tuple[set[tuple[int, str]] | None, str]:
    """Steps and attempts of those that are there; None if it is not known, and why."""
    try:
        url = url_of(history.run)
        if "://" in url and not url.startswith("file://"):
            return None, f"They are at {url}, which was not asked."
        commits, damaged = look(locate(str(history.run.path)))
    except (ClusterdpError, OSError, ValueError) as error:
        return None, str(error)
    note = f"{len(damaged)} manifests are damaged: `clusterdp checkpoint ls` says how." if damaged else ""
    return {(info.step, info.attempt) for info in commits}, note
