"""What FakeCluster asks its daemon: to break things, and how all is. Not a command of Slurm."""

import asyncio
from typing import TYPE_CHECKING

from ..ids import find, parse
from ..refusals import Refusal

if TYPE_CHECKING:
    from ..conversation import Conversation
    from ..daemon import Daemon


async def run(talk: "Conversation", daemon: "Daemon") -> int:
    verb, *words = talk.words
    if verb == "preempt":
        name = parse(words[0])
        jobs = [job for job in find(daemon.model, name) if job.running] if name else []
        if not jobs:
            raise Refusal(f"{words[0]}: no such job is running. Look with `squeue`.")
        for job in jobs:
            daemon.controller.preempt(job, float(words[1]) if len(words) > 1 else None)
    elif verb in ("fail-node", "restore-node"):
        if words[0] not in daemon.model.nodes:
            raise Refusal(f"{words[0]}: no such node. There are {', '.join(daemon.model.nodes)}.")
        (daemon.controller.fail_node if verb == "fail-node" else daemon.controller.restore_node)(words[0])
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
