"""check_nodes: launch.preflight, the step that looks at each node before the ranks start, and what follows from it."""

import os
import time
from typing import Callable

from . import slurm
from .decisions import End, Requeue
from .end import Ended, requeued
from .ending import Ending
from .evidence import has_taken_port
from .preflight import Result, first_dead, result_of
from .step import Step
from .texts import read, warn

UNKNOWN = End("unknown", "failed", 75, {"reason": "Slurm's controller does not answer"})
OF_STATE = {slurm.RUNNING: "preflight", slurm.PREEMPTED: "preempted", slurm.TIME_LIMIT: "timeout"}


def check_nodes(ending: Ending, step: Step, next_port: Callable[[], None]) -> None:
    """Returns when the ranks may start; else this attempt ends here."""
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
    if failures or step.children.terms > terms:  # in a preemption the tasks have died, and the nodes are well
        _judge(ending, result, took_s)


def _output(ending: Ending, step: Step, next_port: Callable[[], None]) -> str:
    path = os.path.join(ending.job.logs, "preflight.out")
    words = [ending.job.run if word == "{run}" else word for word in ending.rules.preflight]
    for _ in range(2):
        with open(path, "wb") as out:
            step.run(words, out, watched=False)
        next_port()  # the ranks get one on which nobody has listened
        if not has_taken_port(read(path)):
            break
    return read(path)


def _judge(ending: Ending, result: Result, took_s: int) -> None:
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
        _refuse_nodelist(ending, result)
    ending.record.note("exit", "1 {} {}".format(took_s, int(time.time())))
    decision = requeued(cause, Ended(1, took_s), ending.history, ending.rules)
    if isinstance(decision, End):
        ending.over(decision)
    assert isinstance(decision, Requeue)
    ending.requeue_or_leave(decision, look, 1)


def _refuse_nodelist(ending: Ending, result: Result) -> None:
    """A node that the job must have fails again in each attempt."""
    must = ending.slurm.expand(ending.rules.nodelist)
    for node in result.bad:
        if node in must:
            why = "{} failed the preflight, and resources.nodelist asks for it".format(node)
            said = why + "; giving up. `clusterdp resume {run} resources.nodelist=null` goes on elsewhere."
            ending.over(End.gave_up(why, said))
