"""How long `clusterdp logs` takes to show the end of a log of 10 GB, beside `tail`; and what it costs to follow 1,024
ranks: the share of a core, and memory. The long log is a sparse file, which takes no room on the disk."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clusterdp.rundir import Attempt, Ledger, RunDir
from tests.benchmarks.startup import ARGPARSE, clusterdp, timed
from tests.benchmarks.table import machine, rounds_of, show, take_turns

RANKS = 1024
TAIL = "tail -n 1000"
LOGS = "clusterdp logs -n 1000"
WHOLE_START = "clusterdp logs -n 1000, of 1 kB"
SHORT_S, LONG_S = 5.0, 25.0  # two runs, so that the start does not count


def main() -> None:
    rounds = rounds_of(__doc__, 20)
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
        long, short = run_in(Path(name) / "long"), run_in(Path(name) / "short")
        log = long.rank_log(0)
        with log.open("wb") as file:
            file.truncate(10_000_000_000)
        with log.open("a") as file:
            file.writelines(f"\nstep {step}  loss 0.1234" for step in range(5000))
        short.rank_log(0).write_text("step 1\n" * 100)
        measures = {
            ARGPARSE: timed([sys.executable, "-c", "import argparse; argparse.ArgumentParser().parse_args()"]),
            TAIL: timed(["tail", "-n", "1000", str(log)]),
            WHOLE_START: timed(clusterdp("logs", str(Path(name) / "short"), "-n", "1000")),
            LOGS: timed(clusterdp("logs", str(Path(name) / "long"), "-n", "1000")),
        }
        rows = take_turns(measures, rounds, {LOGS: WHOLE_START, WHOLE_START: ARGPARSE})
        show("The end of a log of 10 GB", rows)
        print(f"\nFollowing the logs of {RANKS} ranks, of which 100 print a line each second\n{machine()}\n")
        attempt = run_in(Path(name) / "many")
        for rank in range(RANKS):
            say(attempt, rank, "2026-11-23 08:00:00,000 INFO begin")
        for words in (["--all"], ["--errors"]):
            (short_cpu, _), (long_cpu, memory) = (follow(attempt, words, seconds) for seconds in (SHORT_S, LONG_S))
            share = (long_cpu - short_cpu) / (LONG_S - SHORT_S)
            print(f"clusterdp logs {f'{words[0]} -f':32}{100 * share:.1f} % of a core   {memory / 1e6:.0f} MB")


def run_in(folder: Path) -> Attempt:
    run = RunDir(folder)
    attempt = run.attempt("17.0")
    attempt.logs.mkdir(parents=True)
    Ledger(run, "submit-17", "submit").write("submitted", job="17", name="digits", backend="sbatch")
    Ledger(run, attempt.name, "batch").write("started", job="17", restart=0, nodes="n[1-128]")
    return attempt


def say(attempt: Attempt, rank: int, line: str) -> None:
    with (attempt.logs / f"node-{rank // 8:05d}.log").open("a") as file:
        file.write(f"{rank}: {line}\n")


def follow(attempt: Attempt, words: list[str], seconds: float) -> tuple[float, int]:
    """The seconds of CPU time that it took, and the bytes of memory at most."""
    quiet = subprocess.DEVNULL
    run = attempt.path.parents[1]
    child = subprocess.Popen(clusterdp("logs", str(run), "-f", *words), stdin=quiet, stdout=quiet)
    began, ranks = time.monotonic(), itertools.cycle(range(RANKS))
    while time.monotonic() - began < seconds:
        for _ in range(10):
            say(attempt, next(ranks), "2026-11-23 08:00:01,000 INFO step 12  loss 0.1234")
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, _, used = os.wait4(child.pid, 0)
    child.returncode = 130
    unit = 1 if sys.platform == "darwin" else 1024
    return used.ru_utime + used.ru_stime, used.ru_maxrss * unit


if __name__ == "__main__":
    main()
