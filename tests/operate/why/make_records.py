"""`python -m tests.operate.why.make_records [NAME...]`: fail jobs of four ranks on purpose, and keep what they leave.

Each job runs on the fake cluster, with real processes of torch. A record holds the files of its run folder that tell
how it ended, with lines that repeat counted, and the machine's paths replaced.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.rundir import RunDir

HERE = Path(__file__).parent
RECORDS = HERE / "records"
KEPT = ("attempts/*/error", "attempts/*/cause", "attempts/*/exit", "attempts/*/logs/*.out", "slurm-*.out", "events/*")
NUMBERS = re.compile(r"\d+")

# The rank that fails first and the name of its signature; `rank` is a set where it may be one or the other.
EXPECTED: dict[str, tuple[set[int], str]] = {
    "exception-in-rank-0": ({0}, ""),
    "exception-in-rank-1-later": ({1}, ""),
    "exception-in-the-last-rank": ({3}, ""),
    "flood": ({2}, ""),
    "killed": ({1}, "killed"),
    "segfault": ({3}, "segfault"),
    "exit-without-cleanup": ({2}, "exit-code"),
    "exit-without-a-word": ({1}, "exit-code"),
    "memory-error": ({0}, "allocation-failed"),
    "port-in-use": ({0}, "port-in-use"),
    "missing-file-on-one-node": ({2}, "missing-file"),
    "import-error": ({1}, "missing-module"),
    "collective-timeout": ({0, 1, 3}, "collective-timeout"),
    "torchrun-exception": ({3}, ""),
    "torchrun-killed": ({1}, "killed"),
    "entry-exception": ({2}, ""),
    "entry-killed": ({0}, "killed"),
    "entry-shapes": ({3}, "shapes"),
}


@contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """The environment of a fake cluster of two nodes."""
    with FakeCluster(nodes=2) as fake:
        yield os.environ | fake.environ()


def fail(name: str, folder: Path, environ: dict[str, str]) -> RunDir:
    """Submit the job and wait for its end."""
    for program in ("ranks.py", "entry.py"):
        (folder / program).write_text((HERE / program).read_text())
    what = [f"entry: entry:main\nparams: {{how: {name}}}"] if name.startswith("entry-") else []
    what += [] if what else [f"command: [{sys.executable}, ranks.py, {name}]"]
    what += ["launch: {launcher: torchrun}"] if name.startswith("torchrun-") else []
    what += [f"run_dir: runs/{name}", 'resources: {nodes: 2, tasks_per_node: 2, time: "5:00"}']
    (folder / f"{name}.yaml").write_text("\n".join([*what, "restart: {max_crashes: 0}", ""]))
    words = [sys.executable, "-m", "clusterdp", "submit", f"{name}.yaml", "--watch"]
    subprocess.run(words, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=180)
    return RunDir(folder / "runs" / name)


def record(run: RunDir, secrets: dict[str, str]) -> dict[str, dict[str, object]]:
    """Its files, by name: when they were changed last, and the lines, each with how often it comes."""
    kept = {}
    paths = sorted(path for pattern in KEPT for path in run.path.glob(pattern))
    began = min(path.stat().st_mtime for path in paths)
    for path in paths:
        text = path.read_text(errors="replace")
        for what, name in secrets.items():
            text = text.replace(what, name)
        lines = [[line, len(list(same))] for line, same in itertools.groupby(text.splitlines())]
        kept[path.relative_to(run.path).as_posix()] = {"at": round(path.stat().st_mtime - began, 3), "lines": lines}
    return kept


def restore(name: str, folder: Path) -> RunDir:
    """A run folder as the record has it."""
    for file, kept in json.loads((RECORDS / f"{name}.json").read_text()).items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" * count for line, count in kept["lines"]))
        os.utime(path, (1_700_000_000 + kept["at"],) * 2)
    (folder / "job.sbatch").touch()
    return RunDir(folder)


def main(names: list[str]) -> None:
    RECORDS.mkdir(exist_ok=True)
    root = str(HERE.parents[2])
    with cluster() as environ, tempfile.TemporaryDirectory() as folder:
        secrets = {
            str(Path(torch.__file__).parents[1]): "/env/lib/python3/site-packages",
            os.path.realpath(folder): "/home/user",
            os.path.realpath(sys.base_prefix): "/usr",
            sys.prefix: "/env",
            root: "/home/user/clusterdp",
        }
        for name in names or EXPECTED:
            run = fail(name, Path(folder), environ)
            (RECORDS / f"{name}.json").write_text(json.dumps(record(run, secrets), indent=0, ensure_ascii=False) + "\n")
            print(name, *sorted(path.name for path in run.path.glob("attempts/*/logs/*")))


if __name__ == "__main__":
    main(sys.argv[1:])
