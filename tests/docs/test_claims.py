"""Claims of the pages: the tests they name are there, and their figures are those that `make bench` compares."""

from __future__ import annotations

import re
from pathlib import Path

from tests.benchmarks.claims import CLAIMS, worse
from tests.docs.pages import ROOT
from tests.slurm.release import SUITES


def test_table_of_slurm_releases_names_existing_tests() -> None:
    section = (ROOT / "docs/releases.md").read_text()
    head, _, *rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    assert head[2:] == list(SUITES)
    tests = "".join(path.read_text() for path in (ROOT / "tests/e2e").glob("test_*.py"))
    for row in rows:
        assert f"def {row[1].strip('`')}(" in tests
        assert len(row) == len(head), row
        assert all(re.fullmatch(r"passed|not run|no: .+", cell) for cell in row[2:]), row


def test_proved_page_contains_every_figure_compared_by_make_bench() -> None:
    page = (ROOT / "docs/proved.md").read_text()
    for words, claimed, _ in CLAIMS:
        assert words in page and f"{claimed:g}" in words.replace(",", "")


def test_bench_comparison_lists_figures_unmeasured_or_20_percent_above_the_page(tmp_path: Path) -> None:
    _, first, name = CLAIMS[0]
    _, second, other = CLAIMS[1]
    (tmp_path / "figures").write_text(f'["{name}", {first * 1.2}]\n["{other}", {second * 1.05}]\n')
    rows = [*worse(tmp_path / "figures")]
    assert len(rows) == len(CLAIMS) - 1
    assert name in rows[0] and not any(other in row for row in rows)
