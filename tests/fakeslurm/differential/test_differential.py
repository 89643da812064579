"""Random small workloads end on the fake as they do on a real Slurm."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterdp.fakeslurm import FakeCluster
from tests.slurm.testbed import RealSlurm

from . import driver
from .__main__ import release_here
from .compare import differences, like_the_real_one
from .observed import Observation
from .workload import Workload, make

CASES = sorted((Path(__file__).parent / "cases").glob("*/*.json"))  # RELEASE/NAME.json
SLOW = (  # they wait, for KillWait or to start again
    "cancel-batch",
    "preempted-batch-script",
    "preempted-step",
    "preempted-without-grace",
    "requeue-held",
)
AT_ONCE, BATCHES = 12, 12  # workloads in a batch; batches in a run


@st.composite
def workloads(draw: Any) -> Workload:
    return make(lambda options: draw(st.sampled_from(list(options))))


@dataclass
class Both:
    real: dict[str, str]
    fake: dict[str, str]
    folder: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)


@pytest.fixture(scope="module")
def both(real_slurm: RealSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with FakeCluster(shape=like_the_real_one(release_here())) as fake:
        yield Both(real_slurm.environ(), fake.env, tmp_path_factory.mktemp("both"))


# Slow, and it finds new things: what it finds, `python -m tests.fakeslurm.differential --keep` keeps as a case.
@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=BATCHES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(batch=st.lists(workloads(), min_size=1, max_size=AT_ONCE))
def test_random_workloads_end_alike_on_both(both: Both, batch: list[Workload]) -> None:
    folder = both.folder / str(next(both.numbers))
    expected = driver.run_all(batch, both.real, folder / "real")
    seen = driver.run_all(batch, both.fake, folder / "fake")
    found = {i: differences(one, other) for i, (one, other) in enumerate(zip(expected, seen, strict=True))}
    assert not {i: lines for i, lines in found.items() if lines}


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Observation]:
    """All cases that this run asks for; those of a release side by side."""
    here = [item for item in request.session.items if item.path == Path(__file__) and hasattr(item, "callspec")]
    asked = [item.callspec.params["case"] for item in here]
    played: dict[Path, Observation] = {}
    for release in sorted({case.parent.name for case in asked}):
        cases = [case for case in asked if case.parent.name == release]
        batch = [Workload.from_json(json.loads(case.read_text())["workload"]) for case in cases]
        with FakeCluster(shape=like_the_real_one(release)) as fake:
            seen = driver.run_all(batch, fake.env, tmp_path_factory.mktemp("cases") / release)
        played |= dict(zip(cases, seen, strict=True))
    return played


def marked(case: Path) -> Any:
    return pytest.param(
        case, id=f"{case.parent.name}-{case.stem}", marks=[pytest.mark.slow] if case.stem in SLOW else []
    )


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_what_differed_once_is_now_as_on_the_real_slurm(case: Path, played: dict[Path, Observation]) -> None:
    assert differences(json.loads(case.read_text())["real"], played[case]) == []


def test_a_difference_is_noticed() -> None:
    """Else the tests above would prove nothing."""
    one = {"jobs": {"a": [{"JobState": "FAILED"}]}, "files": {"x": ["1"]}}
    other = {"jobs": {"a": [{"JobState": "COMPLETED"}]}, "files": {}}
    assert differences(one, other) == [
        "/files/x: real ['1'], fake None",
        "/jobs/a[0]/JobState: real 'FAILED', fake 'COMPLETED'",
    ]
