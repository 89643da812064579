"""Preflight: one task on each node looks at it, before the ranks start (clusterdp/train/preflight).

What the tasks print comes here through srun, and so also from a node that cannot write to the run folder. Pure."""

import re
from typing import Dict, List, NamedTuple, Sequence

from .evidence import TASKS_ENDED
from .nodes import FAILED_LAUNCH, not_launched
from .record import one_line

NO_NODE = "-"  # a failure of the preflight itself


class Result(NamedTuple):
    """failures: of a node or of the preflight itself, what is wrong. bad: the nodes that are to blame: none if all have
    failed in the same way, because then the preflight itself could not run. remarks: what nodes print besides."""

    failures: Dict[str, str]
    bad: List[str]
    remarks: Dict[str, str]


def result_of(output: str, nodes: Sequence[str], dead: Sequence[str]) -> Result:
    """output: of its step. nodes: of the job. dead: the first whose task died, or where srun could launch none. A task
    always exits with 0, so one that does not has died, and srun has ended the tasks of all nodes then."""
    said = {
        found.group(1): found.group(2) for found in re.finditer(r"^preflight (\S+) failed (.*)$", output, re.MULTILINE)
    }
    well = set(re.findall(r"^preflight (\S+) ok", output, re.MULTILINE))
    remarks = dict(re.findall(r"^preflight (\S+) says (.*)$", output, re.MULTILINE))
    how = _how(output)
    failures, heard = {}, False
    for node in [*list(nodes), NO_NODE]:
        if node in said:
            failures[node], heard = said[node], True
        elif node == NO_NODE:
            continue
        elif dead:
            if node in dead:
                failures[node], heard = how, True
        elif node in well:
            heard = True
        else:
            failures[node] = "left no result"
    failures = {node: one_line(words) for node, words in failures.items()}
    bad = [node for node in failures if node != NO_NODE] if heard or len(nodes) == 1 else []
    return Result(failures, bad, remarks)


def first_dead(output: str) -> str:
    """The nodes on which a task died first, as srun lists them; empty if none did."""
    launched = not_launched(output)
    if launched:
        return ",".join(launched)
    found = TASKS_ENDED.search(output)
    return found.group(1) if found else ""


def _how(output: str) -> str:
    if FAILED_LAUNCH.search(output):
        return "srun could not launch a task there"
    found = TASKS_ENDED.search(output)
    return "its task has died: " + found.group(3) if found else ""
