"""The disk of the checkpoints is full for a while: saves fail, and the training goes on. On the fake: test_day.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import submit
from tests.small_disk import fill, small_disk
from tests.waiting import wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.slurm, pytest.mark.slow, pytest.mark.long]


def test_training_continues_with_a_full_checkpoint_disk_and_later_saves_again(
    real_cluster: Cluster, project: Path
) -> None:
    words = ("params.epochs=2", "params.step_delay_s=0.1", "checkpoint.every_s=2", f"run_dir={project}/run")
    with small_disk(project / "store", mb=32) as disk:
        run = submit(real_cluster, project, "configs/digits.yaml", *words, f"checkpoint.url={disk}")
        try:
            wait_for("a checkpoint", lambda: run.events("saved"), 90, report=run.account)
            fill(disk / "filler")
            wait_for("a save to fail", lambda: run.events("save-failed"), 60, report=run.account)
            saved = len(run.events("saved"))
            (disk / "filler").unlink()
            assert run.wait_end() == "COMPLETED", run.account()
        finally:
            real_cluster.run("scancel", run.job)
    assert "No space left on device" in run.events("save-failed")[0]["error"]
    assert len(run.events("saved")) > saved
    assert run.causes() == ["done"], run.account()
