"""Jobs of four ranks that failed on purpose: the first error, and whose it is. make_records.py has made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.why.first_failure import FirstFailure, find_failure
from clusterdp.rundir import RunDir
from tests.operate.why.make_records import EXPECTED, restore


def check(name: str, run: RunDir) -> FirstFailure:
    ranks, signature = EXPECTED[name]
    found = find_failure(read_history(run))
    assert found.rank in ranks, found
    assert (found.known.name if found.known else "") == signature, found
    assert found.node == f"n{1 + found.rank // 2}"
    assert found.error, found
    if not signature:
        assert found.error == "ValueError: the label 17 of image 4711 is not among 10 classes"
        assert any(found.error in line for line in found.lines)
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_find_failure_names_rank_and_cause_of_each_recorded_failed_run(name: str, tmp_path: Path) -> None:
    found = check(name, restore(name, tmp_path / name))
    assert found.rank not in found.followed
    assert found.behind == ((2,) if name == "collective-timeout" else ())
