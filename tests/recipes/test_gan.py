"""The GAN on the digits: two networks, two optimizers, and a step of its own."""

from __future__ import annotations

from pathlib import Path

from clusterdp.train import JobHandle
from configs import gan
from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run

ENTRY = "configs.gan:main"


def test_gan_recipe_makes_images_like_the_held_out_ones(job: JobHandle) -> None:
    assert gan.main(job, epochs=3) < 0.2, "untrained, it is off by 0.48"


def test_gan_recipe_fails_above_its_at_most_param(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", ENTRY, {"epochs": 1, "at_most": 0.01})
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=1, env=run.attempt("1.0")) as ranks:
        assert ranks.join() == [8], ranks.log
    assert "at_most: the difference is 0." in ranks.rank_log(0)
