"""Files that a snapshot shares with that of an earlier run, and those that it must not."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from clusterdp.config.tree import SnapshotConfig
from clusterdp.submission.snapshot.code_snapshot import CodeSnapshot, take
from clusterdp.submission.snapshot.copied_files import RECENT_NS, find_earlier

LONG_AGO = 1_600_000_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    (folder / "pkg").mkdir(parents=True)
    for name in ("train.py", "pkg/model.py"):
        (folder / name).write_text(name)
        os.utime(folder / name, (LONG_AGO, LONG_AGO))
    return folder


def snapshot(source: Path, name: str) -> CodeSnapshot:
    run = source.parent / "runs" / name
    run.mkdir(parents=True)
    taken = take(source, run / "code", SnapshotConfig(), leave_out=run)
    (run / "config.yaml").write_text("")
    return taken


def code(source: Path, run: str, name: str) -> Path:
    return source.parent / "runs" / run / "code" / name


def test_unchanged_file_is_hard_linked_to_the_earlier_snapshot_and_outlives_it(source: Path) -> None:
    assert snapshot(source, "a").copied == 2
    (source / "train.py").write_text("edited")
    (source / "new.py").write_text("new")
    assert snapshot(source, "b").copied == 2
    shared = "pkg/model.py"
    assert code(source, "a", shared).samefile(code(source, "b", shared))
    assert not code(source, "a", "train.py").samefile(code(source, "b", "train.py"))
    assert (code(source, "a", "train.py").read_text(), code(source, "b", "train.py").read_text()) == (
        "train.py",
        "edited",
    )
    shutil.rmtree(source.parent / "runs/a")
    assert code(source, "b", shared).read_text() == shared


def test_snapshot_files_are_read_only_and_keep_other_permissions(source: Path) -> None:
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o750)
    snapshot(source, "a")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in code(source, "a", ".").rglob("*.*")}
    assert all(mode & 0o222 == 0 for mode in modes.values())
    assert modes["run.sh"] == 0o550


def test_writable_file_of_an_earlier_snapshot_becomes_read_only_when_shared(source: Path) -> None:
    snapshot(source, "a")
    code(source, "a", "train.py").chmod(0o644)
    assert snapshot(source, "b").copied == 0
    assert stat.S_IMODE(code(source, "a", "train.py").stat().st_mode) == 0o444


def test_edit_with_unchanged_size_and_time_within_a_clock_tick_is_copied(source: Path) -> None:
    """The same size and time: an editor, then submit, then the editor again, faster than the file system's clock."""
    snapshot(source, "a")
    taken = (source.parent / "runs/a/config.yaml").stat().st_mtime_ns - RECENT_NS // 2
    for path in (source / "train.py", code(source, "a", "train.py")):
        os.utime(path, ns=(taken, taken))
    assert snapshot(source, "b").copied == 0
    (source / "train.py").write_text("TRAIN.py")
    os.utime(source / "train.py", ns=(taken, taken))
    snapshot(source, "c")
    assert code(source, "c", "train.py").read_text() == "TRAIN.py"


@pytest.mark.parametrize("what", ["owner", "mode", "content"])
def test_file_with_a_different_owner_mode_or_content_is_copied(
    source: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    snapshot(source, "a")
    if what == "owner":  # who could change it later
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    elif what == "mode":
        (source / "train.py").chmod(0o755)
    else:  # a program has written into its own code
        code(source, "a", "train.py").unlink()
        code(source, "a", "train.py").write_text("TRAIN.py")
    assert snapshot(source, "b").copied == (2 if what == "owner" else 1)
    assert code(source, "b", "train.py").read_text() == "train.py"


def test_snapshot_copies_files_if_hard_links_fail(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot(source, "a")

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert snapshot(source, "b").copied == 2
    assert code(source, "b", "train.py").read_text() == "train.py"


def test_find_earlier_takes_the_newest_run_in_the_same_folder(tmp_path: Path) -> None:
    for i, name in enumerate(["x-20260101-000000-aaaa", "x-20260301-000000-aaaa", "y-20260201-000000-aaaa", "mine"]):
        (tmp_path / name / "code").mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("")
        os.utime(tmp_path / name / "config.yaml", (i, i))
    (tmp_path / "new" / "code").mkdir(parents=True)
    found = find_earlier(tmp_path / "new")
    assert found is not None
    assert found.code == str(tmp_path / "mine" / "code")
    shutil.rmtree(tmp_path / "mine")
    found = find_earlier(tmp_path / "new")
    assert found is not None
    assert found.code == str(tmp_path / "x-20260301-000000-aaaa" / "code")
