"""The digits: the first thing that anybody runs. It must learn, and be hard enough to resume to be a proof."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterdp.errors import ConfigError
from clusterdp.recipes import bundled, digits
from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run

ENTRY = "clusterdp.recipes.digits:main"


def accuracy(tmp_path: Path, size: int, **params: object) -> float:
    run = Run(tmp_path / "run", ENTRY, params)
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=size, env=run.attempt("1.0")) as ranks:
        assert ranks.join() == [0] * size, ranks.log
    return float(run.last("test_accuracy"))


def test_digits_recipe_reaches_97_percent_accuracy_on_one_rank(tmp_path: Path) -> None:
    assert accuracy(tmp_path, 1, amp="fp32", batch_size=32) >= 0.97


@pytest.mark.slow
def test_digits_recipe_reaches_97_percent_accuracy_on_four_ranks_in_half_precision(tmp_path: Path) -> None:
    assert accuracy(tmp_path, 4) >= 0.97


def test_digits_model_has_over_a_megabyte_of_gradients() -> None:
    assert sum(p.numel() * p.element_size() for p in digits.Net().parameters()) > 1e6


def test_digits_training_and_test_sets_share_no_image() -> None:
    train, test = digits.load_digits()
    assert (len(train), len(test)) == (1437, 360)
    seen = {image.numpy().tobytes() for image in train.tensors[0]}
    assert not seen & {image.numpy().tobytes() for image in test.tensors[0]}


def test_load_digits_does_not_import_sklearn(forking: Path) -> None:
    look = "print({'scipy', 'sklearn'} & {*sys.modules})"
    program = f"import sys; from clusterdp.recipes import digits; digits.load_digits(); {look}"
    done = subprocess.run([forking, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"


def test_load_digits_without_scikit_learn_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'clusterdp\[demo\]'"):
        digits.load_digits()
