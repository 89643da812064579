"""AttemptHistory: the times, nodes, end and steps of one attempt, as read from its files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from clusterdp.batch.files.causes import of_outcome
from clusterdp.operate.record.log_files import printed_at
from clusterdp.rundir import Attempt, RunDir
from clusterdp.rundir.lenient_reads import (
    Record,
    ends_of,
    integer,
    modified,
    time_of,
    words,
)
from clusterdp.slurm.hostlist import hosts_of, joined

ENDINGS = frozenset({"finished", "failed", "requeued", "restarted", "cancelled"})  # the batch script's last event
# Names of the `signal` events that the batch program records if Slurm ends the attempt. (The `signal` events of ranks
# also have a step.)
SIGNALS = frozenset({"TERM", "ending"})
NOT_MEASURED = frozenset({"time", "step", "total", "phase"})


class AttemptHistory(NamedTuple):
    """The history of one attempt. A step is the number of steps that were trained so far. Times are in seconds since
    1970.

    Only the first line and the last 64 KiB of a metrics file are read: the file of a year is read as fast as the file
    of a minute.
    """

    name: str
    number: int
    cause: str = ""  # cause of the attempt's end; empty while no end is recorded
    closed: bool = False  # the `cause` file exists, which the batch script writes last
    settled: bool = False  # True: the attempt's own batch script wrote the cause, not a later attempt
    heard: bool = True  # True: the attempt left any record except its empty folder
    ran: bool = True  # False: the attempt ended at once because of the results of earlier attempts
    signalled: bool = False  # Slurm sent the attempt a signal to end
    exited: bool = False  # the attempt's ranks have ended
    outcome: str = ""  # the word that the ranks wrote: done, requeue or stop
    started: float | None = None
    ended: float | None = None
    nodes: str = ""
    most_nodes: int = 0  # with a range of nodes: its end
    pid: int | None = None  # rank 0's process, of an attempt without Slurm
    avoid: tuple[str, ...] = ()  # nodes that later attempts avoid
    failed: bool = False  # the batch script recorded a failure, and did not requeue the job
    requeued: bool = False
    restarted: bool = False  # the batch script started the ranks again in the same allocation
    exit: int | None = None
    failed_rank: int | None = None  # the rank that failed first, as the batch program found
    failed_error: str = ""
    why: str = ""  # details of the cause: `claim`, `entry`, or a text
    first_step: int | None = None
    last_step: int | None = None
    restored: int | None = None
    verdict: str = ""  # of the witness: whether its steps repeat those after the restored save; empty if not compared
    differs: str = ""  # what does not repeat, as text
    # Of the restored checkpoint, and of this attempt, if the numbers of ranks differ. Samples: of a step; 0: unknown.
    ranks: tuple[int, int] | None = None
    samples: tuple[int, int] = (0, 0)
    saved: int | None = None
    saved_at: float | None = None
    unsaved: str = ""  # the error of a failed save, if no save has succeeded since
    lost: int | None = None  # steps that the next attempt trained again; None if unknown
    measured_at: float | None = None  # time of the last metrics record
    heard_at: float | None = None  # time of the last record of any kind
    printed_at: float | None = None  # time of rank 0's last output, if the program's end is not recorded
    rate: float | None = None  # steps a second in the last metrics records
    total: int | None = None
    phase: str = ""  # the phase of a training with several phases; `total` is the step at its end
    metrics: Mapping[str, Any] = MappingProxyType({})

    @property
    def job(self) -> str:
        return self.name.partition(".")[0]

    @property
    def where(self) -> str:
        """The attempt's nodes: `n[1-2]`, with a range of nodes `n[1-2], 2 of up to 8 nodes`. Empty if unknown."""
        of_range = f", {len(hosts_of(self.nodes))} of up to {self.most_nodes} nodes" if self.most_nodes else ""
        return self.nodes and self.nodes + of_range

    @property
    def stopped_by_user(self) -> bool:
        """Whether `clusterdp stop` or job.stop() ended the attempt; `why` names the one of the two."""
        return self.cause == "stopped" and self.why not in ("", "claim", "entry")


