"""What FakeCluster asks its daemon: to break things, and how all is. Not a command of Slurm."""

import asyncio
from typing import TYPE_CHECKING

from clusterdp.fakeslurm import attempts, nodes
from clusterdp.fakeslurm.ids import find, parse
from clusterdp.fakeslurm.refusals import Refusal

if TYPE_CHECKING:
    from clusterdp.fakeslurm.conversation import Conversation
    from clusterdp.fakeslurm.daemon import Daemon


async def run(talk: "Conversation", daemon: "Daemon") -> int:
    verb, *words = talk.words
    if verb == "preempt":
        name = parse(words[0])
        jobs = [job for job in find(daemon.model, name) if job.running] if name else []
        if not jobs:
            raise Refusal(f"{words[0]}: no such job is running. Look with `squeue`.")
        for job in jobs:
            attempts.preempt(daemon.controller, job, float(words[1]) if len(words) > 1 else None)
    elif verb in ("fail-node", "restore-node"):
        if words[0] not in daemon.model.nodes:
            raise Refusal(f"{words[0]}: no such node. There are {', '.join(daemon.model.nodes)}.")
        (nodes.fail_node if verb == "fail-node" else nodes.restore_node)(daemon.controller, words[0])
    elif verb == "wait":
        return await _wait(talk, daemon, words[0], words[1:])
    elif verb == "stop":
        talk.print("stopping")
        await talk.exit(0)
        daemon.stop()
        await asyncio.sleep(0)
    elif verb == "lifeline":  # held open by who owns the cluster: when it closes, the owner is dead
        talk.print("held")
        await talk.flush()
        await talk.hung_up()
        daemon.stop()
    elif verb != "ping":
        raise Refusal(f"{verb}: not a word for a fake cluster.")
    return 0


async def _wait(talk: "Conversation", daemon: "Daemon", job: str, states: list[str]) -> int:
    """Until the job (all of an array) is in one of these states; prints the state."""
    while True:
        name = parse(job)
        jobs = find(daemon.model, name) if name else []
        if not jobs:
            raise Refusal(f"{job}: no such job. Look with `squeue -t all`.")
        if all(each.shown_state.value in states for each in jobs):
            talk.print(jobs[0].shown_state.value)
            return 0
        if all(each.over for each in jobs):
            raise Refusal(f"{job}: ended as {jobs[0].state.value}, waited for {' or '.join(states)}.")
        await daemon.change()
