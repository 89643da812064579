"""On real files: what is kept of each version that a program has written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from clusterdp.rehearse.observe import file_versions
from clusterdp.rehearse.observe.file_versions import FileVersions, files_at, folder_of_versions, read_versions
from clusterdp.rehearse.observe.file_watch import FileWatch
from clusterdp.rehearse.observe.live_run import LiveRun
from clusterdp.rundir import RunDir
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has inotify")


@contextmanager
def watched(tmp_path: Path, name: str = "run") -> Iterator[Path]:
    """The working folder of a run, whose versions are kept under this name."""
    run = RunDir(tmp_path / "run")
    run.code.mkdir(parents=True, exist_ok=True)
    live = cast(LiveRun, SimpleNamespace(run=run, step=lambda: 7, ranks=dict))
    versions = FileVersions(live, folder_of_versions(tmp_path / name))
    watch = FileWatch(live, below=versions.heard)
    yield run.code
    watch.uses()
    versions.close()


def contents(run: Path) -> list[tuple[str, str | None]]:
    return [(each.name, Path(each.copy).read_text() if each.copy else None) for each in read_versions(run)]


def test_file_versions_copies_each_written_file_with_its_step(tmp_path: Path) -> None:
    with watched(tmp_path) as code:
        (code / "a.pt").write_text("0")
        wait_for("the first version", lambda: contents(tmp_path / "run") == [("a.pt", "0")], 5)
        (code / "a.pt").write_text("1")
    with watched(tmp_path, "other") as code:
        (code / "a.pt").write_text("2")
        (code / "b.tmp").write_text("3")
    assert contents(tmp_path / "run") == [("a.pt", "0"), ("a.pt", "1")]
    assert contents(tmp_path / "other") == [("a.pt", "2"), ("b.tmp", "3")]
    assert [each.step for each in read_versions(tmp_path / "other")] == [7, 7]


def test_files_at_follows_renames_symlinks_and_deletions(tmp_path: Path) -> None:
    with watched(tmp_path) as code:
        (code / "a.tmp").write_text("1")
        (code / "a.tmp").rename(code / "a.pt")
        (code / "latest").symlink_to("a.pt")
        (code / "b.pt").write_text("2")
        (code / "b.pt").unlink()
    found = read_versions(tmp_path / "run")
    there = files_at(found, found[-1].at)
    assert sorted(there) == ["a.pt", "latest"]
    assert Path(there["latest"].copy).readlink() == Path("a.pt")
    assert files_at(found, found[0].at - 1) == {}


def test_file_larger_than_the_limit_is_recorded_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_versions, "LARGEST", 3)
    with watched(tmp_path) as code:
        (code / "a.pt").write_text("1234")
        (code / "b.pt").write_text("123")
    assert contents(tmp_path / "run") == [("a.pt", None), ("b.pt", "123")]
