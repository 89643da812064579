"""Attempts: the earlier ones of a job's chain, by their files.

Slurm itself requeues a job when a node fails, or when a preemption has no grace time. Such an attempt never came to
look at its own end, so its cause is found and written here.
"""

import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from .causes import Notice, last_notice, of_outcome
from .job import Job
from .record import Record
from .rules import Rules
from .slurm import Slurm
from .texts import LAST, number, read, words

NAME = re.compile(r"([0-9]+)(?:_[0-9]+)?\.([0-9]+)")
OF_MANIFEST = re.compile(r'"attempt":"([^"]+)"')
LOST = "lost"


class Attempt(NamedTuple):
    """word, reason: the ranks' outcome; empty if they have left none. code: of its step. took: seconds, if known.
    over_at: seconds since 1970. last_event: of its batch program, as it stands in the ledger. avoid: its bad nodes.
    is_news: it had recorded no cause, which was found now."""

    name: str
    cause: str
    word: str = ""
    reason: str = ""
    code: str = ""
    took: Optional[int] = None
    over_at: Optional[int] = None
    saved: bool = False
    last_event: str = ""
    avoid: Tuple[str, ...] = ()
    is_news: bool = False

    @property
    def job(self) -> str:
        return self.name.rpartition(".")[0]


def read_attempts(job: Job, rules: Rules, record: Record, slurm: Slurm) -> List[Attempt]:
    """Those before this one, the oldest first. If there are later ones, they have replaced this one."""
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
    for name in sorted(filter(NAME.fullmatch, job.attempts()), key=_order):
        if name == job.attempt:
            return
        yield name


def _order(name: str) -> Tuple[int, ...]:
    found = NAME.fullmatch(name)
    assert found is not None
    return int(found.group(1)), int(found.group(2))


def _read(job: Job, rules: Rules, record: Record, slurm: Slurm, name: str, saves: Dict[str, int]) -> Attempt:
    folder = job.folder_of(name)
    cause = "".join(words(os.path.join(folder, "cause"))[:1])
    word, reason = "", ""
    # An attempt that is taken for lost may still run on a node that was cut off. What it writes later does not count.
    if cause != LOST:
        word, reason = ([*words(os.path.join(folder, "outcome")), "", ""])[:2]
    code, took, over_at = ([*words(os.path.join(folder, "exit")), "", "", ""])[:3]
    found = Attempt(
        name, cause, word, reason, code, number(took), number(over_at), _has_saved(record, name, saves, job)
    )
    if not cause:
        found = _with_cause(found, job, rules, record, slurm)
    return found._replace(
        avoid=tuple(words(os.path.join(folder, "avoid"))),
        last_event=last_event(read(os.path.join(job.run, "events", name + "-batch.jsonl"), 4096)),
    )


def last_event(ledger: str) -> str:
    """The last line of a ledger. A notification that was sent after it ends nothing."""
    lines = [line for line in ledger.split("\n") if line and '"event":"told"' not in line]
    return lines[-1] if lines else ""


def _with_cause(found: Attempt, job: Job, rules: Rules, record: Record, slurm: Slurm) -> Attempt:
    """The attempt with a cause, if it has recorded none: by its ranks' outcome, by Slurm's words, or `lost`."""
    began = [*words(os.path.join(job.folder_of(found.name), "began")), "", "", "", ""]
    noticed = _by_notice(job, began[1])
    cause = of_outcome(found.word, found.reason)
    if cause == "preempted":
        cause = noticed or cause
    elif not cause:
        # The file is there, and empty: the disk was full.
        is_empty = os.path.exists(os.path.join(job.folder_of(found.name), "cause"))
        cause = noticed or ("disk" if is_empty else LOST)
        found = _look_back(found, job, record, number(began[0]))
        if cause in (LOST, "node-lost") and rules.policy("node-lost").avoid:
            record.note_of(found.name, "avoid", " ".join(slurm.down_nodes(began[3])))
    record.note_of(found.name, "cause", cause)
    record.event("requeued", cause=cause, of=found.name)
    return found._replace(cause=cause, is_news=True)


def _by_notice(job: Job, since: str) -> str:
    """The cause in Slurm's notice on the attempt before this one; empty if the notice is older than that attempt."""
    notice = last_notice_before(job)
    if notice is None or not since or notice.stamp < since or notice.cause == "cancelled":
        return ""
    return notice.cause


def last_notice_before(job: Job) -> Optional[Notice]:
    """The last notice of slurmstepd, which names the end of the attempt before this one."""
    return last_notice(read(job.output(job.replaced_log), LAST))


def _look_back(found: Attempt, job: Job, record: Record, began: Optional[int]) -> Attempt:
    """How long it ran, by what it wrote last."""
    folder = job.folder_of(found.name)
    logs = os.path.join(folder, "logs")
    try:
        written = [os.path.join(logs, name) for name in os.listdir(logs) if name.endswith(".out")]
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
    """On a full disk it has no file `saved`: then its checkpoints show it."""
    if os.path.exists(os.path.join(job.folder_of(name), "saved")):
        return True
    if name not in saves:
        return False
    record.note_of(name, "saved", str(saves[name]))
    return True


def _saves(job: Job, rules: Rules) -> Dict[str, int]:
    """By attempt, the last step that the checkpoints have of it."""
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
    except OSError:  # there is none, or it is not a folder of this machine
        return
    for name in steps:
        try:
            files = os.listdir(os.path.join(folder, name))
        except OSError:
            continue
        for file in files:
            if file.startswith("MANIFEST.") and file.endswith(".json"):
                yield int(name[5:]), os.path.join(folder, name, file)
