"""The start of a node's ranks, forked from one process or not: files opened (strace) and CPU time of the whole job.

python -m tests.benchmarks.node_start    the digits example, 3 steps, on one node of the fake cluster
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.fakeslurm.core import processes
from tests.benchmarks.table import keep
from tests.e2e.cluster import Cluster
from tests.e2e.run import submit

TITLE = "The start of a node's ranks"
# Files of this machine, not of a shared file system
LOCAL = re.compile(r'"/(proc|sys|dev|etc|lib|lib64|usr)/|resumed')
TRACED = """\
#!/bin/bash
[ -z "$TRACED" ] || exec {python} "$@"
export TRACED=1
exec strace -f -qq -e trace=open,openat -o {folder}/opens.$SLURM_PROCID {python} "$@"
"""


def start(folder: Path, ranks: int, *, forks: bool, traced: bool) -> float:
    """Runs one job. Returns the number of files that its ranks have opened, or else the seconds of CPU time."""
    folder.mkdir()
    (folder / "configs").symlink_to(Path(__file__).parents[2] / "configs")
    processes.adopt_orphans()  # the daemons of the cluster, and what is below them, count as children
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with FakeCluster(folder / "cluster", nodes=1) as fake:
        cluster = Cluster("fake", fake.environ(), 60)
        python = folder / "python"
        python.write_text(TRACED.format(python=sys.executable, folder=folder))
        python.chmod(0o755)
        words = [f"resources.tasks_per_node={ranks}", "resources.nodes=1", "train.max_steps=3", f"run_dir={folder}/run"]
        words += [f"launch.fork_server={str(forks).lower()}", "restart.warm_after_s=null", "checkpoint.memory_s=null"]
        words += [f"launch.python={python}", f"launch.host_python={sys.executable}"] if traced else []
        run = submit(cluster, folder, "configs/digits.yaml", *words)
        assert run.wait_end(300) == "COMPLETED", run.account()
    with suppress(ChildProcessError):
        while True:
            os.wait()
    if traced:
        texts = [file.read_text() for file in folder.glob("opens.*")]
        return float(sum(not LOCAL.search(line) for text in texts for line in text.splitlines()))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    cases = ((1, True), (4, False), (4, True), (8, False), (8, True))
    print(f"{'ranks':8}{'fork server':14}{'files opened':>14}{'CPU s':>8}")
    for ranks, forks in cases:
        figures = []
        for traced in (True, False):
            with tempfile.TemporaryDirectory() as temporary:
                has_figure = not traced or shutil.which("strace")
                figures.append(start(Path(temporary, "job"), ranks, forks=forks, traced=traced) if has_figure else None)
        opened, cpu_s = figures
        print(f"{ranks:<8}{'yes' if forks else 'no':14}{'-' if opened is None else int(opened):>14}{cpu_s:8.1f}")
        keep(f"{TITLE}: {ranks} ranks, {'with' if forks else 'without'} a fork server, CPU s", cpu_s or 0.0)


if __name__ == "__main__":
    main()
