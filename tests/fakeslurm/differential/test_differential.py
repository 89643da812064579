"""Random small workloads end on the fake as they do on a real Slurm."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
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
def test_random_workloads_end_on_the_fake_as_on_the_real_slurm(both: Both, batch: list[Workload]) -> None:
    folder = both.folder / str(next(both.numbers))
    expected = driver.run_all(batch, both.real, folder / "real")
    seen = driver.run_all(batch, both.fake, folder / "fake")
    found = {i: differences(one, other) for i, (one, other) in enumerate(zip(expected, seen, strict=True))}
    assert not {i: lines for i, lines in found.items() if lines}


def of_release(cases: Sequence[Path], *marks: pytest.MarkDecorator) -> list[Any]:
    return [
        pytest.param([case for case in cases if case.parent.name == release], id=release, marks=marks)
        for release in sorted({case.parent.name for case in cases})
    ]


def is_slow(case: Path) -> bool:
    return case.stem in SLOW or case.parent.name == "22.05"  # which has five times as many


# Side by side, and in one test: the cases of a release take as long as the longest of them.
@pytest.mark.parametrize(
    "cases",
    [
        *of_release([case for case in CASES if not is_slow(case)]),
        *of_release([case for case in CASES if is_slow(case)], pytest.mark.slow),
    ],
)
def test_recorded_workloads_end_on_the_fake_as_on_the_real_slurm(cases: list[Path], tmp_path: Path) -> None:
    known = [json.loads(case.read_text()) for case in cases]
    with FakeCluster(shape=like_the_real_one(cases[0].parent.name)) as fake:
        seen = driver.run_all([Workload.from_json(one["workload"]) for one in known], fake.env, tmp_path)
    found = {case.stem: differences(one["real"], ours) for case, one, ours in zip(cases, known, seen, strict=True)}
    assert not {name: lines for name, lines in found.items() if lines}


def test_differences_reports_a_different_state_and_a_missing_file() -> None:
    """Else the tests above would prove nothing."""
    one = {"jobs": {"a": [{"JobState": "FAILED"}]}, "files": {"x": ["1"]}}
    other = {"jobs": {"a": [{"JobState": "COMPLETED"}]}, "files": {}}
    assert differences(one, other) == [
        "/files/x: real ['1'], fake None",
        "/jobs/a[0]/JobState: real 'FAILED', fake 'COMPLETED'",
    ]
