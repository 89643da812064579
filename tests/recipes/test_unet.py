"""The U-Net on noisy digits: two inputs and skip connections, split over the devices of a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.recipes import unet
from clusterdp.train import JobHandle
from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run

ENTRY = "clusterdp.recipes.unet:main"


def test_unet_recipe_removes_noise(job: JobHandle) -> None:
    assert unet.main(job, epochs=2) < 0.06, "untrained, it is off by 0.19"


@pytest.mark.slow
def test_preempted_unet_recipe_ends_with_the_undisturbed_weights(tmp_path: Path) -> None:
    digests = []
    for name, preempted in (("whole", False), ("preempted", True)):
        run = Run(tmp_path / name, ENTRY, {"epochs": 3, "step_delay_s": 0.01 if preempted else 0.0})
        args = (programs.run_worker, str(run.path))
        if preempted:
            with running(tmp_path / "first", *args, size=2, env=run.attempt("1.0")) as ranks:
                ranks.reach(lambda run=run: run.step() > 30, "the second epoch")
                ranks.processes[1].terminate()
                assert ranks.join() == [0, 0], ranks.log
            assert (run.outcome("1.0") or "").startswith("requeue term")
        with running(tmp_path / f"last {name}", *args, size=2, env=run.attempt("1.1")) as ranks:
            assert ranks.join() == [0, 0], ranks.log
        digests.append(run.last("digest"))
    assert digests[0] == digests[1]
