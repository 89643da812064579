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


def test_cached_summary_is_returned_only_for_its_own_folder_stamp(path: Path) -> None:
    kept(path, a='{"step":1}', b="{}")
    found = Summaries(path)
    assert found.get("a", "1") == '{"step":1}'
    assert (found.get("a", "2"), found.get("c", "1")) == (None, None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not found.changed


def test_summaries_file_stores_run_names_with_odd_characters(path: Path) -> None:
    for name in ("a\tb", "a\nb", "ä", "\udce4", "a\u2028b"):
        kept(path, **{name: "{}"})
        assert Summaries(path).get(name, "1")
    assert len(path.read_bytes().splitlines()) == 6


def test_damaged_summaries_file_never_returns_a_wrong_summary(path: Path) -> None:
    texts = {f"run{i}": f'{{"step":{i}}}' for i in range(3)}
    kept(path, **texts)
    whole = path.read_bytes()
    for i in range(len(whole)):
        for damaged in (whole[:i], whole[:i] + b"\0" + whole[i + 1 :], whole[:i] + whole[i + 1 :]):
            path.write_bytes(damaged)
            found = Summaries(path)
            assert {found.get(run, "1") for run in texts} <= {None, *texts.values()}
            assert all(found.get(run, "1") in (None, text) for run, text in texts.items())


def test_summaries_file_of_another_version_is_ignored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(path, a="{}")
    monkeypatch.setattr(look, "HEADER", b"clusterdp 99, summaries 1")
    assert Summaries(path).get("a", "1") is None


def test_later_save_of_summaries_replaces_an_earlier_one_without_leaving_temporary_files(path: Path) -> None:
    first, second = Summaries(path), Summaries(path)
    first.put("a", "1", "{}")
    second.put("b", "1", "{}")
    first.save()
    second.save()
    assert [Summaries(path).get(run, "1") for run in "ab"] == [None, "{}"]
    assert [each.name for each in path.parent.iterdir()] == ["summaries"]


def test_drop_removes_a_run_from_summaries_and_save_skips_an_unchanged_file(path: Path) -> None:
    kept(path, a="{}", b="{}")
    before = path.stat().st_ino
    found = Summaries(path)
    found.drop("nosuch")
    found.save()
    assert path.stat().st_ino == before
    found.drop("a")
    found.save()
    assert [Summaries(path).get(run, "1") for run in "ab"] == [None, "{}"]


def test_summaries_file_is_limited_in_size_and_keeps_the_newest_run(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "MOST", 2000)
    kept(path, **{f"run{i}": "x" * 100 for i in range(50)})
    assert 500 < path.stat().st_size < 1200
    assert Summaries(path).get("run49", "1")


def test_unwritable_summaries_file_is_not_an_error(path: Path) -> None:
    os.makedirs(path)
    kept(path, a="{}")
    assert Summaries(path).get("a", "1") is None
