"""The failure of a program: its reason in the logs and in Slurm's lines, and the decision that follows from it."""

import os
import re
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..decide import evidence
from ..decide.decisions import Decision
from ..decide.end import Ended, by_fault, by_srun
from ..decide.evidence import (
    END,
    Failure,
    Mistake,
    failure_of,
    fault_of,
    is_repeated,
    mistake_from,
    mistake_of,
    own_error,
)
from ..files.rank_logs import ends_in, log_file, log_files, log_of
from ..files.texts import lines, read, size, words
from .ending import Ending

OF_AGENT = re.compile(r"node-([0-9]+)\.out$")  # of torchrun
NAME = "rank-{:05d}.out"


def last_words(folder: str) -> Dict[str, str]:
    """Returns the last bytes of the log of each rank and agent, ordered by the time of the last write."""
    try:
        with os.scandir(folder) as files:
            found = sorted((file.stat().st_mtime, file.name) for file in files)
    except OSError:
        return {}
    ends: Dict[str, str] = {}
    for _, name in found:
        log = log_file(folder, name)
        if log:
            ends.update((NAME.format(rank), os.fsdecode(end)) for rank, end in ends_in(log, END).items())
        elif OF_AGENT.match(name):
            ends[name] = read(os.path.join(folder, name), END)
    return ends


def has_taken_port(folder: str) -> bool:
    """Returns whether rank 0, or the first agent, has found its port taken."""
    first = log_of(log_files(folder), 0)
    paths = (first.path if first else "", os.path.join(folder, "node-00000.out"))
    return any(evidence.has_taken_port(read(path)) for path in paths)


def has_own_error(ends: Mapping[str, str]) -> bool:
    """Returns whether a rank has an error that was not caused by the end of another rank."""
    return any(own_error(ends[name]) for name, _ in _ranks(ends))


def after_failure(
    ending: Ending, ended: Ended, said: str, ends: Mapping[str, str], nodes: str, hosts: Sequence[str]
) -> Decision:
    """Returns the decision after a failure of the program itself, which depends on the reason of the failure. said: the
    job's output in this attempt. ends: from last_words(). nodes: the nodes of the ranks. hosts: names of the first
    node, which do not make an error another one."""
    job = ending.job
    refusal = "" if ends or ended.in_setup else evidence.refusal_of(said)
    if refusal:
        is_mistake = not evidence.FOR_A_WHILE.search(refusal)
        # The nodes do not matter, and so an attempt stands for its nodes.
        mistake = mistake_of(Failure(refusal, job.attempt), ended.took_s, hosts) if is_mistake else None
        return by_srun(refusal, _is_repeated(ending, mistake), ended, ending.history, ending.rules)
    is_hung = os.path.exists(job.file("hung"))
    started = ended.saved or size(os.path.join(job.run, "metrics", job.attempt + ".jsonl")) > 0
    fault = fault_of(list(ends.values()), said, is_hung, ended.took_s, started)
    failure, logs = Failure(), {rank: ends[name] for name, rank in _ranks(ends)}
    if is_hung:  # clusterdp has ended the ranks, and srun may report a healthy rank as killed
        ending.avoid("hung", words(job.file("hung")))
    else:
        note = lines(job.file("error")) if os.path.exists(job.file("error")) else []
        by_agents = any(name.startswith("node-") for name in ends)
        failure = failure_of(note, said, logs, by_agents)
    failure = failure._replace(node=failure.node or nodes)
    if fault.cause != "hung" and (failure.error or failure.reported) and not re.search(r"[][,]", failure.node):
        ending.once = failure.node  # the next attempt shows whether the program also fails on another node
    mistake = mistake_of(failure, ended.took_s, hosts)
    if mistake and evidence.is_of_an_image(failure, said, logs):
        mistake = mistake._replace(node=job.attempt)  # as above
    return by_fault(ended, fault, failure, ending.history, ending.rules, lambda: _is_repeated(ending, mistake))


def _is_repeated(ending: Ending, mistake: Optional[Mistake]) -> bool:
    if mistake is None:
        return False
    ending.record.note("mistake", mistake.as_text())
    if ending.job.has_saved():
        return False
    found = (mistake_from(lines(os.path.join(ending.job.folder_of(name), "mistake"))) for name in ending.history.since)
    earlier: List[Mistake] = [each for each in found if each is not None and each.what == mistake.what]
    return bool(earlier) and is_repeated(mistake, earlier, len(ending.usable_nodes()) > ending.rules.job_nodes)


def _ranks(names: Iterable[str]) -> List[Tuple[str, int]]:
    found = [(name, log_file("", name)) for name in names]
    return [(name, log.number) for name, log in found if log]
