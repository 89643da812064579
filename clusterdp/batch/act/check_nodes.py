"""check_nodes: launch.preflight, the step that checks each node before the ranks start, and the decision after this
step."""

import os
import re
import time
from typing import Callable, Dict, List, NamedTuple, Sequence

from ..decide.decisions import End, Requeue
from ..decide.end import Ended, requeued
from ..decide.evidence import TASKS_ENDED, has_taken_port
from ..decide.policy import FAILED_LAUNCH, FAILED_NODE, failed_nodes
from ..files.record import one_line
from ..files.texts import read, warn
from ..nodes.placement import places
from ..processes import slurm
from ..processes.slurm import Look
from .ending import Ending
from .step import Step

UNKNOWN = End("unknown", "failed", 75, {"reason": "Slurm's controller does not answer"})
OF_STATE = {slurm.RUNNING: "preflight", slurm.PREEMPTED: "preempted", slurm.TIME_LIMIT: "timeout"}
SIZES = ("--nodes={nodes}", "--ntasks={nodes}")  # srun's options in the command
NO_NODE = "-"  # stands for a failure of the preflight itself


def check_nodes(ending: Ending, step: Step, next_port: Callable[[], None]) -> None:
    """Returns when the ranks may start; if they may not start, ends this attempt and exits."""
    began, terms = time.monotonic(), step.children.terms
    said = _output(ending, step, next_port)
    took_s = int(time.monotonic() - began)
    result = result_of(said, ending.slurm.expand(ending.job.nodes), ending.slurm.expand(first_dead(said)))
    for about in (result.failures, result.remarks):
        for node, words in about.items():
            warn("preflight: {}: {}".format(node, words))
    failures = ["{}: {}".format(node, how) for node, how in result.failures.items()]
    ending.record.event("preflight", seconds=took_s, failures=failures)
    if ending.requeued:
        raise SystemExit(0)
    if failures or step.children.terms > terms:  # after a TERM, tasks may have died on good nodes
        _judge(ending, step, result, took_s)


def _output(ending: Ending, step: Step, next_port: Callable[[], None]) -> str:
    path = os.path.join(ending.job.logs, "preflight.out")
    nodes = ending.rules.nodes + ending.rules.spare_nodes
    known = {"{run}": ending.job.run, **{word: word.format(nodes=nodes) for word in SIZES}}
    words = [known.get(word, word) for word in ending.rules.preflight]
    for _ in range(2):
        with open(path, "wb") as out:
            step.run(words, out, watched=False)
        next_port()  # the ranks get a port that the preflight has not used
        if not has_taken_port(read(path)):
            break
    return read(path)


def _judge(ending: Ending, step: Step, result: "Result", took_s: int) -> None:
    look = ending.look()
    cause = OF_STATE.get(look.state, "")
    if cause == "preflight" and not result.failures:
        return
    if look.state == slurm.UNKNOWN:
        ending.over(UNKNOWN)
    if not cause:
        ending.leave(look.state, 1)
    if cause == "preflight":
        ending.avoid("preflight", result.bad)
        if _replaces(ending, step, result, look):
            return
        _refuse_nodelist(ending, result)
    ending.record.note("exit", "1 {} {}".format(took_s, int(time.time())))
    decision = requeued(cause, Ended(1, took_s), ending.history, ending.rules)
    if isinstance(decision, End):
        ending.over(decision)
    assert isinstance(decision, Requeue)
    ending.requeue_or_leave(decision, look, 1)


def _replaces(ending: Ending, step: Step, result: "Result", look: Look) -> bool:
    """Returns whether the ranks can start without all bad nodes, on nodes that have passed the preflight."""
    if not result.is_complete or not result.bad:
        return False
    try:
        replaced = step.placement.replace(result.bad, ending.slurm.expand(look.nodes))
    except LookupError:
        return False
    where = places(replaced, step.placement.size)
    warn("the ranks start {}.".format(where) if replaced else "the job has other nodes for its ranks.")
    ending.record.event("placed", nodes=step.placement.text)
    return True


def _refuse_nodelist(ending: Ending, result: "Result") -> None:
    """Ends the run if a bad node is in resources.nodelist, because each attempt would get this node again."""
    must = ending.slurm.expand(ending.rules.nodelist)
    for node in result.bad:
        if node in must:
            why = "{} failed the preflight, and resources.nodelist asks for it".format(node)
            said = why + "; giving up. `clusterdp resume {run} resources.nodelist=null` goes on elsewhere."
            ending.over(End.gave_up(why, said))


class Result(NamedTuple):
    """failures: a mapping from a node, or from NO_NODE for the preflight itself, to the failure. bad: nodes to avoid;
    empty if no node has left a result, because then the preflight itself could not run. remarks: a mapping from a node
    to its other output. is_complete: whether each node has passed or failed by itself."""

    failures: Dict[str, str]
    bad: List[str]
    remarks: Dict[str, str]
    is_complete: bool


def result_of(output: str, nodes: Sequence[str], dead: Sequence[str]) -> Result:
    """Returns the result from the lines that srun forwards, because a node may be unable to write to the run folder.

    output: the output of the step. nodes: the nodes of the job. dead: nodes on which a task died first, or could not be
    launched. A task exits with 0 unless it has died; after a death, srun ends the tasks of all nodes."""
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
    return Result(failures, bad, remarks, not dead and NO_NODE not in failures)


def first_dead(output: str) -> str:
    """Returns the nodes that srun has lost, or on which a task died first, in srun's notation; empty if no task has
    died."""
    failed = failed_nodes(output)
    if failed:
        return ",".join(failed)
    found = TASKS_ENDED.search(output)
    return found.group(1) if found else ""


def _how(output: str) -> str:
    if FAILED_NODE.search(output):
        return "srun has lost it"
    if FAILED_LAUNCH.search(output):
        return "srun could not launch a task there"
    found = TASKS_ENDED.search(output)
    return "its task has died: " + found.group(3) if found else ""
