"""Scripts in the manner of public ones end on the fake as they do on a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterdp.fakeslurm import FakeCluster
from tests.fakeslurm.differential.compare import differences, like_the_real_one
from tests.fakeslurm.public_scripts.playing import RECORDS, SCRIPTS, play
from tests.slurm import release
from tests.slurm.testbed import RealSlurm

QUICK = (
    *("command-in-a-variable", "experiments-side-by-side", "modules-of-a-login-shell", "whole-nodes"),
    *("data-that-is-there-already", "gpus-bound-to-tasks", "gpus-over-nodes", "in-a-container", "labelled-logs"),
    "looks-at-itself",
)
ALL = sorted(SCRIPTS.glob("*.sh"))


def marked(script: Path) -> Any:
    return pytest.param(script, id=script.stem, marks=[] if script.stem in QUICK else [pytest.mark.slow])


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeCluster]:
    with FakeCluster(shape=like_the_real_one("22.05")) as cluster:
        yield cluster


@pytest.mark.parametrize("script", [marked(script) for script in ALL])
def test_public_script_ends_on_the_fake_as_recorded_on_real_slurm(
    fake: FakeCluster, script: Path, tmp_path: Path
) -> None:
    expected = json.loads((RECORDS / f"{script.stem}.json").read_text())
    assert differences(expected, play([script], fake.env, tmp_path)[script.stem]) == []


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.long
@pytest.mark.timeout(600)
def test_public_scripts_on_the_real_slurm_still_match_their_records(real_slurm: RealSlurm, tmp_path: Path) -> None:
    if release.is_entered():
        pytest.skip("the records are those of the machine's own release")
    seen = play(ALL, real_slurm.environ(), tmp_path)
    found = {name: differences(json.loads((RECORDS / f"{name}.json").read_text()), each) for name, each in seen.items()}
    assert not {name: lines for name, lines in found.items() if lines}
