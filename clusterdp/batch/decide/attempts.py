"""Attempts: the earlier attempts of a job's chain, read from their files.

Slurm itself requeues a job when a node fails, or when a preemption has no grace time. Such an attempt could not record
its own end: this module finds and writes its cause.
"""

import json
import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..files.causes import FAULTS, Notice, last_notice, of_outcome
from ..files.job import Job
from ..files.record import Record
from ..files.rules import Rules
from ..files.texts import LAST, number, read, words
from ..processes.slurm import Slurm

NAME = re.compile(r"([0-9]+)(?:_[0-9]+)?\.([0-9]+)(?:\.([0-9]+))?")
OF_MANIFEST = re.compile(r'"attempt":"([^"]+)"')
LOST = "lost"


class Attempt(NamedTuple):
    name: str
    cause: str
    word: str = ""  # first word of the ranks' outcome, to which `reason` belongs; empty without an outcome
    reason: str = ""
    code: str = ""  # exit code of the attempt's step
    took: Optional[int] = None  # duration in seconds; None if unknown
    over_at: Optional[int] = None  # end in seconds since 1970
    saved: bool = False
    last_event: str = ""  # last line of the attempt's batch program in the ledger
    avoid: Tuple[str, ...] = ()  # the attempt's bad nodes
    is_news: bool = False  # whether this attempt has found the cause, because none was on record

    @property
    def job(self) -> str:
        return self.name.partition(".")[0]


def read_attempts(job: Job, rules: Rules, record: Record, slurm: Slurm) -> List[Attempt]:
    """Returns the attempts before this one, the oldest first. Later attempts, which have replaced this attempt, are
    left out."""
    found = []
    saves: Optional[Dict[str, int]] = None
    for name in earlier_names(job):
        folder = job.folder_of(name)
        if words(os.path.join(folder, "chain")) != [job.chain]:
            continue
        if not os.path.exists(os.path.join(folder, "saved")) and saves is None:
            saves = _saves(job, rules)
        found.append(_read(job, rules, record, slurm, name, saves or {}))
    return found


def earlier_names(job: Job) -> Iterator[str]:
    for name in names_in_order(job.attempts()):
        if name == job.attempt:
            return
        yield name


def names_in_order(names: List[str]) -> List[str]:
    """Returns the names of attempts, the oldest first."""
    return sorted(filter(NAME.fullmatch, names), key=_order)


def rival(job: Job, slurm: Slurm) -> str:
    """Returns another job that runs the program of this run; empty if there is none. Of two jobs that begin at the same
    time, the newer one finds the other. Jobs of one chain follow each other."""
    for name in filter(NAME.fullmatch, job.attempts()):
        other, folder = name.partition(".")[0], job.folder_of(name)
        if (
            other == job.id
            or words(os.path.join(folder, "chain")) == [job.chain]
            or words(os.path.join(folder, "cause"))
        ):
            continue
        has_begun = os.path.exists(os.path.join(folder, "began")) or _order(name) < _order(job.attempt)
        if has_begun and slurm.is_alive(other, job.script):
            return other
    return ""


def newest_life(job: Job) -> int:
    """Returns the number of the last life since Slurm has started the script."""
    start = "{}.{}".format(job.id, job.restart)
    lives = (NAME.fullmatch(name) for name in job.attempts() if name == start or name.startswith(start + "."))
    return max((number(found.group(3) or "") or 0 for found in lives if found), default=0)


def _order(name: str) -> Tuple[int, ...]:
    found = NAME.fullmatch(name)
    assert found is not None
    return tuple(int(number or 0) for number in found.groups())


def _read(job: Job, rules: Rules, record: Record, slurm: Slurm, name: str, saves: Dict[str, int]) -> Attempt:
    folder = job.folder_of(name)
    last = last_event(read(os.path.join(job.run, "events", name + "-batch.jsonl"), 4096))
    # The folder of the attempts may have taken no files for a while: an absent note is no evidence.
    cause = "".join(words(os.path.join(folder, "cause"))[:1]) or _recorded_cause(last, name)
    word, reason = "", ""
    # Ranks of an attempt that counts as lost may still run on a disconnected node, and ranks of a failed attempt beside
    # those of the next one. An outcome that they leave from now on does not count.
    if cause != LOST and cause not in FAULTS:
        word, reason = ([*words(os.path.join(folder, "outcome")), "", ""])[:2]
    code, took, over_at = ([*words(os.path.join(folder, "exit")), "", "", ""])[:3]
    found = Attempt(
        name, cause, word, reason, code, number(took), number(over_at), _has_saved(record, name, saves, job)
    )
    if not cause:
        found = _with_cause(found, job, rules, record, slurm)
    return found._replace(avoid=tuple(words(os.path.join(folder, "avoid"))), last_event=last)


