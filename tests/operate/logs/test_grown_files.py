from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterdp.operate.logs import show_logs
from clusterdp.operate.logs.show_logs import GrownFiles, NewNames


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_grown_files_reports_a_changed_size_at_the_next_poll(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "log"
    files = GrownFiles(0.3, clock)
    assert not files.grown(str(path))
    path.write_text("a")
    assert files.grown(str(path)) and not files.grown(str(path))
    path.write_text("ab")
    clock.now += 0.3
    assert files.grown(str(path))
    path.write_text("")  # cut short
    clock.now += 0.3
    assert files.grown(str(path))
    path.unlink()
    clock.now += 0.3
    assert not files.grown(str(path))


def test_grown_files_opens_a_file_to_refresh_a_stale_nfs_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NFS stat() may answer from memory."""
    clock, path = Clock(), tmp_path / "log"
    path.write_text("a")
    files = GrownFiles(0.3, clock)
    assert files.grown(str(path))
    old = os.stat(path)
    path.write_text("ab")
    stale = SimpleNamespace(stat=lambda path: old, fstat=os.fstat, close=os.close)
    monkeypatch.setattr(show_logs, "os", stale)
    clock.now += 0.3
    assert files.grown(str(path))


def test_unchanged_log_files_are_polled_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    files = GrownFiles(0.3, clock)
    paths = [str(tmp_path / str(rank)) for rank in range(1024)]
    for path in paths:
        Path(path).write_text("a")
        assert files.grown(path)
    calls = Counter[str]()

    def counted(name: str, real: Callable[[str], Any]) -> Callable[[str], Any]:
        def call(path: str) -> Any:
            calls[name] += 1
            return real(path)

        return call

    counting = SimpleNamespace(stat=counted("stat", os.stat), fstat=os.fstat, close=os.close)
    monkeypatch.setattr(show_logs, "os", counting)
    monkeypatch.setattr(show_logs, "open_plain", counted("open", show_logs.open_plain))
    for _ in range(40):  # 12 s
        clock.now += 0.3
        assert not any(files.grown(path) for path in paths)
    assert calls["stat"] <= 15 * 1024
    assert calls["open"] <= 6 * 1024


def test_log_folder_is_listed_after_changes_and_periodically(tmp_path: Path) -> None:
    clock = Clock()
    names = NewNames(clock)
    assert not names.may_be_in(tmp_path / "none")
    assert names.may_be_in(tmp_path) and not names.may_be_in(tmp_path)
    os.utime(tmp_path, (1, 1))
    assert names.may_be_in(tmp_path)
    clock.now += 3
    assert names.may_be_in(tmp_path) and not names.may_be_in(tmp_path)
