"""The jobs of tests/operate/why/records, failed anew: real processes, on the fake cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operate.why.make_records import EXPECTED, cluster, fail
from tests.operate.why.test_records import check


@pytest.mark.slow
def test_why_names_the_rank_to_fail_first(tmp_path: Path) -> None:
    with cluster() as environ:
        for name in EXPECTED:
            check(name, fail(name, tmp_path, environ))
