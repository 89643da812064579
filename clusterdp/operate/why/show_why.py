"""`clusterdp why`: prints why a run waits, failed, or is over, as text or as JSON."""

from __future__ import annotations

import json
import os
import pwd
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from clusterdp.batch.files.causes import CAUSES, FAULTS
from clusterdp.batch.files.rules import Rules, read_rules
from clusterdp.errors import SlurmError
from clusterdp.operate.output.formatting import Colour, ago, clock, shown_path
from clusterdp.operate.output.terminal import ENDLESS, filled, width_of
from clusterdp.operate.queue.pending_reasons import Reason, explain
from clusterdp.operate.queue.predecessor import waits_for
from clusterdp.operate.queue.run_status import NEVER, WAITS, RunStatus, current_status
from clusterdp.operate.record.ending import STOPPED_BY, ending_text, not_repeated
from clusterdp.operate.record.next_command import next_command_lines
from clusterdp.operate.record.run_history import RunHistory, newest, read_history
from clusterdp.operate.record.run_state import NOT_DONE, RunState
from clusterdp.operate.record.standstill import hang_of, silent_since, silent_text, stragglers_of, stragglers_text
from clusterdp.operate.why import failure_words
from clusterdp.operate.why.first_failure import FirstFailure, find_failure, recorded_failure
from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import time_of
from clusterdp.slurm.hostlist import hosts_of
from clusterdp.slurm.quantities import megabytes_of
from clusterdp.wording import counted

if TYPE_CHECKING:
    from clusterdp.slurm.nodes import NodeGroup


NODES_MAY_DO = frozenset({"Resources", "Priority", "PartitionNodeLimit", "PartitionConfig", "ReqNodeNotAvail"})
OF_NODES = ("BadConstraints", "Constraints", "ReqNodeNotAvail", "NodeDown", "Nodes required", "PartitionConfig")


def show_why(run: RunDir, out: TextIO, as_json: bool = False, now: float | None = None) -> None:
    now = time.time() if now is None else now
    history = read_history(run)
    found = explanation(history, current_status(history), now)
    if as_json:
        json.dump(as_data(found), out, indent=2)
        out.write("\n")
        return
    out.write("\n".join(as_text(found, Colour(out), width_of(out))) + "\n")


def as_text(found: Explanation, colour: Colour, columns: int = ENDLESS) -> list[str]:
    history, state = found.history, found.status.state
    named = colour(state.colour, state.value)
    run = filled(colour("dim", "run".ljust(6)) + " ", shown_path(history.run.path), columns)
    lines = [f"{colour('bold', history.name)}  {named}", *run, *why_lines(found, colour, columns)]
    return [*lines, "", *next_command_lines(history, state, colour, columns, but="why")]


def why_lines(found: Explanation, colour: Colour, columns: int) -> list[str]:
    """Returns the facts, and the lines of the log that show the failure, as lines to print."""
    history, state = found.history, found.status.state
    lines = []
    for key, words in found.facts:
        lines += filled(colour("dim", key.ljust(6)) + " ", words, columns)
    if found.failure is not None and state is not RunState.WAITING:
        lines += ["", *_log_lines(found.failure, colour)]
        if (behind := found.failure.behind) and found.failure.evidence != "hang":
            lines.append(f"  that of rank {behind[0]}: {_logs_of(history, behind[0])}")
        elif rank := found.failure.rank:  # `clusterdp logs` shows rank 0 by default
            what = "what it printed" if found.failure.evidence == "hang" else "all of it"
            lines.append(f"  {what}: {_logs_of(history, rank)}")
    return lines


def _logs_of(history: RunHistory, rank: int) -> str:
    return f"clusterdp logs {shown_path(history.run.path)} --rank {rank}"


def _log_lines(failure: FirstFailure, colour: Colour) -> list[str]:
    """Returns the lines of the log that show the failure best."""
    if failure.log is None:
        return ["No log was written."]
    lines = [f"{shown_path(failure.log)}:"]
    nothing = "  (it is empty)" if failure.rank is None else f"  (rank {failure.rank} printed nothing)"
    return lines + ([f"  {colour('dim', '|')} {line}" for line in failure.lines] or [nothing])


