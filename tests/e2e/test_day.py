"""A day in the life of a run: half an hour of faults, and it ends in the bits of the undisturbed one.

$DAY_MINUTES: another length; $DAY_SEED: other faults. `pytest -s` shows the account.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.account import assert_sacct_agrees
from tests.e2e.day import Day, left_behind, own_cluster
from tests.e2e.run import clusterdp
from tests.small_disk import small_disk

MINUTES = float(os.environ.get("DAY_MINUTES", "30"))
SEED = int(os.environ.get("DAY_SEED", "0"))
pytestmark = [pytest.mark.timeout(1800 + 180 * MINUTES), pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """Where the checkpoints go: a small disk, if a test may make one."""
    folder = tmp_path / "store"
    if os.geteuid():
        folder.mkdir()
        yield folder
        return
    with small_disk(folder, mb=32):
        yield folder


def test_run_with_many_faults_ends_bit_for_bit_like_an_undisturbed_one(tmp_path: Path, store: Path) -> None:
    day = Day(tmp_path, store, MINUTES, SEED)
    with own_cluster(tmp_path) as (fake, cluster):
        twin = day.undisturbed(cluster)
        run = day.live(fake, cluster)
        same = clusterdp(cluster, tmp_path, "checkpoint", "diff", str(twin.files.path), str(run.files.path))
        assert same.returncode == 0, same.stdout + same.stderr
        assert run.digest() == twin.digest()
        account = assert_sacct_agrees(run)
        print(day.report(run, account))
        ended = [(fault.name, attempt) for fault, attempt in day.done if fault.causes]
        began = [each.name for each in account.attempts if each.cause not in ("bad-node", "done")]
        assert [attempt for _, attempt in ended] == began, run.account()
        lost = {each.name: each.steps_lost for each in account.attempts}
        announced = [lost[attempt] for name, attempt in ended if name == "preempted with grace"]
        assert not any(announced), run.account()
        assert left_behind(run, tmp_path, day.ports) == []