def last_event(ledger: str) -> str:
    """Returns the last line of a ledger, notifications left out, because a notification does not end an attempt."""
    lines = [line for line in ledger.split("\n") if line and '"event":"told"' not in line]
    return lines[-1] if lines else ""


def _recorded_cause(event: str, name: str) -> str:
    """Returns the cause in the last event of an attempt's ledger; empty if the event is not the attempt's end."""
    try:
        values = json.loads(event)
        is_end = values["event"] in ("requeued", "restarted", "finished", "cancelled")  # a fault alone may go on
        return str(values["cause"]) if is_end and values.get("of", name) == name else ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _with_cause(found: Attempt, job: Job, rules: Rules, record: Record, slurm: Slurm) -> Attempt:
    """Adds the cause to an attempt that has recorded none. The cause comes from the outcome of its ranks or from
    Slurm's notice, or is `lost`."""
    began = [*words(os.path.join(job.folder_of(found.name), "began")), "", "", "", ""]
    noticed = _by_notice(job, began[1])
    cause = of_outcome(found.word, found.reason)
    if cause == "preempted":
        cause = noticed or cause
    elif not cause:
        # If the file `cause` exists and is empty, the disk was full.
        is_empty = os.path.exists(os.path.join(job.folder_of(found.name), "cause"))
        cause = noticed or ("disk" if is_empty else LOST)
        found = _look_back(found, job, record, number(began[0]))
        if cause in (LOST, "node-lost") and rules.policy("node-lost").avoid:
            known = words(os.path.join(job.folder_of(found.name), "avoid"))
            record.note_of(found.name, "avoid", " ".join(dict.fromkeys([*known, *slurm.down_nodes(began[3])])))
    record.note_of(found.name, "cause", cause)
    record.event("requeued", cause=cause, of=found.name)
    return found._replace(cause=cause, is_news=True)


def _by_notice(job: Job, since: str) -> str:
    """Returns the cause in Slurm's notice on the previous attempt; empty if the notice is older than that attempt."""
    notice = last_notice_before(job)
    if notice is None or not since or notice.stamp < since or notice.cause == "cancelled":
        return ""
    return notice.cause


def last_notice_before(job: Job) -> Optional[Notice]:
    """Returns the last notice of slurmstepd, which names the reason for the end of the previous attempt."""
    return last_notice(read(job.output(job.replaced_log), LAST))


def _look_back(found: Attempt, job: Job, record: Record, began: Optional[int]) -> Attempt:
    """Returns the attempt with its end and duration, which come from the times of its last writes."""
    folder = job.folder_of(found.name)
    logs = os.path.join(folder, "logs")
    try:
        written = [os.path.join(logs, name) for name in os.listdir(logs) if name != "keepers.log"]
    except OSError:
        written = []
    times = []
    for path in [os.path.join(folder, "began"), os.path.join(job.run, "metrics", found.name + ".jsonl"), *written]:
        try:
            times.append(int(os.stat(path).st_mtime))
        except OSError:
            pass
    over_at = max(times) if times else None
    took = over_at - began if over_at is not None and began is not None and over_at >= began else 0
    record.note_of(found.name, "exit", "- {} {}".format(took, "" if over_at is None else over_at))
    return found._replace(code="-", took=took, over_at=over_at)


def _has_saved(record: Record, name: str, saves: Dict[str, int], job: Job) -> bool:
    """Returns whether the attempt has saved. On a full disk, the file `saved` is missing; then the checkpoints show
    whether the attempt has saved."""
    if os.path.exists(os.path.join(job.folder_of(name), "saved")):
        return True
    if name not in saves:
        return False
    record.note_of(name, "saved", str(saves[name]))
    return True


def _saves(job: Job, rules: Rules) -> Dict[str, int]:
    """Returns the last step of each attempt, by the attempt's name, from the checkpoints."""
    found: Dict[str, int] = {}
    folders = dict.fromkeys([os.path.join(job.run, "checkpoints"), rules.checkpoint_url])
    for folder in filter(None, folders):
        for step, manifest in sorted(_manifests(folder)):
            for name in OF_MANIFEST.findall(read(manifest)):
                found[name] = step
    return found


def _manifests(folder: str) -> Iterator[Tuple[int, str]]:
    try:
        steps = [name for name in os.listdir(folder) if re.fullmatch(r"step_[0-9]+", name)]
    except OSError:  # the folder is missing, or is not on this machine
        return
    for name in steps:
        try:
            files = os.listdir(os.path.join(folder, name))
        except OSError:
            continue
        for file in files:
            if file.startswith("MANIFEST.") and file.endswith(".json"):
                yield int(name[5:]), os.path.join(folder, name, file)