def as_data(found: Explanation) -> dict[str, Any]:
    """Returns the values that --json prints; json.schema.json describes them. A value that is unknown is None."""
    history, status, request, failure = found.history, found.status, found.request, found.failure
    reason = status.row.reason if status.row and status.row.state in WAITS else None
    known = reason_of(history, reason, request) if reason else None
    return {
        "name": history.name,
        "run": str(history.run.path),
        "state": status.state.value,
        "why": status.why,
        "job": history.job,
        "facts": [list(fact) for fact in found.facts],
        "pending": None
        if reason is None
        else {
            "reason": reason,
            "words": known.words if known else None,
            "do": known.do.replace("JOB", history.job or "JOB") if known and known.do else None,
            "never_starts": known.stuck if known else None,
            "partition": request.partition if request else None,
            "nodes": request.nodes if request else None,
            "start_estimate_at": request.start if request else None,
            "smaller": found.smaller or None,
        },
        "failure": None
        if failure is None
        else {
            "attempt": failure.attempt or None,
            "rank": failure.rank,
            "node": failure.node or None,
            "step": failure.step,
            "signature": failure.known.name if failure.known else None,
            "cause": failure.known.cause if failure.known else None,
            "remedy": failure_words.remedy(history, failure) or None,
            "error": failure.error or None,
            "evidence": failure.evidence,
            "srun": failure.said or None,
            "log": str(failure.log) if failure.log else None,
            "lines": failure.lines,
            "followed": list(failure.followed),
            "behind": list(failure.behind),
            "unread": failure.unread,
        },
    }


@dataclass(frozen=True)
class Explanation:
    """The answer that `clusterdp why` prints."""

    history: RunHistory
    status: RunStatus
    facts: list[tuple[str, str]] = field(default_factory=list)  # pairs (key, words), the most important first
    failure: FirstFailure | None = None  # the failure of a failed run, or of a waiting run's last attempt
    request: Request | None = None  # the request of a pending job
    smaller: str = ""  # a smaller request for a pending job, see smaller()


def explanation(history: RunHistory, status: RunStatus, now: float) -> Explanation:
    if status.state is RunState.WAITING:
        return _of_a_wait(history, status, now)
    if status.state is RunState.RUNNING:
        return Explanation(history, status, _of_running(history, status, now) + not_repeated(history.attempts))
    if status.state in NOT_DONE:
        failure = recorded_failure(history)
        facts = _of_an_end(history, status, now, failure)
        facts += failure_words.facts(history, failure) if failure else []
        facts += not_repeated(history.attempts)
        return Explanation(history, status, facts, failure)
    return Explanation(history, status, _of_an_end(history, status, now) + not_repeated(history.attempts))


def _of_a_wait(history: RunHistory, status: RunStatus, now: float) -> Explanation:
    row, job = status.row, history.job
    if row is None or row.state not in WAITS or job is None:
        return Explanation(history, status, [("why", status.why or "it has not begun, by its records")])
    request = read_request(job)
    known = reason_of(history, row.reason, request)
    fewer = smaller(request, row.reason) if request else ""
    facts = [("job", f"{job} in {request.partition}" if request and request.partition else job)]
    facts.append(("reason", f"{row.reason}: {known.words}" if known else row.reason))
    if waits := waits_for(history) if row.reason in ("Dependency", NEVER) else "":
        facts.append(("waits", waits))
    if request and request.nodes:
        facts.append(("asks", request.in_words()))
    facts += _start(request, row.reason, now)
    if fewer:
        facts.append(("less", fewer))
    if change := re.search(r"resources\.\S+=\S+", fewer):
        run = shown_path(history.run.path)
        facts.append(("by", f"`clusterdp cancel {run}`, then `clusterdp resume {run} {change[0]}`"))
    if known and known.do and not waits:
        facts.append(("do", known.do.replace("JOB", job)))
    failure = None
    last = newest(history.attempts)
    if last is not None and last.job == job and last.cause in FAULTS:
        failure = find_failure(history)
        facts.append(("before", f"attempt {last.number} {ending_text(last)}"))
        facts += [fact for fact in failure_words.facts(history, failure) if fact[0] in ("first", "cause", "error")]
    return Explanation(history, status, facts, failure, request, fewer)


