"""How long the snapshot of 10,000 files takes: the first, beside `cp -a`, and that of an unchanged tree, beside the
same as hard links, `cp -al`. What was edited within a minute of the earlier one is compared byte by byte: here
nothing was.

Nothing is removed before the end: for some minutes ext4 does not give away the inodes of removed files, and after
thousands of them it looks for a free one 20 times as long (recently_deleted() in fs/ext4/ialloc.c)."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from clusterdp.config.tree import SnapshotConfig
from clusterdp.submission.snapshot.code_snapshot import take
from tests.benchmarks.table import Measure, rounds_of, show, take_turns

COUNT = 10_000
COPY, LINK, FIRST, UNCHANGED = "cp -a", "cp -al", "snapshot, the first", "snapshot, unchanged"


def main() -> None:
    rounds = rounds_of(__doc__, 7)
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
        rows = take_turns(measures(Path(name)), rounds, {FIRST: COPY, UNCHANGED: LINK})
    show(f"A snapshot of {COUNT} files", rows)


def measures(folder: Path) -> dict[str, Measure]:
    source, runs = folder / "source", folder / "runs"
    for number in range(COUNT):
        path = source / f"package{number // 100}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"number = {number}\n" * 50)
        os.utime(path, times=(time.time() - 3600,) * 2)
    subprocess.run(["git", "init", "-q", source], check=True)
    snapshot(source, runs / "earlier")

    fresh = (folder / f"made{number}" for number in itertools.count())

    def copy(how: str) -> float:
        words = ["cp", how, str(source), str(next(fresh))]
        return timed(lambda: subprocess.run(words, check=True))

    return {
        COPY: lambda: copy("-a"),
        LINK: lambda: copy("-al"),
        FIRST: lambda: timed(lambda: snapshot(source, next(fresh) / "run")),
        UNCHANGED: lambda: timed(lambda: snapshot(source, runs / next(fresh).name)),
    }


def snapshot(source: Path, run: Path) -> None:
    run.mkdir(parents=True)
    take(source, run / "code", SnapshotConfig(), leave_out=run)
    (run / "config.yaml").touch()


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
