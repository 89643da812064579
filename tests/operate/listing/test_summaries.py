"""The kept summaries save time, and can never make `list` say what is not so."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clusterdp.operate.listing import look
from clusterdp.operate.listing.look import Summaries, summaries_path


@pytest.fixture
def path(elsewhere: Path) -> Path:
    return summaries_path()


def kept(path: Path, **texts: str) -> None:
    found = Summaries(path)
    for run, text in texts.items():
        found.put(run, "1", text)
    found.save()


def test_summary_is_found_only_by_its_stamp(path: Path) -> None:
    kept(path, a='{"step":1}', b="{}")
    found = Summaries(path)
    assert found.get("a", "1") == '{"step":1}'
    assert (found.get("a", "2"), found.get("c", "1")) == (None, None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not found.changed


def test_summaries_take_run_names_with_any_characters(path: Path) -> None:
    for name in ("a\tb", "a\nb", "ä", "\udce4", "a\u2028b"):
        kept(path, **{name: "{}"})
        assert Summaries(path).get(name, "1")
    assert len(path.read_bytes().splitlines()) == 6


def test_damaged_summaries_lose_only_the_damaged_entries(path: Path) -> None:
    texts = {f"run{i}": f'{{"step":{i}}}' for i in range(3)}
    kept(path, **texts)
    whole = path.read_bytes()
    for i in range(len(whole)):
        for damaged in (whole[:i], whole[:i] + b"\0" + whole[i + 1 :], whole[:i] + whole[i + 1 :]):
            path.write_bytes(damaged)
            found = Summaries(path)
            assert {found.get(run, "1") for run in texts} <= {None, *texts.values()}
            assert all(found.get(run, "1") in (None, text) for run, text in texts.items())


def test_summaries_of_another_version_are_ignored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(path, a="{}")
    monkeypatch.setattr(look, "HEADER", b"clusterdp 99, summaries 1")
    assert Summaries(path).get("a", "1") is None


def test_concurrent_saves_of_summaries_leave_a_whole_file(path: Path) -> None:
    first, second = Summaries(path), Summaries(path)
    first.put("a", "1", "{}")
    second.put("b", "1", "{}")
    first.save()
    second.save()
    assert [Summaries(path).get(run, "1") for run in "ab"] == [None, "{}"]
    assert [each.name for each in path.parent.iterdir()] == ["summaries"]


def test_dropped_run_leaves_the_summaries_and_unchanged_ones_are_not_written(path: Path) -> None:
    kept(path, a="{}", b="{}")
    before = path.stat().st_ino
    found = Summaries(path)
    found.drop("nosuch")
    found.save()
    assert path.stat().st_ino == before
    found.drop("a")
    found.save()
    assert [Summaries(path).get(run, "1") for run in "ab"] == [None, "{}"]


def test_summaries_file_keeps_a_readable_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "MOST", 2000)
    kept(path, **{f"run{i}": "x" * 100 for i in range(50)})
    assert 500 < path.stat().st_size < 1200
    assert Summaries(path).get("run49", "1")


def test_unwritable_summaries_are_not_an_error(path: Path) -> None:
    os.makedirs(path)
    kept(path, a="{}")
    assert Summaries(path).get("a", "1") is None