def reason_of(history: RunHistory, reason: str, request: Request | None) -> Reason | None:
    """Returns the explanation of a reason, and the remedy if the job may wait because the run avoids nodes: the batch
    program leaves enough nodes in ExcNodeList, but others may have failed since."""
    known = explain(reason)
    if known is None or request is None or not reason.strip("(").startswith(OF_NODES):
        return known
    try:
        rules = read_rules(str(history.run.path / "batch"))
    except (OSError, ValueError):
        rules = Rules()
    avoided = sorted(hosts_of(request.excluded) - hosts_of(rules.exclude))
    if not avoided:
        return known
    words = f"{known.words}; and the run avoids {', '.join(avoided)}"
    return Reason(words, f"`scontrol update JobId=JOB ExcNodeList={rules.exclude}` lets it have them", known.stuck)


def _start(request: Request | None, reason: str, now: float) -> list[tuple[str, str]]:
    if request is None:
        return []
    if request.start is None or request.start <= now:
        stuck = explain(reason)
        return [] if stuck and stuck.stuck else [("start", "Slurm has no estimate")]
    when = clock(request.start, now)
    if reason == "BeginTime":
        return [("start", f"{when} at the earliest")]
    return [("start", f"{when}, as Slurm estimates it: other jobs may end earlier, or come before it")]


def _of_running(history: RunHistory, status: RunStatus, now: float) -> list[tuple[str, str]]:
    last = newest(history.attempts)
    facts = [("why", "it runs" + (f" ({status.why})" if status.why else ""))]
    if last is None:
        return facts
    since = f", since {clock(last.started, now)}" if last.started else ""
    facts.append(("where", f"attempt {last.number} on {last.where or 'its nodes'}{since}"))
    if history.step is not None:
        heard = f", {ago(history.measured_at, now)}" if history.measured_at else ""
        facts.append(("step", f"{history.step}{heard}"))
    if silent := silent_since(history, last):
        facts.append(("silent", silent_text(silent, now)))
    if hang := hang_of(history, last):
        facts += [("hang", str(hang.get("reason"))), ("see", shown_path(history.run.attempt(last.name).hang))]
    if slow := stragglers_of(history, last):
        facts.append(("slow", stragglers_text(slow)))
    return facts


def _of_an_end(
    history: RunHistory, status: RunStatus, now: float, failure: FirstFailure | None = None
) -> list[tuple[str, str]]:
    facts = [("ended", words)] if (words := _how_it_ended(history, status, now, failure)) else []
    if (faults := sum(attempt.cause in FAULTS for attempt in history.ran)) > 1:
        facts.append(("tried", f"{faults} attempts ended with a fault; this is the last"))
    last = history.last if status.state is not RunState.DONE else None
    if last is not None and (silent := silent_since(history, last)):
        facts.append(("silent", "at its end, " + silent_text(silent, now)))
    if status.state is RunState.VANISHED:
        if history.job:
            facts.append(("see", f"`sacct -j {history.job} -o JobID,State,ExitCode,End`, if your site keeps accounts"))
        facts += _of_another(history)
    return facts


def _how_it_ended(history: RunHistory, status: RunStatus, now: float, failure: FirstFailure | None) -> str:
    last, words = history.last, STOPPED_BY.get(status.why, status.why)
    cause = CAUSES.get(last.cause, last.cause) if last is not None else ""
    if status.state is RunState.DONE:
        return words or ("it finished" if history.step is None else f"it finished at step {history.step}")
    if status.state is RunState.FAILED and last is not None and last.exit is not None and last.cause in FAULTS:
        return f"{cause} ({failure_words.exit_words(last.exit, failure)})" + (f"; {words}" if words else "")
    asked = next((e for e in reversed(history.events) if e.get("event") in ("cancelled", "stop-asked")), None)
    when = f", {ago(time_of(asked), now)}" if asked is not None else ""
    if status.state is RunState.CANCELLED and history.cancelled:
        return "by `clusterdp cancel`" + when + (f"; {words}" if words else "")
    if last is not None and last.stopped_by_user:
        return f"by {last.why}" + (f" at step {last.last_step}" if last.last_step is not None else "") + when
    return words or cause


def _of_another(history: RunHistory) -> list[tuple[str, str]]:
    """Returns a note if the run is another user's: at sites with PrivateData=jobs, squeue hides the jobs of other
    users."""
    try:
        owner = history.run.path.stat().st_uid
        name = pwd.getpwuid(owner).pw_name
    except (OSError, KeyError):
        return []
    return [] if owner == os.getuid() else [("note", f"the run is {name}'s, whose jobs Slurm may hide from you")]


