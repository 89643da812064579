"""FirstFailure: finds the rank that failed first, and its error. Every other rank only reports that this rank is gone.

The evidence, the strongest first:

    hang    the report of a hang, after which clusterdp ended the ranks
    named   clusterdp's ranks report the failed rank to each other; the first one writes its error to attempts/*/error
    record  the batch program found the rank at the attempt's end, and decided by it (batch/decide/evidence.py)
    srun    its first message names a rank that a signal ended, or that exited silently while no log has an error
    log     the earliest log with its own error at its end, or before many consequences
    agent   the report of torchrun about its ranks
    srun    all errors are consequences, and a later message names a silent rank that a signal ended
    echo    all errors are consequences: the earliest log
    setup   no rank ran, because a line of launch.setup failed
    batch   no rank ran: the output of the batch script
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterdp.batch.decide.evidence import without_kills
from clusterdp.batch.files.causes import CAUSES, FAULTS
from clusterdp.batch.files.rank_logs import LogFile, log_files, log_of, ranks_in
from clusterdp.operate.record.log_files import agent_logs, batch_log
from clusterdp.operate.record.standstill import hang_of
from clusterdp.operate.why.match import (
    MOST_LINES,
    OUT_OF_MEMORY,
    SLURMS_HINTS,
    RankLog,
    TaskMessage,
    errors,
    known,
    looked_further,
    part_of_attempt,
    read_log,
    read_logs,
    root_causes,
    task_messages,
)
from clusterdp.operate.why.signature import Signature
from clusterdp.operate.why.signatures import BY_NAME
from clusterdp.plainfile import read_plain, reading
from clusterdp.rundir import Attempt, RunDir
from clusterdp.rundir.lenient_reads import Record, integer
from clusterdp.rundir.tail import last_lines

if TYPE_CHECKING:
    from clusterdp.operate.record.attempt_history import AttemptHistory
    from clusterdp.operate.record.run_history import RunHistory

# The line in which clusterdp's ranks report the rank that failed first
# An agent names a rank whose process has ended, or cannot be reached, without the reason.
NAMED = re.compile(
    rb"^clusterdp: .*another(?: rank's failure| failed): rank (\d{1,9}): (?!its process has ended|the agent of )",
    re.MULTILINE,
)
FEW = 64  # logs that are read if the rank that failed first is known
FLOODS = 8  # logs that are read further back than LOOK, 4 MiB in all
# Causes that are not the fault of a rank: the ranks were ended from outside, and messages of srun or slurmstepd are no
# evidence.
BLAMELESS = CAUSES.keys() - FAULTS - {"lost", "stopped", "unknown"}
TIMED_OUT = BY_NAME["collective-timeout"]
KILLED = ("killed", "loader-worker-died", "exit-code")  # failures that the kernel's out-of-memory killer may cause


@dataclass(frozen=True)
class FirstFailure:
    """The first failure of an attempt, and its log."""

    rank: int | None  # the rank of `log`; None if `log` is of the batch script or an agent
    log: Path | None  # the log that shows the failure best
    lines: list[str]
    said: str = ""  # srun's message about the rank
    node: str = ""
    step: int | None = None
    error: str = ""  # one line
    known: Signature | None = None
    evidence: str = "batch"
    followed: tuple[int, ...] = ()  # ranks that only report that another rank is gone
    behind: tuple[int, ...] = ()  # ranks that did not report the time-out of a collective
    attempt: str = ""
    unread: int = 0  # number of further ranks, whose logs were not read


@dataclass(frozen=True)
class ErrorNote:
    """The file attempts/*/error, which the rank that failed first wrote."""

    node: str = ""
    step: int | None = None
    error: str = ""
    rank: int | None = None

    @classmethod
    def read(cls, attempt: Attempt) -> ErrorNote:
        try:
            lines = read_plain(attempt.error, 64 * 1024).decode(errors="replace").split("\n")
        except OSError:
            return cls()
        node, step, error, rank = [*lines, "", "", "", ""][:4]
        return cls(node, _number(step), error, _number(rank))

    @property
    def usable(self) -> bool:
        """Whether the note contains a cause, and not only a consequence of another rank's failure."""
        found = known(self.error) if self.error else None
        return bool(self.error) and not (found is not None and found.consequence)


def find_failure(history: RunHistory) -> FirstFailure:
    """Returns the failure of the newest attempt that ran a program, or the batch script's failure if no attempt ran a
    program."""
    last = _last_that_failed(history)
    batch = batch_log(history.run, history.job)
    if last is None or (last.job != history.job and not history.is_local):
        return _of_batch(batch, "", "")
    attempt = history.run.attempt(last.name)
    if last.cause == "hung" and (hang := hang_of(history, last)):
        return _of_hang(attempt, hang)
    part = without_kills(part_of_attempt(batch, last.name))
    agents = agent_logs(attempt.logs)
    said = [] if agents else list(task_messages(part))  # with torchrun, srun sees agents, not ranks
    note = ErrorNote.read(attempt)
    first, error = (note.rank, note.error) if note.usable else (last.failed_rank, last.failed_error)
    files = log_files(str(attempt.logs))
    paths, unread = _few(files, None if known(error) is TIMED_OUT else first)  # at a time-out, any rank may be behind
    if not unread:
        paths = _with_silent(files, [first, *(rank for each in said for rank in each.ranks)])
    logs = read_logs(paths)
    found = (
        _named(logs, note)
        or _recorded(logs, last)
        or _by_srun(logs, said)
        or _by_log(logs, said)
        or _by_agent(agents, logs)
        or _by_echo(logs, said)
        or _of_setup(batch, note)
        or _of_batch(batch, part, last.name)
    )
    about = next((message.said for message in said if found.rank in message.ranks), found.said)
    found = _with_memory(replace(found, attempt=last.name, said=about), part)
    if found.rank is None:
        return found
    followed = tuple(log.rank for log in logs if log.echoes and log.own is None and log.rank != found.rank)
    return replace(
        found,
        node=_node_of(found.rank, note, said) or _by_blocks(history, last, found.rank, len(paths) + unread),
        step=note.step if note.usable else None,
        followed=followed,
        behind=tuple(log.rank for log in logs if log.silent) if found.known is TIMED_OUT else (),
        unread=unread,
    )


def _few(files: list[LogFile], first: int | None) -> tuple[list[tuple[int, LogFile]], int]:
    """Returns the logs of the rank that failed first and of others, FEW in all, and the number of the ranks that are
    left out; nothing if the first rank is unknown, or has no log."""
    own = log_of(files, first) if first is not None else None
    if first is None or own is None:
        return [], 0
    found = [(first, own)]
    for file in files:
        found += [(rank, file) for rank in ranks_in(file) if rank != first]
        if len(found) > FEW:
            break
    ranks = ranks_in(files[-1])[-1:] if files[-1].is_shared else [len(files) - 1]
    return found[:FEW], max(0, *ranks, first) + 1 - FEW if len(found) > FEW else 0


def _with_silent(files: Sequence[LogFile], named: Sequence[int | None]) -> list[tuple[int, LogFile]]:
    """Returns the ranks with their logs. A rank that is named, and has printed nothing into the log of its node, has
    that of the rank before it."""
    ranks = {rank: file for file in files for rank in ranks_in(file)}
    shared = sorted(rank for rank, file in ranks.items() if file.is_shared)
    for rank in shared and {each for each in named if each is not None} - ranks.keys():
        ranks[rank] = ranks[shared[max(0, bisect(shared, rank) - 1)]]
    return sorted(ranks.items())


def recorded_failure(history: RunHistory) -> FirstFailure | None:
    """Returns the failure; None if the records show that Slurm, the user or a node caused the end, not a rank."""
    last = _last_that_failed(history)
    if history.stopped_by_user:
        return None
    if last is not None and last.cause in BLAMELESS and _ran(history.run, last):
        return None
    return find_failure(history)


def _last_that_failed(history: RunHistory) -> AttemptHistory | None:
    """Returns the newest attempt that may have a failure. Skips attempts that ended at once because of the results of
    earlier attempts."""
    heard = (attempt for attempt in reversed(history.attempts) if attempt.heard)
    return next((attempt for attempt in heard if not _only_looked(history.run, attempt)), history.last)


def _only_looked(run: RunDir, attempt: AttemptHistory) -> bool:
    if attempt.cause == "gave-up":
        return not _ran(run, attempt)
    return (attempt.cause in FAULTS or attempt.cause == "stopped") and not attempt.ran


def _ran(run: RunDir, attempt: AttemptHistory) -> bool:
    """Returns whether the attempt started its program. The cause `gave-up` alone does not show it: an attempt may give
    up before or after its program's start."""
    logs = run.attempt(attempt.name).logs
    return bool(log_files(str(logs)) or agent_logs(logs))


def _of_hang(attempt: Attempt, hang: Record) -> FirstFailure:
    """Returns the failure of the rank that was behind in a hang. srun's messages are not used, because they only report
    how the ranks were ended."""
    told = hang.get("ranks")
    found = map(integer, told if isinstance(told, list) else [])
    ranks = [rank for rank in found if rank is not None and rank >= 0]
    try:
        with reading(attempt.hang) as file:
            lines = file.read(4096).decode(errors="replace").splitlines()[:MOST_LINES]
    except OSError:
        lines = []
    return FirstFailure(
        rank=ranks[0] if ranks else None,
        log=attempt.hang,
        lines=lines,
        node=str(hang.get("nodes") or ""),
        step=integer(hang.get("step")),
        error=str(hang.get("reason") or ""),
        known=BY_NAME["hung"],
        evidence="hang",
        behind=tuple(ranks),
        attempt=attempt.name,
    )


def _named(logs: Sequence[RankLog], note: ErrorNote) -> FirstFailure | None:
    """Returns the failure that clusterdp's ranks report. A note that contains only a consequence does not count."""
    by_rank = {log.rank: log for log in logs}
    if note.usable and note.rank in by_rank:
        return _of_log(by_rank[note.rank], "named", note.error)
    ends = [log.text[-2048:] for log in logs if log.echoes]
    named = {int(rank) for end in ends if b"another" in end for rank in NAMED.findall(end)}
    for rank in sorted(named & by_rank.keys()):
        log = by_rank[rank]
        if not log.echoes or log.own is not None:
            # The failed rank may have printed the reason in one line, without a traceback.
            return _of_log(log, "named", note.error if note.usable else "".join(log.excerpt()[-1:]))
    return None


def _recorded(logs: Sequence[RankLog], attempt: AttemptHistory) -> FirstFailure | None:
    log = next((log for log in logs if log.rank == attempt.failed_rank), None)
    by = "srun" if attempt.failed_error.startswith("srun: ") else "record"
    return _of_log(log, by, attempt.failed_error) if log is not None else None


def _by_srun(logs: Sequence[RankLog], said: Sequence[TaskMessage]) -> FirstFailure | None:
    """Returns the failure if srun's first message names a rank whose log has no error: the rank was killed, crashed in
    C, or just exited. If the rank just exited, another rank's failure may be the reason: an error in any log counts
    more than srun's message."""
    if not said:
        return None
    first = said[0]
    ours = [log for log in logs if log.rank in first.ranks]
    silent = next((log for log in ours if log.silent), None)
    if silent is None or (first.said.startswith("Exited") and any(log.own for log in logs)):
        return None
    return replace(_of_log(silent, "srun", first.line), said=first.said)


def _by_log(logs: Sequence[RankLog], said: Sequence[TaskMessage]) -> FirstFailure | None:
    """Returns the earliest failure among the logs that end in an error of their own. If no log does so, the logs that
    end in consequences are read further back, in the order in which srun reports the ranks."""
    order = {rank: at for at, message in reversed(list(enumerate(said))) for rank in message.ranks}

    def place(log: RankLog) -> tuple[bool, float, int, int]:
        # If consequences follow an error in its log, or lines of other ranks, the time of the error is unknown.
        written = 0.0 if log.echoes or log.file.is_shared else log.written
        return (log.echoes, written, order.get(log.rank, len(said)), log.rank)

    own = [log for log in logs if log.own is not None]
    if not own:
        floods = sorted((log for log in logs if log.echoes), key=lambda log: (order.get(log.rank, len(said)), log.rank))
        own = [log for log in map(looked_further, floods[:FLOODS]) if log.own is not None]
    return _of_log(min(own, key=place), "log") if own else None


def _by_agent(paths: Sequence[tuple[int, Path]], logs: Sequence[RankLog]) -> FirstFailure | None:
    """Returns the failure that torchrun's agents report for their ranks."""
    agents = [read_log(node, LogFile(node, str(log), False), 64 * 1024) for node, log in paths]
    by_rank = {log.rank: log for log in logs}
    for agent in agents:
        for cause in root_causes(agent.text.decode(errors="replace")):
            if (log := by_rank.get(cause.ranks[0])) is not None:
                return replace(_of_log(log, "agent", cause.line), said=cause.said)
    own = [agent for agent in agents if agent.own is not None]
    return replace(_of_log(min(own, key=lambda each: each.written), "agent"), rank=None) if own else None


def _by_echo(logs: Sequence[RankLog], said: Sequence[TaskMessage]) -> FirstFailure | None:
    """Returns the failure of a rank that a signal ended and whose log has no error. Without such a rank, returns the
    earliest failure that followed from another one; without any, the failure of the rank that srun names first."""
    if echoes := [log for log in logs if log.echoes]:
        silent = {log.rank: log for log in logs if log.silent}
        for message in (each for each in said if not each.said.startswith("Exited")):
            # A rank that has ended earlier had lost its connection.
            if log := next((silent[rank] for rank in message.ranks if rank in silent), None):
                return replace(_of_log(log, "srun", message.line), said=message.said)
        return _of_log(min(echoes, key=lambda log: (log.written, log.rank)), "echo")
    first = said[0].ranks if said else ()
    log = next((log for log in logs if log.rank in first), None)
    return _of_log(log, "srun", said[0].line) if log is not None else None


def _of_log(log: RankLog, evidence: str, told: str = "") -> FirstFailure:
    """Returns the failure that a log shows. `told` is the error that another source reports."""
    own = log.own
    if own is None and evidence == "echo":
        own = next(errors(log.text), None)
    error = own.line if own else told
    signature = own.known if own else None
    if signature is None and told:
        signature = known(told)
    if own is not None and own.known is None and signature is None and evidence == "named":
        error = told or error
    return FirstFailure(log.rank, log.path, log.excerpt(), error=error, known=signature, evidence=evidence)


def _of_setup(batch: Path, note: ErrorNote) -> FirstFailure | None:
    """Returns the failure if a line of launch.setup ended the attempt before a rank started."""
    signature = known(note.error)
    if signature is not BY_NAME["setup"]:
        return None
    return FirstFailure(
        None, batch, last_lines(batch, MOST_LINES), node=note.node, error=note.error, known=signature, evidence="setup"
    )


def _of_batch(batch: Path, part: str, attempt: str) -> FirstFailure:
    error = next((each for each in errors(part.rstrip().encode(), SLURMS_HINTS) if not each.consequence), None)
    shown = last_lines(batch, MOST_LINES)
    return FirstFailure(
        None,
        batch if batch.exists() else None,
        shown,
        error=error.line if error else "",
        known=error.known if error else None,
        attempt=attempt,
    )


def _with_memory(found: FirstFailure, part: str) -> FirstFailure:
    """Returns `found`, turned into a failure for lack of memory if the kernel killed a process in that attempt for this
    reason, and the rank was killed or lost a loader worker."""
    notice = OUT_OF_MEMORY.search(part)
    if notice is None or not (found.known is None or found.known.consequence or found.known.name in KILLED):
        return found
    return replace(found, known=BY_NAME["host-out-of-memory"], error=notice[0])


def _node_of(rank: int, note: ErrorNote, said: Sequence[TaskMessage]) -> str:
    if note.usable and note.rank == rank and note.node:
        return note.node
    return next((each.nodes for each in said if rank in each.ranks and not set("[,") & set(each.nodes)), "")


def _by_blocks(history: RunHistory, attempt: AttemptHistory, rank: int, ranks: int) -> str:
    """Returns the node of a rank, computed from Slurm's default distribution in blocks. Empty if the job asks for
    another distribution."""
    from clusterdp.slurm.hostlist import expand

    try:
        nodes = expand(attempt.nodes) if attempt.nodes else []
        script = read_plain(history.run.path / "job.sbatch", 1 << 20) if len(nodes) > 1 else b""
    except (OSError, ValueError):
        return ""
    if not nodes or ranks % len(nodes) or b"distribution" in script or rank >= ranks:
        return ""
    return nodes[rank * len(nodes) // ranks]


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() and len(word) < 10 else None
