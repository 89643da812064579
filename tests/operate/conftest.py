from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.operate.builder import RunBuilder

# The line that squeue prints above its rows
HEADER = 'case "$*" in *%r*) echo "JOBID|STATE|REASON|NODELIST";; *%o*) echo "ARRAY_JOB_ID|STATE|COMMAND";; esac'


class FakeQueue:
    """squeue and its kin as three-line scripts: what they answer is set here, what they were asked is noted."""

    def __init__(self, folder: Path):
        self.folder = folder

    def answers(self, *rows: str, error: str = "") -> None:
        """`rows` in squeue's format of ours: `7|PENDING|Resources|`."""
        body = "".join(f"echo '{row}'\n" for row in rows) + (f"echo '{error}' >&2; exit 1\n" if error else "")
        self.write("squeue", f"{HEADER}\n{body}")

    def write(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.folder}/asked\n{body}')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    @property
    def asked(self) -> list[str]:
        log = self.folder / "asked"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No real Slurm, no index of the developer's own runs, and a working directory without runs."""
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return here


@pytest.fixture
def builder(elsewhere: Path) -> RunBuilder:
    return RunBuilder(elsewhere / "runs" / "digits")


@pytest.fixture
def queue(tmp_path: Path) -> FakeQueue:
    """A Slurm that knows no job, and lets scancel do its work."""
    queue = FakeQueue(tmp_path / "bin")
    queue.answers()
    queue.write("scancel", "exit 0\n")
    return queue