@dataclass(frozen=True)
class Request:
    """The resources that a job requests. CPUs, memory and GPUs are sums over all nodes."""

    partition: str = ""
    nodes: int = 0
    cpus: int = 0
    memory_mb: float = 0.0
    gpus: int = 0
    time: str = ""
    features: str = ""
    tied: bool = False  # True: the job needs named nodes or a reservation
    excluded: str = ""  # ExcNodeList
    start: float | None = None  # start time that Slurm estimates, or the earliest that the job allows

    @classmethod
    def read(cls, job: Mapping[str, str]) -> Request:
        """Returns the request that the output of `scontrol show job` shows; a field that is missing there is empty."""
        tres = dict(each.split("=", 1) for each in job.get("ReqTRES", job.get("TRES", "")).split(",") if "=" in each)
        features = job.get("Features", "(null)")
        none = ("(null)", "")
        return cls(
            partition=job.get("Partition", ""),
            nodes=_number(tres.get("node", job.get("NumNodes", "").partition("-")[0])),
            cpus=_number(tres.get("cpu", job.get("NumCPUs", ""))),
            memory_mb=megabytes_of(tres.get("mem", "")) or 0.0,
            gpus=_number(tres.get("gres/gpu", "")),
            time=job.get("TimeLimit", ""),
            features="" if features in none else features,
            tied=any(job.get(key, "(null)") not in none for key in ("ReqNodeList", "Reservation")),
            excluded=job.get("ExcNodeList", ""),
            start=_time(job.get("StartTime", "")),
        )

    def in_words(self) -> str:
        """Returns the request as text, for example `4 nodes, 32 CPUs, 32 GPUs, 4:00:00 of time`."""
        words = [counted(self.nodes, "node"), counted(self.cpus, "CPU")]
        words += [counted(self.gpus, "GPU")] if self.gpus else []
        return ", ".join([*words, *([f"{self.time} of time"] if self.time else [])])

    def fits(self, group: NodeGroup) -> bool:
        """Returns whether a node of this group of equal nodes has the CPUs, memory, GPUs and features that the job
        needs."""
        each = self.nodes or 1
        return (
            group.cpus * each >= self.cpus
            and group.memory_mb * each >= self.memory_mb
            and group.gpus * each >= self.gpus
            and (not self.features or self.features in group.features)
        )


def read_request(job: str) -> Request | None:
    """Returns the request of a job; None if scontrol does not know the job, or does not answer."""
    from clusterdp.slurm import commands

    try:
        return Request.read(commands.show_job(job))
    except SlurmError:
        return None


def smaller(request: Request, reason: str) -> str:
    """Returns the text of a smaller request that would fit the nodes that sinfo shows; empty if no such request is
    known."""
    from clusterdp.slurm import commands

    key = reason.split(",")[0].strip("()")
    if "," in request.partition or not request.partition or request.tied:
        return ""
    try:
        groups = commands.node_groups(request.partition)
    except SlurmError:
        return ""
    if key == "PartitionTimeLimit" and groups:
        return f"{request.partition} allows {groups[0].time_limit}: resources.time={groups[0].time_limit}"
    return _fewer_nodes(request, groups, key) if key in NODES_MAY_DO else ""


def _fewer_nodes(request: Request, groups: Sequence[NodeGroup], key: str) -> str:
    partition = request.partition
    most = min((int(each.most_nodes) for each in groups if each.most_nodes.isdecimal()), default=None)
    all_there = sum(group.nodes for group in groups)
    if most is not None and request.nodes > most:
        return f"{partition} allows {counted(most, 'node')} a job: resources.nodes={most}"
    if request.nodes > all_there > 0:
        return f"{partition} has {counted(all_there, 'node')} in all"
    idle = sum(group.nodes for group in groups if group.state == "idle" and request.fits(group))
    if not 0 < idle < request.nodes:
        return ""
    first = " if no job comes before it" if key == "Priority" else ""
    has = "is" if idle == 1 else "are"
    return f"{idle} of {request.nodes} {has} idle in {partition}: resources.nodes={idle} could start now{first}"


def _number(word: str) -> int:
    return int(word) if word.isdecimal() and len(word) < 12 else 0


def _time(stamp: str) -> float | None:
    try:
        return time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
