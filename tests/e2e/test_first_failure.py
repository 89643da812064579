"""The jobs of tests/operate/why/records, failed anew: real processes, on the fake cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operate.why.make_records import EXPECTED, cluster, fail
from tests.operate.why.test_records import check


@pytest.mark.slow
def test_find_failure_names_the_first_failed_rank_of_fresh_runs(tmp_path: Path) -> None:
    with cluster() as environ:
        for name in EXPECTED:
            check(name, fail(name, tmp_path, environ))
