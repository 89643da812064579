"""Each config, as a user starts it: preempted on its way, it ends as the undisturbed run, and as good as it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterdp.rundir import RunDir, read_events, read_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONFIGS = Path(__file__).parents[2] / "configs"
# What its comment promises; and whether two runs of it end alike.
BY_ACCURACY = {
    "digits": 0.97,
    "elastic": 0.93,
    "by_hand": 0.93,
    "parameter_server": 0.93,
    "shards": 0.9,
    "trainer": 0.95,
    "pipeline": 0.9,
}
BY_LOSS = {"characters": 2.3, "linear": 0.4812 * 1.01, "products": 1e-5}
EXACT = ("digits", "elastic", "by_hand", "parameter_server", "characters", "linear", "shards", "trainer", "pipeline")


@pytest.fixture(autouse=True)
def nothing_of_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("CLUSTERDP_", "SLURM_", "SBATCH_")):
            monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def submit(folder: Path, name: str, *overrides: str) -> tuple[list[str], dict[str, Any]]:
    """Its events, and the record of its end."""
    run = RunDir(folder / f"{name}-{len(overrides)}")
    words = ["submit", str(CONFIGS / f"{name}.yaml"), "--cluster", "local", f"run_dir={run.path}", *overrides]
    done = subprocess.run(
        [sys.executable, "-m", "clusterdp", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    logs = "".join(file.read_text() for file in run.path.glob("attempts/*/logs/*"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert "To break it, elsewhere:  clusterdp fake preempt " in done.stdout
    records = [record for file in run.metrics.glob("*.jsonl") for record in read_lines(file)]
    return [str(event["event"]) for event in read_events(run)], max(records, key=lambda record: record["time"])


@pytest.mark.parametrize("name", [*BY_ACCURACY, *BY_LOSS])
def test_preempted_recipe_reaches_its_documented_result_and_weights_of_an_undisturbed_run(
    tmp_path: Path, name: str
) -> None:
    events, end = submit(tmp_path, name)
    assert events.count("rehearsal") == 1 and "restored" in events, events
    if name in BY_ACCURACY:
        assert end["test_accuracy"] >= BY_ACCURACY[name]
    else:
        assert end["test_loss"] <= BY_LOSS[name]
    if name in EXACT:
        undisturbed_events, undisturbed = submit(tmp_path, name, "local.preempt_at=null")
        assert "restored" not in undisturbed_events
        assert end["digest"] == undisturbed["digest"]
