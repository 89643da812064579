"""Figures of docs/proved.md that the benchmarks have just found worse: `make bench` ends with them.

python -m tests.benchmarks.claims build/figures.jsonl
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

SLACK = 1.1  # between two runs on one machine
# Words of docs/proved.md, the figure in them, and its name among those that were kept (table.keep).
RESTORE = "clusterdp: restore, every byte verified, ms"
CLAIMS: list[tuple[str, float, str]] = [
    ("`--help` 19 ms", 19, "Start-up of the command line: clusterdp --help, ms"),
    ("`status` 48 ms", 48, "Start-up of the command line: clusterdp status RUN, ms"),
    ("`submit --dry-run` 0.79 x", 0.79, "Start-up of the command line: clusterdp submit --dry-run, ratio"),
    ("`loop.log` takes 22 µs more", 22, "A step: job.loop, loop.log, job.loader of tensors"),
    ("Trainer 51 on a", 51, "A step: Trainer, job.loader of tensors"),
    ("one's own 55,", 55, "A step: job.loop, loop.log, an iterable"),
    ("takes 1.04 times bare", 1.04, "DDP: 256"),
    ("and 0.99", 0.99, "DDP: 1024"),
    ("committed | 612 / 470", 612, "Durable and committed: 1000 MB, 1 rank(s): clusterdp: save, ms"),
    ("committed | 612 / 470", 470, "Durable and committed: 1000 MB, 2 rank(s): clusterdp: save, ms"),
    ("save | 156 / 110", 156, "The training stands still: 1000 MB, 1 rank(s): clusterdp: async_save, ms"),
    ("save | 156 / 110", 110, "The training stands still: 1000 MB, 2 rank(s): clusterdp: async_save, ms"),
    (
        "verified | 204 / 335",
        204,
        f"Into the live tensors: 1000 MB, 1 rank(s): {RESTORE}",
    ),
    (
        "verified | 204 / 335",
        335,
        f"Into the live tensors: 1000 MB, 2 rank(s): {RESTORE}",
    ),
    ("1,000 jobs in 7 s", 7, "The fake: an array of 1,000 jobs of `true`, to its end"),
    ("`squeue` takes 13 ms", 13, "The fake: 10,000 jobs: squeue"),
    ("the daemon 88 MB", 88, "The fake: 10,000 jobs: the daemon's memory"),
]


def worse(figures: Path) -> Iterator[str]:
    """Those of which none was measured are worse, too."""
    found: dict[str, list[float]] = {}
    for line in figures.read_text().splitlines():
        name, value = json.loads(line)
        found.setdefault(name, []).append(value)
    for words, claimed, name in CLAIMS:
        measured = statistics.median(found[name]) if name in found else None
        if measured is None or measured > claimed * SLACK:
            yield f"{words:36}{'not measured' if measured is None else f'{measured:.3g} now':16}{name}"


if __name__ == "__main__":
    rows = [*worse(Path(sys.argv[1]))]
    print("\n".join(["", "Worse than in docs/proved.md:", *rows] if rows else ["", "docs/proved.md holds."]))
    sys.exit(bool(rows))
