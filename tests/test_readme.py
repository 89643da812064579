"""What the README says of releases of Slurm: each test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.slurm.release import SUITES

ROOT = Path(__file__).resolve().parents[1]


def test_each_test_in_the_table_of_releases_is_there() -> None:
    section = (ROOT / "README.md").read_text().split("## Releases of Slurm")[1].split("\n## ")[0]
    head, _, *rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    assert head[2:] == list(SUITES)
    tests = "".join(path.read_text() for path in (ROOT / "tests/e2e").glob("test_*.py"))
    for row in rows:
        assert f"def {row[1].strip('`')}(" in tests
        assert len(row) == len(head), row
        assert all(re.fullmatch(r"passed|not run|no: .+", cell) for cell in row[2:]), row
