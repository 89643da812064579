"""A run folder of each release: every later one reads it. `kept_runs/` has a crash and its resume, on one rank."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

RELEASES = sorted((Path(__file__).parent / "kept_runs").glob("*.tar.xz"))


@pytest.fixture(params=RELEASES, ids=[path.name.removesuffix(".tar.xz") for path in RELEASES])
def run(request: pytest.FixtureRequest, elsewhere: Path) -> Path:
    with tarfile.open(request.param) as file:
        file.extractall(elsewhere, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return elsewhere / "run"


def printed(*words: str | Path) -> str:
    return subprocess.run(
        [sys.executable, "-m", "clusterdp", *map(str, words)], capture_output=True, text=True, check=True
    ).stdout


def test_status_reads_attempts_of_each_release(run: Path) -> None:
    found = json.loads(printed("status", run, "--json"))
    assert (found["state"], found["step"]) == ("done", 8)
    assert [attempt["cause"] for attempt in found["attempts"]] == ["crash", "done"]


def test_logs_and_why_read_attempts_of_each_release(run: Path) -> None:
    assert "OSError: the mount is gone" in printed("logs", run, "--attempt", "1")
    assert "it finished at step 8" in printed("why", run)


def test_checkpoints_of_each_release_are_verified_and_exported(run: Path) -> None:
    assert "2 of 2 good" in printed("checkpoint", "verify", run)
    printed("checkpoint", "export", run, run / "last.pt")
    state = torch.load(run / "last.pt", weights_only=True)
    assert state["model"]["weight"].shape == (1, 2)
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.1
