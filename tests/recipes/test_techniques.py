"""Every config of the techniques: what it says of itself is true, preempted or not."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp import checkpoint, config, train
from clusterdp.config.tree import TrainConfig
from clusterdp.rundir import RunDir, read_lines
from clusterdp.train import Amp, JobHandle, Loop, Meters
from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run

CONFIGS = Path(__file__).parents[2] / "configs"
ENTRY = "clusterdp.recipes.techniques:main"
NAMES = sorted(file.stem for file in CONFIGS.glob("*.yaml") if f"entry: {ENTRY}\n" in file.read_text())


def test_techniques_configs_include_fsdp_amp_accumulate_and_split() -> None:
    assert {"fsdp", "amp", "accumulate", "split"} <= set(NAMES)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_preempted_techniques_run_ends_with_the_weights_of_an_undisturbed_run(tmp_path: Path, name: str) -> None:
    digests = []
    for kind, words in (("whole", ["local.preempt_at=null"]), ("halves", [])):
        command = [sys.executable, "-m", "clusterdp", "submit", str(CONFIGS / f"{name}.yaml"), "--cluster", "local"]
        done = subprocess.run(
            [*command, f"run_dir={tmp_path / kind}", *words],
            cwd=CONFIGS.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        run = RunDir(tmp_path / kind)
        assert len(run.attempts()) == (1 if kind == "whole" else 2), done.stdout
        digests += [
            line["digest"] for file in run.metrics.glob("*.jsonl") for line in read_lines(file) if "digest" in line
        ]
    assert len(digests) == 2
    assert digests[0] == digests[1]


def test_combined_techniques_learn_the_digits_in_one_process(tmp_path: Path) -> None:
    """The most steps that one config asks for, on one rank, without a cluster."""
    accumulate = config.load(CONFIGS / "accumulate.yaml").train
    train = {"accumulate": 2, "clip_norm": accumulate.clip_norm, "on_nan": accumulate.on_nan, "recompute": ["Block"]}
    params = {"epochs": 2, "batch_size": 32, "ema_decay": 0.9, "at_least": 0.85}
    run = Run(tmp_path / "run", ENTRY, params, train=train)
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=1, env=run.attempt("1.0")) as ranks:
        assert ranks.join() == [0], ranks.log
    assert "batch: 32 a rank x 1 rank x 2 accumulated = 64" in ranks.rank_log(0)
    assert float(run.last("test_accuracy")) >= 0.85


def test_accuracy_below_the_at_least_param_fails_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", ENTRY, {"epochs": 1, "batch_size": 512, "at_least": 0.99})
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=1, env=run.attempt("1.0")) as ranks:
        assert ranks.join() == [8], ranks.log
    assert "at_least: the accuracy is 0." in ranks.rank_log(0)


def test_techniques_page_names_every_config_and_only_existing_train_keys() -> None:
    page = (CONFIGS.parent / "docs" / "techniques.md").read_text()
    for key in re.findall(r"`train\.(\w+)", page):
        assert key in {field.name for field in dataclasses.fields(TrainConfig)}, key
    named = set(re.findall(r"configs/(\w+)\.yaml", page)) - {"NAME"}  # which stands for all
    assert set(NAMES) <= named <= {file.stem for file in CONFIGS.glob("*.yaml")}


def test_apex_page_calls_only_existing_functions_and_methods() -> None:
    page = (CONFIGS.parent / "docs" / "apex.md").read_text()
    new = " ".join(re.findall(r"^\| `.*?` .*?\| (.*) \|$", page, re.MULTILINE))
    for name in set(re.findall(r"(?<![\w.])(\w+)\(", new)) - {"model", "len"}:
        assert hasattr(train, name) or hasattr(checkpoint, name), name
    owners = {"amp": Amp, "job": JobHandle, "loop": Loop, "meters": Meters}
    called = re.findall(r"\b(amp|job|loop|meters)\.(\w+)\(", new)
    for owner, name in called:
        assert hasattr(owners[owner], name), f"{owner}.{name}"
    assert {("amp", "backward"), ("meters", "reduce"), ("loop", "log")} <= set(called)