def read_attempt(
    run: RunDir, attempt: Attempt, number: int, events: Sequence[Record], metrics: bool = True
) -> AttemptHistory:
    """Reads one attempt. `events` has the attempt's own events by time, and the next attempt's events about the
    attempt's end. `metrics` is False to skip the attempt's metrics."""
    by_kind: dict[str, Record] = {str(event.get("event")): event for event in events}  # the last event of each kind
    own = [event for event in events if event.get("attempt") == attempt.name]
    endings = [event for event in events if event.get("event") in ENDINGS]
    outcome, written = words(attempt.outcome), "".join(words(attempt.cause)[:1])
    measured = run.path / f"metrics/{attempt.name}.jsonl"
    # Records are of steps, or of results without a step.
    first, records = ends_of(measured) if metrics else ({}, ())
    failed, exited = by_kind.get("failed", {}), "exited" in by_kind
    ending = _read_ending(own, endings, outcome, written, str(failed.get("reason") or ""))
    return AttemptHistory(
        name=attempt.name,
        number=number,
        closed=bool(written),
        heard=bool(own or written or outcome or records),
        ran="started" in by_kind or bool(outcome or records),
        signalled=any(e.get("event") == "signal" and e.get("name") in SIGNALS and "step" not in e for e in own),
        exited=exited,
        outcome="".join(outcome[:1]),
        started=time_of(own[0]) if own else modified(attempt.path),
        ended=_ended(attempt, ending["cause"], own, endings, records),
        nodes=joined(str((by_kind.get("placed") or by_kind.get("started", {})).get("nodes") or "")),
        most_nodes=integer(by_kind.get("started", {}).get("most_nodes")) or 0,
        pid=integer(by_kind.get("started", {}).get("pid")),
        avoid=tuple(words(attempt.avoid)),
        # Each crash is first recorded as failed, even if the run goes on; the `cause` file is written after that
        # decision.
        failed=bool(written) and "failed" in by_kind and not by_kind.keys() & {"requeued", "restarted"},
        requeued="requeued" in by_kind,
        restarted="restarted" in by_kind,
        exit=integer(failed.get("exit")),
        failed_rank=integer(failed.get("rank")),
        failed_error=str(failed.get("error") or ""),
        heard_at=max((time_of(record) for record in [*own[-1:], *records[-1:]]), default=None),
        printed_at=None if exited else printed_at(attempt.logs),
        **ending,
        **_read_progress(attempt, events, by_kind, first, records),
    )


def _read_ending(
    own: Sequence[Record], endings: Sequence[Record], outcome: list[str], written: str, reason: str
) -> dict[str, Any]:
    """Returns the values of `cause`, `settled` and `why`. `written` is the word in the `cause` file, and `reason` the
    reason in the `failed` event."""
    cause, why = written or _cause(endings, outcome), reason
    settled = any(event in endings and event.get("cause") for event in own)
    if cause == "stopped" and why == "cancelled":  # the ranks saw the mark of `cancel` before they began
        cause, why = "cancelled", ""
    if cause == "stopped" and "user" in (why, *outcome[1:2]):
        agreed = own if "user" in outcome[1:2] else []  # else the ranks ended for another reason
        why = next((str(e["name"]) for e in agreed if e.get("event") == "signal" and "step" in e), "clusterdp stop")
    if cause == "done" and outcome[1:2] == ["profile"]:
        why = "a profile, not a training"
    if cause == "lost" and settled:  # the batch script recorded `lost`: Slurm's controller did not answer
        cause = "unknown"
    return {"cause": cause, "settled": settled, "why": why}


