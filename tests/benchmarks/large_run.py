"""CPU seconds of the verbs, and of the batch program at a failure, on the run folder of 1,024 nodes with 8 ranks each.
The limit is a second, except for what reads the logs of all ranks, or all bytes of a checkpoint."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from clusterdp.batch.act.failure import has_own_error, last_words
from clusterdp.batch.decide.evidence import fault_of
from clusterdp.checkpoint.format.manifest import scan
from clusterdp.checkpoint.format.verified_reads import check_sizes, ranges_of_file, read_manifest
from clusterdp.operate.top.source import LocalSource
from clusterdp.storage import open_storage
from tests.benchmarks.startup import clusterdp
from tests.benchmarks.table import keep, machine, rounds_of
from tests.scale.large_run import LargeRun

NODES, LIMIT_S = 1024, 1.0
WITHOUT_LIMIT = ("logs RUN --all", "logs RUN --errors", "checkpoint verify RUN --step 1000")
VERBS = (
    "status RUN",
    "why RUN",
    "logs RUN",
    "list",
    "goodput RUN",
    "report RUN -o REPORT",
    "checkpoint ls RUN",
    *WITHOUT_LIMIT,
)


def main() -> None:
    rounds, slow = rounds_of(__doc__, 3), []
    with tempfile.TemporaryDirectory(prefix="clusterdp-bench-") as name:
        run = str(LargeRun(Path(name) / "run", NODES).run.path)
        os.environ.update(XDG_STATE_HOME=name)
        print(f"A run of {8 * NODES:,} ranks, medians of {rounds}\n{machine()}\n")
        for verb in VERBS:
            words = verb.replace("RUN", run).replace("REPORT", f"{name}/report.html").split()
            cpu_s = statistics.median(used(clusterdp(*words)) for _ in range(rounds))
            slow += show(f"clusterdp {verb}", cpu_s, verb not in WITHOUT_LIMIT)
        began, source = time.process_time(), LocalSource()
        source.list(), list(source.details(run, 120)), source.logs(run, errors=False)
        slow += show("clusterdp top, the screens of it", time.process_time() - began)
        began, storage = time.process_time(), open_storage(f"{run}/checkpoints")
        info = scan(storage)[0][0]
        for file, record in read_manifest(storage, info).files.items():
            check_sizes(storage, list(ranges_of_file(f"{info.folder}/{file}", record)))
        slow += show("clusterdp checkpoint verify, without the bytes", time.process_time() - began)
        began, ends = time.process_time(), last_words(f"{run}/attempts/7.0.2/logs")
        fault_of(list(ends.values()), "", False, 61, True), has_own_error(ends)
        slow += show("the batch program, the cause of a failure", time.process_time() - began)
    if slow:
        sys.exit(f"more than {LIMIT_S:g} s: {', '.join(slow)}")


def show(what: str, cpu_s: float, has_limit: bool = True) -> list[str]:
    """Returns the name of what takes longer than the limit."""
    print(f"{what:50}{cpu_s:6.2f} s")
    keep(f"A run of {8 * NODES} ranks: {what}, CPU s", cpu_s)
    return [what] if has_limit and cpu_s > LIMIT_S else []


def used(command: list[str]) -> float:
    """The seconds of CPU time that a command took."""
    null = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    _, code, used = os.wait4(os.posix_spawn(command[0], command, os.environ, file_actions=null), 0)
    assert os.waitstatus_to_exitcode(code) == 0, command
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
