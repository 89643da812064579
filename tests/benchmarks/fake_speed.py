"""How quick the fake cluster is, and how much it takes; beside the real Slurm of this machine where one can be booted.

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
from dataclasses import dataclass
from pathlib import Path

from clusterdp.fakeslurm import FakeCluster
from tests.benchmarks.table import machine
from tests.slurm import packages
from tests.slurm.testbed import RealSlurm

Environ = dict[str, str]
DEADLINE_S = 300


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    aim: str = ""

    def __str__(self) -> str:
        return f"{self.name:58}{self.value:>9.1f} {self.unit:6} {self.aim}"


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


def on_both(measure: Callable[[Desk], Iterator[Figure]], real: Desk | None) -> Iterator[Figure]:
    """As it comes, the controller as slow to look as Slurm's; the real one beside it."""
    with fake() as (_, desk):
        yield from measure(desk)
    if real:
        for figure in measure(real):
            yield Figure(f"  the real Slurm: {figure.name}", figure.value, figure.unit)


# -- beside the real one --


def commands(desk: Desk) -> Iterator[Figure]:
    jobs: list[str] = []

    def sbatch() -> float:
        began = time.perf_counter()
        jobs.append(desk.run("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true").strip())
        return time.perf_counter() - began

    rounds = range(-2, 20)  # the first ones warm up
    seconds = {"sbatch": [sbatch() for _ in rounds]}
    seconds["squeue"] = [desk.timed("squeue") for _ in rounds]
    seconds["scancel"] = [desk.timed("scancel", job) for job in jobs]
    for name, taken in seconds.items():
        yield Figure(f"{name}, median of {len(taken) - 2}", 1000 * statistics.median(taken[2:]), "ms", "60 at most")
    yield bare_python(desk)


def bare_python(desk: Desk) -> Figure:
    """What a busy machine makes of 10 ms: a scale for the others."""
    taken = [desk.timed(sys.executable, "-SEs", "-c", "pass") for _ in range(20)]
    return Figure("(python -SEs -c pass, for scale", 1000 * statistics.median(taken), "ms)")


def array(desk: Desk) -> Iterator[Figure]:
    began = time.perf_counter()
    desk.run("sbatch", "--array=0-999", "--output=/dev/null", "--wrap=true")
    desk.until_idle()
    yield Figure("an array of 1,000 jobs of `true`, to its end", time.perf_counter() - began, "s", "the real one's")


def singles(desk: Desk) -> Iterator[Figure]:
    began = time.perf_counter()
    for _ in range(200):
        desk.run("sbatch", "--output=/dev/null", "--wrap=true")
    yield Figure("200 calls of sbatch", time.perf_counter() - began, "s")
    desk.until_idle()
    yield Figure("200 calls of sbatch, to the end of the jobs", time.perf_counter() - began, "s", "the real one's")


def output(desk: Desk) -> Iterator[Figure]:
    megabytes = 400
    task = f"head -c {megabytes}M /dev/zero | tr '\\0' '\\n'"
    for way, words in {"lines": task, "of a file": f"head -c {megabytes}M /dev/zero"}.items():
        taken = desk.timed("sbatch", "--wait", "--output=/dev/null", f'--wrap=srun bash -c "{words}" > /dev/null')
        empty = desk.timed("sbatch", "--wait", "--output=/dev/null", "--wrap=srun true")
        yield Figure(
            f"a step's output through srun, {way}", megabytes / max(taken - empty, 0.01), "MB/s", "100 at least"
        )


# -- the fake alone --


def wide() -> Iterator[Figure]:
    with fake(nodes=64, cpus_per_node=4, quick=True) as (_, desk):
        script = "srun -N64 -n256 bash -c 'echo $EPOCHREALTIME'"
        began = time.time()
        desk.run("sbatch", "--wait", "-N64", "--ntasks-per-node=4", "--output=wide.out", f"--wrap={script}")
        moments = [float(line) for line in (desk.folder / "wide.out").read_text().split()]
        assert len(moments) == 256
        yield Figure("srun of 256 tasks on 64 nodes: all started after", max(moments) - began, "s", "4 at most")


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
        desk.run("squeue")
        assert desk.run("squeue", "-h", "-t", "all", "-j", str(first + 9_999))
        for words in ("squeue", f"sacct -n -j {first + 5000}"):
            taken = [desk.timed(*words.split()) for _ in range(7)]
            yield Figure(f"10,000 jobs: {words}", 1000 * statistics.median(taken), "ms", "150 at most")
        yield Figure("10,000 jobs: squeue -t all, that many lines", 1000 * desk.timed("squeue", "-t", "all"), "ms")
        yield bare_python(desk)
        yield Figure("10,000 jobs: the daemon's memory", memory(daemon(cluster)), "MB", "150 at most")


def idle() -> Iterator[Figure]:
    with fake() as (cluster, desk):
        desk.run("sbatch", "--wait", "--output=/dev/null", "--wrap=true")
        pid, seconds = daemon(cluster), 20
        before = cpu_seconds(pid)
        time.sleep(seconds)
        yield Figure("idle: of a core", 100 * (cpu_seconds(pid) - before) / seconds, "%", "0.5 at most")


def start() -> Iterator[Figure]:
    taken = []
    for _ in range(7):
        began = time.perf_counter()
        with fake() as (_, desk):
            desk.run("sbatch", "--output=/dev/null", "--wrap=true")
            taken.append(time.perf_counter() - began)
    yield bare_python(desk)
    yield Figure("from nothing to the first sbatch's answer", 1000 * statistics.median(taken), "ms", "500 at most")


def daemon(cluster: FakeCluster) -> int:
    return int((cluster.folder / "daemon.pid").read_text())


def memory(pid: int) -> float:
    """Resident, in megabytes."""
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    return int(said) / 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


BESIDE = {"commands": commands, "array": array, "singles": singles, "output": output}
ALONE = {"wide": wide, "large": large, "history": history, "idle": idle, "start": start}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BESIDE, *ALONE, []], metavar="NAME")
    parser.add_argument("--no-real", action="store_true")
    options = parser.parse_args()
    names = options.names or [*BESIDE, *ALONE]
    wants_real = not options.no_real and not packages.why_not() and set(names) & set(BESIDE)
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        real = RealSlurm().__enter__() if wants_real else None
        try:
            desk = Desk(real.environ(), Path(folder)) if real else None
            for name in names:
                for figure in on_both(BESIDE[name], desk) if name in BESIDE else ALONE[name]():
                    print(figure, flush=True)
        finally:
            if real:
                real.__exit__(None, None, None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
