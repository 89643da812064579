"""Pages that are typed whole: their files are written, and each command is run on a fake cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.fakeslurm.core.shape import Shape
from tests.docs.pages import ROOT, blocks
from tests.waiting import wait_for

PAGES = {  # page -> what its last commands print
    "after": ["1"],
    "from_submitit": ["'loss': ", "3 done"],
    "at_a_rank": ["rank 1 of 2 on n2, in ", "rank 1 on n2, process", "Mem:"],
}

BESIDE = ("clusterdp stacks", "clusterdp exec")
METRICS = "runs/*/metrics/*.jsonl"


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    with FakeCluster(shape=Shape.simple(quick=True)) as cluster:
        own = cluster.environ()
        path = f"{Path(sys.executable).parent}:{own['PATH']}"
        yield {**os.environ, **own, "PATH": path, "XDG_STATE_HOME": str(tmp_path / "state")}


def typed(line: str, folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    if line.startswith(BESIDE):
        wait_for("a step of the ranks", lambda: any(file.stat().st_size for file in folder.glob(METRICS)), 60)
    words = ["bash", "-c", line]
    return subprocess.run(words, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True)


@pytest.mark.parametrize("page", PAGES)
def test_page_is_typed_whole(page: str, tmp_path: Path, environ: dict[str, str], forking: Path) -> None:
    said = ""
    if page != "at_a_rank":  # which looks into processes
        (tmp_path / "site.yaml").write_text(f"launch: {{python: {forking}}}\n")
        environ["CLUSTERDP_SITE"] = f"{tmp_path}/site.yaml"
    for block in blocks(ROOT / f"docs/{page}.md", tested="tests/docs/test_typed_pages.py"):
        first, _, rest = block.text.partition("\n")
        if block.language in ("yaml", "python") and first.startswith("# ") and " " not in first[2:]:
            (tmp_path / first[2:]).write_text(rest)
        for line in block.text.splitlines() if block.language == "bash" else ():
            done = typed(line, tmp_path, environ)
            assert done.returncode == 0, f"{line}\n{done.stdout.decode()}{done.stderr.decode()}"
            said += done.stdout.decode()
    logs = [log.read_text() for log in sorted(tmp_path.glob("runs/*/attempts/*/logs/node-*.log"))]
    for words in PAGES[page]:
        assert words in said or any(words in log for log in logs), said