def _read_progress(
    attempt: Attempt, events: Sequence[Record], by_kind: Mapping[str, Record], first: Record, records: Sequence[Record]
) -> dict[str, Any]:
    """Returns the fields about steps, saves and metrics. `first` and `records` come from the metrics file."""
    saved_file = integer("".join(words(attempt.saved)[:1]))
    saved_event = integer(by_kind.get("saved", {}).get("step"))
    tried = [event for event in events if event.get("event") in ("saved", "save-failed")]
    trained = _last_of_steps(records)
    steps = [integer(record.get("step")) for record in [*trained[-1:], *events]]
    return {
        "first_step": integer(first.get("step")),
        "last_step": max((step for step in [*steps, saved_file] if step is not None), default=None),
        "restored": integer(by_kind.get("restored", {}).get("step")),
        **_read_size(by_kind.get("restored", {})),
        "verdict": str(by_kind.get("witness", {}).get("verdict") or ""),
        "differs": str(by_kind.get("witness", {}).get("differs") or ""),
        "saved": saved_event if saved_event is not None else saved_file,
        "saved_at": time_of(by_kind["saved"]) if "saved" in by_kind else modified(attempt.saved),
        "unsaved": str(tried[-1].get("error") or "") if tried else "",
        "measured_at": time_of(records[-1]) if records else None,
        "rate": _rate(trained),
        "total": next((t for record in reversed(records) if (t := integer(record.get("total"))) is not None), None),
        "phase": str(records[-1].get("phase") or "") if records else "",
        "metrics": _latest(records),
    }


def _read_size(restored: Record) -> dict[str, Any]:
    names = (("saved_by", "ranks"), ("saved_samples", "samples"))
    ranks, samples = ([integer(restored.get(name)) or 0 for name in pair] for pair in names)
    return {"ranks": tuple(ranks) if all(ranks) else None, "samples": tuple(samples)}


def _cause(endings: Sequence[Record], outcome: list[str]) -> str:
    """Returns the cause of an attempt that has no `cause` file. The ledger has the cause, or else the ranks'
    outcome."""
    for event in reversed(endings):
        if event.get("cause"):
            return str(event["cause"])
        if event["event"] == "cancelled":
            return "cancelled"
        if event["event"] == "failed":
            return "crash"
    cause = of_outcome(*outcome[:2]) if len(outcome) > 1 else ""
    return "signal" if cause == "preempted" else cause  # ranks cannot know whether Slurm sent the signal


def _ended(
    attempt: Attempt, cause: str, own: Sequence[Record], endings: Sequence[Record], records: Sequence[Record]
) -> float | None:
    if not cause:
        return None
    if own and own[-1] in endings:
        return time_of(own[-1])
    # If the next attempt wrote the cause, it may have done so much later: the attempt's last record is closer to the
    # true time.
    signs = [time_of(record) for record in [*own[-1:], *records[-1:]]]
    return max(signs, default=None) or modified(attempt.outcome) or modified(attempt.cause)


def _last_of_steps(records: Sequence[Record], most: int = 50) -> list[Record]:
    of_steps = (record for record in reversed(records) if integer(record.get("step")) is not None)
    return list(itertools.islice(of_steps, most))[::-1]


def _rate(records: Sequence[Record]) -> float | None:
    if len(records) < 2:
        return None
    seconds = time_of(records[-1]) - time_of(records[0])
    steps = int(records[-1]["step"]) - int(records[0]["step"])
    return steps / seconds if seconds > 0 and steps > 0 else None


def _latest(records: Sequence[Record]) -> dict[str, Any]:
    """Returns the last value of each metric. All records are searched, because a loss and an accuracy may be in
    different records."""
    latest: dict[str, Any] = {}
    for record in records:
        latest.update(record)
    for key in [key for key, value in latest.items() if value is None]:
        latest[key] = next((r[key] for r in reversed(records) if r.get(key) is not None), None)
    return {key: value for key, value in latest.items() if key not in NOT_MEASURED and value is not None}
