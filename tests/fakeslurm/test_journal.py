"""What is on disk is written again now and then, without what is outdated."""

from pathlib import Path

import pytest

from clusterdp.fakeslurm.slurmctld import journal


def test_journal_growth_is_counted_from_its_size_at_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else ten thousand jobs would keep the daemon busy for ever."""
    monkeypatch.setattr(journal, "GROWN", 1000)
    book = journal.Journal(tmp_path / "journal")
    book.write("next_id", 0, "x" * 2000)
    book.flush()
    assert book.grown
    book.close()
    again = journal.Journal(tmp_path / "journal")
    assert not again.grown
    again.close()
