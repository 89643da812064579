"""Sockets and CPU time of forked ranks, 8 to an agent: python -m tests.benchmarks.many_ranks [RANKS ...]

The figures of the table of docs/scale.md. CPU times are those of all threads of a rank, gloo's included, and of its
share of its node's agent. What ranks and agents use at rest is taken off that of an exchange: on few processors, an
exchange of many ranks takes so long that gloo's timers would be most of it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.table import keep, machine
from tests.train import programs, ranks

RANKS, PER_NODE = (8, 16, 64, 256, 512), 8
COLUMNS = {
    "sockets": "sockets of a rank",
    "first": "of rank 0",
    "agent": "of an agent",
    "start": "CPU of the start and the first all-reduce, ms a rank",
    "cpu": "CPU of an exchange, us a rank",
    "rest": "CPU at rest, ms a second and rank",
    "sent": "bytes to the store at rest",
}


ranks.PATIENCE_S = 900.0


def figures(size: int) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory() as folder,
        ranks.running(Path(folder), programs.counts_its_costs, size // PER_NODE, size=size) as started,
    ):
        found = started.answers

    def mean(name: str) -> float:
        return sum(each[name] for each in found) / size

    return {
        "sockets": statistics.median(each["sockets"] for each in found),
        "first": found[0]["sockets"],
        "agent": max(each["agent_sockets"] for each in found),
        "start": 1e3 * mean("start_s"),
        "cpu": 1e6 * mean("exchange_s"),
        "rest": 1e3 * mean("rest_s"),
        "sent": sum(each["sent"] for each in found),
    }


def main() -> None:
    print(f"{machine()}\n")
    print("ranks  " + "  ".join(COLUMNS.values()))
    for size in map(int, sys.argv[1:] or RANKS):
        found = figures(size)
        print(
            f"{size:5}  " + "  ".join(f"{found[name]:{len(title)}.4g}" for name, title in COLUMNS.items()), flush=True
        )
        for name, title in COLUMNS.items():
            keep(f"many ranks: {size}, {title}", found[name])


if __name__ == "__main__":
    main()
