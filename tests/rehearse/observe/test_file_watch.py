"""On real files: how a program has written and read them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from clusterdp.rehearse.observe.file_events import FileEvent
from clusterdp.rehearse.observe.file_use import FileUse, is_best, is_checkpoint
from clusterdp.rehearse.observe.file_watch import FileWatch
from clusterdp.rehearse.observe.live_run import LiveRun
from clusterdp.rundir import RunDir

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has inotify")


def watched(tmp_path: Path, counts: Callable[[str], bool] = is_checkpoint) -> tuple[FileWatch, Path]:
    """Of a run with two ranks, both of which are this process."""
    run = RunDir(tmp_path / "run")
    folder = run.code / "out"
    folder.mkdir(parents=True, exist_ok=True)
    ranks = {0: [os.getpid()], 1: [os.getpid()]}
    return FileWatch(cast(LiveRun, SimpleNamespace(run=run, step=lambda: 7, ranks=lambda: ranks)), counts), folder


def test_late_file_watch_orders_files_before_and_after_a_mark(tmp_path: Path) -> None:
    go_on = threading.Event()
    watch, folder = watched(tmp_path, lambda path: go_on.wait(10))
    (folder / "before.pt").write_bytes(b"x")
    (folder / "renamed.tmp").write_bytes(b"x")
    (folder / "renamed.tmp").rename(folder / "renamed.pt")
    with (folder / "cut.pt").open("wb", buffering=0) as file:
        file.write(b"x")
        mark = watch.mark()
    (folder / "after.pt").write_bytes(b"x")
    time.sleep(0.01)
    os.utime(folder / "before.pt")  # the file's time is later than the mark by now
    go_on.set()
    uses = watch.uses()
    times = {name: (uses[f"out/{name}"].written or uses[f"out/{name}"].named)[0] for name in os.listdir(folder)}
    assert times["before.pt"] <= mark and times["renamed.pt"] <= mark
    assert times["cut.pt"] == mark <= times["after.pt"]


def test_late_file_watch_gives_each_write_the_step_of_its_opening(tmp_path: Path) -> None:
    go_on = threading.Event()
    watch, folder = watched(tmp_path, lambda path: go_on.wait(10))
    for step in (2, 4):
        for name in ("last.pt", "new.tmp"):
            watch.heard(FileEvent("write", str(folder / name), step=step, pid=os.getpid(), at=time.time()))
            (folder / name).write_bytes(b"x")
        (folder / "new.tmp").rename(folder / f"{step}.pt")
    watch.heard(FileEvent("link", str(folder / "#"), str(folder / "6.pt"), step=6, pid=os.getpid(), at=time.time()))
    os.link(folder / "last.pt", folder / "6.pt")
    go_on.set()
    uses = watch.uses()
    assert {name: use.steps for name, use in uses.items()} == {
        "out/last.pt": [2, 4],
        "out/new.tmp": [2, 4],
        "out/2.pt": [2],
        "out/4.pt": [4],
        "out/6.pt": [6],
    }
    assert uses["out/6.pt"].named


def test_file_watch_records_writes_renames_reads_and_deletions_of_checkpoints(tmp_path: Path) -> None:
    watch, folder = watched(tmp_path)
    (folder / "in_place.pt").write_bytes(b"x")
    (folder / "kept.pt").write_bytes(b"x")
    (folder / "whole.pt.tmp").write_bytes(b"x")
    (folder / "whole.pt.tmp").rename(folder / "whole.pt")
    (folder / "whole.pt").read_bytes()
    (folder / "notes.txt").write_text("no checkpoint")
    (folder / "in_place.pt").unlink()
    uses = watch.uses()
    assert sorted(uses) == [f"out/{name}" for name in ("in_place.pt", "kept.pt", "whole.pt", "whole.pt.tmp")]
    assert uses["out/kept.pt"].in_place
    assert not uses["out/whole.pt"].in_place and not uses["out/whole.pt.tmp"].in_place
    assert uses["out/whole.pt.tmp"].steps == uses["out/whole.pt"].steps == [7]
    assert uses["out/whole.pt.tmp"].size == uses["out/whole.pt"].size == 1
    assert len(uses["out/whole.pt"].read) == 1 and not uses["out/in_place.pt"].read
    assert uses["out/in_place.pt"].gone


def test_file_moved_in_from_another_folder_is_recorded_with_its_size(tmp_path: Path) -> None:
    watch, folder = watched(tmp_path)
    (tmp_path / "tmpabcd_123").write_bytes(b"abc")
    (tmp_path / "tmpabcd_123").rename(folder / "last.pt")
    assert watch.uses()["out/last.pt"].size == 3


def test_folder_outside_the_run_is_watched_from_its_first_write_event(tmp_path: Path) -> None:
    watch, _ = watched(tmp_path)
    file = tmp_path / "scratch" / "last.pt"
    file.parent.mkdir()
    watch.heard(FileEvent("write", str(file), pid=os.getpid()))
    file.write_bytes(b"abc")
    file.read_bytes()
    use = watch.uses()[str(file)]
    assert (use.size, len(use.written), len(use.read)) == (3, 1, 1)


def test_files_of_a_new_folder_are_recorded_once(tmp_path: Path) -> None:
    watch, folder = watched(tmp_path)
    (folder / "step_4").mkdir()
    for name in ("model.pt", "optimizer.pt"):
        (folder / "step_4" / name).write_bytes(b"x")
    uses = watch.uses()
    assert {path: (len(use.written), use.in_place) for path, use in uses.items()} == {
        "out/step_4/model.pt": (1, True),
        "out/step_4/optimizer.pt": (1, True),
    }


def test_renamed_folder_renames_its_files_and_stays_watched(tmp_path: Path) -> None:
    (tmp_path / "run/code/out/step_4.partial/deep").mkdir(parents=True)
    watch, folder = watched(tmp_path)
    for name in ("model.safetensors", "deep/rng.pt"):
        (folder / "step_4.partial" / name).write_bytes(b"x")
    (folder / "step_4.partial").rename(folder / "step_4")
    (folder / "step_4/model.safetensors").read_bytes()
    (folder / "step_4/later.pt").write_bytes(b"x")
    uses = watch.uses()
    passing = uses["out/step_4.partial/model.safetensors"]
    assert passing.gone and not passing.in_place
    assert uses["out/step_4/model.safetensors"].named and uses["out/step_4/model.safetensors"].read
    assert uses["out/step_4/deep/rng.pt"].named
    assert uses["out/step_4/later.pt"].written, "the folder is still listened to, under its new name"


def test_file_open_for_writing_is_recorded_with_its_ranks(tmp_path: Path) -> None:
    watch, folder = watched(tmp_path)
    with (folder / "shared.pt").open("wb", buffering=0) as file:
        file.write(b"x")
        uses = watch.uses()
    assert uses["out/shared.pt"].by == [0, 1]


def test_file_is_whole_from_its_last_write_or_rename_until_its_deletion() -> None:
    use = FileUse(written=[1.0, 5.0], gone=[3.0])
    assert FileUse(written=[1.0]).in_place and not use.in_place
    assert [use.whole_at(time) for time in (0.5, 2.0, 4.0, 6.0)] == [None, 1.0, None, 5.0]
    assert FileUse(named=[2.0]).whole_at(3.0) == 2.0


def test_file_has_the_step_of_its_last_write_or_rename() -> None:
    use = FileUse(written=[1.0, 5.0], named=[3.0], steps=[10, 30, 50])
    assert [use.step_at(time) for time in (0.5, 2.0, 4.0, 6.0)] == [None, 10, 30, 50]
    assert FileUse(written=[1.0], steps=[0]).step_at(2.0) is None, "nothing was told yet"


def test_checkpoints_and_best_models_are_recognized_by_name() -> None:
    yes = ("a/step_4.pt", "model.safetensors", "last.ckpt.tmp", "tmp.pt", "ckpt.pt.12345", "x.tmp")
    assert [name for name in yes if not is_checkpoint(name)] == []
    no = ("/tmp/train.py", "/tmp/pytest-1/log.txt", "template.html", "metrics.jsonl")
    assert [name for name in no if is_checkpoint(name)] == []
    assert [name for name in ("best.pt", "model_best.pt", "ema.pt", "schema.pt", "last.pt") if is_best(name)] == [
        "best.pt",
        "model_best.pt",
        "ema.pt",
    ]
