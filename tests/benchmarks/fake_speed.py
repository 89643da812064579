"""How quick the fake cluster is, and how much it takes: what is measured, what was aimed at, and, where one can be
booted on this machine, what the real Slurm takes, in turns with the fake.

`python -m tests.benchmarks.fake_speed [NAME...] [--no-real]`; NAME is one of: commands array singles wide large output
history idle start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from clusterdp.fakeslurm import FakeCluster
from tests.benchmarks.table import keep, machine
from tests.slurm import packages
from tests.slurm.testbed import RealSlurm

Environ = dict[str, str]
DEADLINE_S = 300


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    aim: float | None = None  # at most; a rate (.../s) at least
    like_real: bool = False  # at most what the real Slurm takes

    def row(self, real: float | None = None) -> str:
        """Also kept for the comparison with README."""
        keep(f"The fake: {self.name}", self.value)
        aim = real if self.like_real else self.aim
        limit = "real" if self.like_real else "" if aim is None else f"{aim:g}"
        met = "" if aim is None else "yes" if (self.value >= aim if "/s" in self.unit else self.value <= aim) else "NO"
        beside = "" if real is None else f"{real:.1f}"
        return f"{self.name:62}{self.value:>9.1f} {self.unit:5}{limit:>6} {met:4}{beside:>10}"


HEADER = f"{'':62}{'measured':>9} {'':5}{'aim':>6} {'met':4}{'real Slurm':>10}"


class Desk:
    """A cluster's commands, and a folder to submit from."""

    def __init__(self, environ: Environ, folder: Path):
        self.environ, self.folder = os.environ | environ, folder

    def run(self, *words: str) -> str:
        quiet = subprocess.DEVNULL
        done = subprocess.run(words, env=self.environ, cwd=self.folder, stdin=quiet, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def timed(self, *words: str) -> float:
        began = time.perf_counter()
        self.run(*words)
        return time.perf_counter() - began

    def until_idle(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.run("squeue", "-h", "-o", "%i"):
            assert time.monotonic() < deadline, "jobs that do not end"
            time.sleep(0.1)


@contextmanager
def fake(**options: object) -> Iterator[tuple[FakeCluster, Desk]]:
    with tempfile.TemporaryDirectory() as name, FakeCluster(**options) as cluster:  # type: ignore[arg-type]
        yield cluster, Desk(cluster.env, Path(name))


def on_both(measure: Callable[[Desk], Iterator[Figure]], real: Desk | None, rounds: int) -> Iterator[str]:
    """The fake as it comes, its controller as slow to look as Slurm's; and the real one in turns with it."""
    figures: dict[str, list[Figure]] = {}
    beside: dict[str, list[float]] = {}
    with fake() as (_, desk):
        for _ in range(rounds):
            for figure in measure(desk):
                figures.setdefault(figure.name, []).append(figure)
            for figure in measure(real) if real else ():
                beside.setdefault(figure.name, []).append(figure.value)
    for name, each in figures.items():
        median = replace(each[0], value=statistics.median(figure.value for figure in each))
        yield median.row(statistics.median(beside[name]) if name in beside else None)


# -- beside the real one --


def commands(desk: Desk) -> Iterator[Figure]:
    jobs: list[str] = []

    def sbatch() -> float:
        began = time.perf_counter()
        jobs.append(desk.run("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true").strip())
        return time.perf_counter() - began

    rounds = range(-2, 7)  # the first ones warm up
    seconds = {"sbatch": [sbatch() for _ in rounds]}
    seconds["squeue"] = [desk.timed("squeue") for _ in rounds]
    seconds["scancel"] = [desk.timed("scancel", job) for job in jobs]
    for name, taken in seconds.items():
        yield Figure(f"a call of {name}", 1000 * statistics.median(taken[2:]), "ms", 60)
    yield bare_python(desk)


def bare_python(desk: Desk) -> Figure:
    """What a busy machine makes of 10 ms: a scale for the others."""
    taken = [desk.timed(sys.executable, "-SEs", "-c", "pass") for _ in range(20)]
    return Figure("(python -SEs -c pass, for scale", 1000 * statistics.median(taken), "ms)")


def array(desk: Desk) -> Iterator[Figure]:
    began = time.perf_counter()
    desk.run("sbatch", "--array=0-999", "--output=/dev/null", "--wrap=true")
    desk.until_idle()
    taken = time.perf_counter() - began
    yield Figure("an array of 1,000 jobs of `true`, to its end", taken, "s", like_real=True)


def singles(desk: Desk) -> Iterator[Figure]:
    began = time.perf_counter()
    for _ in range(200):
        desk.run("sbatch", "--output=/dev/null", "--wrap=true")
    yield Figure("200 calls of sbatch", time.perf_counter() - began, "s")
    desk.until_idle()
    yield Figure("200 calls of sbatch, to the end of the jobs", time.perf_counter() - began, "s", like_real=True)


def output(desk: Desk) -> Iterator[Figure]:
    megabytes = 400
    task = f"head -c {megabytes}M /dev/zero | tr '\\0' '\\n'"
    for way, words in {"lines": task, "of a file": f"head -c {megabytes}M /dev/zero"}.items():
        taken = desk.timed("sbatch", "--wait", "--output=/dev/null", f'--wrap=srun bash -c "{words}" > /dev/null')
        empty = desk.timed("sbatch", "--wait", "--output=/dev/null", "--wrap=srun true")
        yield Figure(f"a step's output through srun, {way}", megabytes / max(taken - empty, 0.01), "MB/s", 100)


# -- the fake alone --


def wide() -> Iterator[Figure]:
    with fake(nodes=64, cpus_per_node=4, quick=True) as (_, desk):
        script = "srun -N64 -n256 bash -c 'echo $EPOCHREALTIME'"
        began = time.time()
        desk.run("sbatch", "--wait", "-N64", "--ntasks-per-node=4", "--output=wide.out", f"--wrap={script}")
        moments = [float(line) for line in (desk.folder / "wide.out").read_text().split()]
        assert len(moments) == 256
        yield Figure("srun of 256 tasks on 64 nodes: all started after", max(moments) - began, "s", 4)


def large() -> Iterator[Figure]:
    began = time.perf_counter()
    with fake(nodes=1024, cpus_per_node=4, quick=True) as (_, desk):
        yield Figure("1,024 nodes: up", time.perf_counter() - began, "s")
        began = time.perf_counter()
        desk.run("sbatch", "--wait", "-N1000", "--output=/dev/null", "--wrap=true")
        yield Figure("1,024 nodes: a job on 1,000 of them, to its end", time.perf_counter() - began, "s")
        jobs = [desk.timed("sbatch", "-N20", "--output=/dev/null", "--wrap=sleep 1") for _ in range(40)]
        yield Figure("1,024 nodes: sbatch, 40 jobs in the queue", 1000 * statistics.median(jobs), "ms")


def history() -> Iterator[Figure]:
    """One job is run, and copied into the journal of a daemon that is killed: its successor has run 10,000."""
    with fake(nodes=8, cpus_per_node=64, quick=True) as (cluster, desk):
        first = int(desk.run("sbatch", "--wait", "--parsable", "--output=/dev/null", "--wrap=srun true"))
        journal = cluster.folder / "state" / "journal"
        latest = {kind: (key, value) for kind, key, value in map(json.loads, journal.read_text().splitlines())}
        os.kill(daemon(cluster), signal.SIGKILL)
        with journal.open("a") as file:
            for job in range(first + 1, first + 10_000):
                file.write(json.dumps(["job", job, latest["job"][1] | {"id": job}]) + "\n")
                key = latest["row"][0].replace(str(first), str(job))
                row = latest["row"][1] | {"job": job, "id_text": str(job), "created": job}
                file.write(json.dumps(["row", key, row]) + "\n")
            file.write(json.dumps(["next_id", 0, first + 10_000]) + "\n")
        yield Figure("10,000 jobs: a killed daemon is back and answers after", desk.timed("squeue"), "s")
        assert desk.run("squeue", "-h", "-t", "all", "-j", str(first + 9_999))
        for words in ("squeue", "squeue -t all", f"sacct -n -j {first + 5000}", "sacct -n", "sinfo"):
            before, rounds = cpu_seconds(daemon(cluster)), 7
            taken = [desk.timed(*words.split()) for _ in range(rounds)]
            yield Figure(f"10,000 jobs: {words}", 1000 * statistics.median(taken), "ms", 150)
            used = cpu_seconds(daemon(cluster)) - before
            yield Figure(f"10,000 jobs: {words}, the daemon's part in CPU time", 1000 * used / rounds, "ms")
        yield bare_python(desk)
        yield Figure("10,000 jobs: the daemon's memory", memory(daemon(cluster)), "MB", 150)
        yield rest(cluster, "10,000 jobs: idle, of a core")


def rest(cluster: FakeCluster, name: str) -> Figure:
    pid, seconds = daemon(cluster), 20
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return Figure(name, 100 * (cpu_seconds(pid) - before) / seconds, "%", 0.5)


def idle() -> Iterator[Figure]:
    with fake() as (cluster, desk):
        desk.run("sbatch", "--wait", "--output=/dev/null", "--wrap=true")
        yield rest(cluster, "idle, of a core")


def start() -> Iterator[Figure]:
    taken = []
    for _ in range(7):
        began = time.perf_counter()
        with fake() as (_, desk):
            desk.run("sbatch", "--output=/dev/null", "--wrap=true")
            taken.append(time.perf_counter() - began)
            scale = bare_python(desk)
    yield scale
    yield Figure("from nothing to the first sbatch's answer", 1000 * statistics.median(taken), "ms", 500)


def daemon(cluster: FakeCluster) -> int:
    return int((cluster.folder / "daemon.pid").read_text())


def memory(pid: int) -> float:
    """Resident, in megabytes."""
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    return int(said) / 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


BESIDE = {"commands": (commands, 3), "array": (array, 1), "singles": (singles, 1), "output": (output, 1)}  # and rounds
ALONE = {"wide": wide, "large": large, "history": history, "idle": idle, "start": start}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BESIDE, *ALONE, []], metavar="NAME")
    parser.add_argument("--no-real", action="store_true")
    options = parser.parse_args()
    names = options.names or [*BESIDE, *ALONE]
    wants_real = not options.no_real and not packages.why_not() and set(names) & set(BESIDE)
    print(f"{machine()}\n{HEADER}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        real = RealSlurm().__enter__() if wants_real else None
        try:
            desk = Desk(real.environ(), Path(folder)) if real else None
            for name in names:
                alone = (figure.row() for figure in ALONE[name]()) if name in ALONE else ()
                for row in on_both(BESIDE[name][0], desk, BESIDE[name][1]) if name in BESIDE else alone:
                    print(row, flush=True)
        finally:
            if real:
                real.__exit__(None, None, None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
