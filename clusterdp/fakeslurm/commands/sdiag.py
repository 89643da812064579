"""sdiag: figures of the controller. Jobs are counted; the fake keeps no figures of its own work, and shows 0."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterdp.fakeslurm.commands.getopt import GetoptParser, table
from clusterdp.fakeslurm.commands.read_words import read_words
from clusterdp.slurm.state import JobState

if TYPE_CHECKING:
    from clusterdp.fakeslurm.slurmctld.connection import Connection
    from clusterdp.fakeslurm.slurmctld.daemon import Daemon

OPTIONS = table("""
    all,a help,h cluster:clusters,M= clusters,M= reset,r sort-by-id,i sort-by-time,t sort-by-time2,T usage version,V
""")
LINE = "*" * 55
SCHEDULE = """Main schedule statistics (microseconds):
\tLast cycle:   0
\tMax cycle:    0
\tTotal cycles: 0
\tCycles per minute: 0
\tLast queue length: {waiting}

Backfilling stats
\tTotal backfilled jobs (since last slurm start): 0
\tTotal backfilled jobs (since last stats cycle start): 0
\tTotal backfilled heterogeneous job components: 0
\tTotal cycles: 0
\tLast cycle when: N/A
\tLast cycle: 0
\tMax cycle:  0
\tLast depth cycle: 0
\tLast depth cycle (try sched): 0
\tLast queue length: 0
\tLast table size: 0

Latency for 1000 calls to gettimeofday(): 0 microseconds

Remote Procedure Call statistics by message type

Remote Procedure Call statistics by user

Pending RPC statistics
\tNo pending RPCs"""


async def run(client: Connection, daemon: Daemon) -> int:
    pairs, _ = read_words(client, daemon, GetoptParser("sdiag", OPTIONS), "Usage: sdiag [-M cluster] [-aritT]")
    options = dict(pairs)
    if "reset" in options:
        client.print("Reset scheduling statistics")
        return 0
    jobs, now = list(daemon.model.jobs.values()), daemon.controller.clock()
    started = sum(job.start is not None for job in jobs)
    waiting = sum(job.waits for job in jobs)
    since = min((node.boot_time for node in daemon.model.nodes.values()), default=now)
    client.print(f"{LINE}\nsdiag output at {_stamp(now)}\nData since      {_stamp(since)}\n{LINE}")
    client.print("Server thread count:  1\nAgent queue size:     0\nAgent count:          0")
    client.print("Agent thread count:   0\nDBD Agent queue size: 0\n")
    client.print(f"Jobs submitted: {len(jobs)}\nJobs started:   {started}")
    for title, states in (
        ("Jobs completed: ", (JobState.COMPLETED,)),
        ("Jobs canceled:  ", (JobState.CANCELLED,)),
        ("Jobs failed:    ", (JobState.FAILED, JobState.NODE_FAIL, JobState.TIMEOUT)),
    ):
        client.print(f"{title}{sum(job.over and job.state in states for job in jobs)}")
    client.print(f"\nJob states ts:  {_stamp(now)}\nJobs pending:   {waiting}")
    client.print(f"Jobs running:   {sum(job.running for job in jobs)}\n\n{SCHEDULE.format(waiting=waiting)}")
    return 0


def _stamp(moment: float) -> str:
    return f"{time.strftime('%a %b %d %H:%M:%S %Y', time.localtime(moment))} ({int(moment)})"
