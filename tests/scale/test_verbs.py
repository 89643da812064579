"""What the verbs read does not grow with the ranks of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scale.large_run import PER_NODE, LargeRun

SIZES = 16, 32  # nodes; `why` reads up to 64 logs, which are those of 8 nodes
PROGRAM = """
import sys
from collections import Counter

run, seen = sys.argv.pop(1), Counter()


def look(event, args):
    if event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith(run):
        seen[event] += 1


sys.addaudithook(look)
from clusterdp.cli import main

if sys.argv[1] != "top":
    code = main()
else:
    from pathlib import Path

    from clusterdp.operate.top.source import LocalSource

    source, code = LocalSource(), 0
    source.list()
    assert all(part.text for part in source.details(run, 120)) and source.logs(run, False)
print(code, sum(seen.values()), file=sys.stderr)
"""
# A verb's words, in which RUN is the run
VERBS = (
    "status RUN",
    "status RUN --json",
    "why RUN",
    "why RUN --json",
    "logs RUN",
    "goodput RUN",
    "report RUN -o REPORT",
    "checkpoint ls RUN",
    "list",
    "top",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {nodes: LargeRun(tmp_path_factory.mktemp("large") / "run", nodes).run.path for nodes in SIZES}


@pytest.fixture
def reads(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs a verb; returns the number of files and listings that it has opened in the run folder, and its output."""

    def reads(run: Path, verb: str, before: str = "") -> tuple[int, str]:
        (tmp_path / "clusterdp").mkdir(exist_ok=True)
        (tmp_path / "clusterdp/runs").write_text(json.dumps({"time": 1.7e9, "run": str(run), "dir": str(tmp_path)}))
        words = verb.replace("RUN", str(run)).replace("REPORT", str(tmp_path / "report.html")).split()
        environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = ["bash", "-c", f'{before} exec "$@"', "bash", sys.executable, "-c", PROGRAM, str(run), *words]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
        code, count = done.stderr.split()[-2:]
        assert code == "0", done.stderr
        return int(count), done.stdout

    return reads


@pytest.mark.parametrize("verb", VERBS)
def test_verb_opens_equally_many_files_for_twice_the_ranks(
    runs: dict[int, Path], reads: Callable[..., tuple[int, str]], verb: str
) -> None:
    few, many = (reads(runs[nodes], verb)[0] for nodes in SIZES)
    assert few == many > 0


def test_logs_of_all_ranks_have_few_files_open_at_once(
    runs: dict[int, Path], reads: Callable[..., tuple[int, str]]
) -> None:
    (few, _), (many, said) = (reads(runs[nodes], "logs RUN --all", "ulimit -n 32;") for nodes in SIZES)
    # Each log is opened by a look for its ranks, by one whether it can be read, and then read.
    assert many - few == 3 * (SIZES[1] - SIZES[0])
    assert said.count(f"of {SIZES[1] * PER_NODE} on n") == SIZES[1] * PER_NODE


def test_why_names_the_killed_rank_of_many(runs: dict[int, Path], reads: Callable[..., tuple[int, str]]) -> None:
    failure = json.loads(reads(runs[SIZES[1]], "why RUN --json")[1])["failure"]
    assert (failure["rank"], failure["node"], failure["srun"]) == (128, "n17", "Killed")
    assert len(failure["followed"]) + failure["unread"] == SIZES[1] * PER_NODE - 1
