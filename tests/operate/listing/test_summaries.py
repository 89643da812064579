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


def test_what_is_put_is_found_by_its_stamp_alone(path: Path) -> None:
    kept(path, a='{"step":1}', b="{}")
    found = Summaries(path)
    assert found.get("a", "1") == '{"step":1}'
    assert (found.get("a", "2"), found.get("c", "1")) == (None, None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not found.changed


def test_names_may_have_anything_in_them(path: Path) -> None:
    for name in ("a\tb", "a\nb", "ä", "\udce4", "a\u2028b"):
        kept(path, **{name: "{}"})
        assert Summaries(path).get(name, "1")
    assert len(path.read_bytes().splitlines()) == 6


def test_damage_anywhere_only_loses_what_it_hits(path: Path) -> None:
    texts = {f"run{i}": f'{{"step":{i}}}' for i in range(3)}
    kept(path, **texts)
    whole = path.read_bytes()
    for i in range(len(whole)):
        for damaged in (whole[:i], whole[:i] + b"\0" + whole[i + 1 :], whole[:i] + whole[i + 1 :]):
            path.write_bytes(damaged)
            found = Summaries(path)
            assert {found.get(run, "1") for run in texts} <= {None, *texts.values()}
            assert all(found.get(run, "1") in (None, text) for run, text in texts.items())


def test_a_file_of_another_version_counts_for_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(path, a="{}")
    monkeypatch.setattr(look, "HEADER", b"clusterdp 99, summaries 1")
    assert Summaries(path).get("a", "1") is None


def test_of_two_that_save_at_once_one_wins_and_neither_is_torn(path: Path) -> None:
    first, second = Summaries(path), Summaries(path)
    first.put("a", "1", "{}")
    second.put("b", "1", "{}")
    first.save()
    second.save()
    assert [Summaries(path).get(run, "1") for run in "ab"] == [None, "{}"]
    assert [each.name for each in path.parent.iterdir()] == ["summaries"]


def test_a_run_that_is_gone_is_dropped_and_nothing_is_written_for_nothing(path: Path) -> None:
    kept(path, a="{}", b="{}")
    before = path.stat().st_ino
    found = Summaries(path)
    found.drop("nosuch")
    found.save()
    assert path.stat().st_ino == before
    found.drop("a")
    found.save()
    assert [Summaries(path).get(run, "1") for run in "ab"] == [None, "{}"]


def test_the_file_does_not_outgrow_what_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "MOST", 2000)
    kept(path, **{f"run{i}": "x" * 100 for i in range(50)})
    assert 500 < path.stat().st_size < 1200
    assert Summaries(path).get("run49", "1")


def test_a_state_folder_that_cannot_be_written_is_no_error(path: Path) -> None:
    os.makedirs(path)
    kept(path, a="{}")
    assert Summaries(path).get("a", "1") is None
