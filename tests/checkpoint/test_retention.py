"""Retention: what it may delete, and in which order."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterdp.checkpoint import Checkpointer, CheckpointError, list_checkpoints
from clusterdp.checkpoint.format.layout import token_of_file
from clusterdp.checkpoint.format.manifest import CheckpointInfo
from clusterdp.checkpoint.format.retention import leftovers, prune, to_delete
from clusterdp.storage import LocalStorage
from tests.checkpoint.training import Counter


def commits(count: int) -> list[CheckpointInfo]:
    return [CheckpointInfo(100 - n, f"{n:012x}-0001", f"{n:012x}-0001", n, 0.0, 1, 1, "") for n in range(1, count + 1)]


numbers = st.sets(st.integers(1, 12))


@given(st.integers(0, 12), st.integers(1, 5), st.none() | st.integers(1, 5), numbers, numbers, numbers)
def test_to_delete_keeps_newest_pinned_unsure_and_every_nth_checkpoint(
    count: int, keep_last: int, keep_every: int | None, bad: set[int], unsure: set[int], pinned: set[int]
) -> None:
    def tokens(orders: set[int]) -> set[str]:
        return {f"{n:012x}-0001" for n in orders}

    victims = to_delete(
        commits(count), keep_last, keep_every, bad=tokens(bad), unsure=tokens(unsure), pinned=tokens(pinned)
    )
    gone = {info.order for info in victims}
    good = [n for n in range(1, count + 1) if n not in bad | unsure]
    newest = set(good[-keep_last:])
    assert not gone & (newest | unsure | pinned)
    assert not gone & {n for n in good if keep_every and n % keep_every == 0}
    # And nothing else stays, but what is newer than the oldest of the newest.
    stay = newest | unsure | pinned | {n for n in good if keep_every and n % keep_every == 0}
    if len(good) > keep_last:
        assert gone == {n for n in range(1, min(newest)) if n not in stay}
    else:
        assert not gone


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 5), numbers)
def test_to_delete_keeps_the_newest_good_checkpoint_of_each_phase(
    phases: list[str], keep_last: int, bad: set[int]
) -> None:
    all_of_them = [replace(info, phase=phase) for info, phase in zip(commits(len(phases)), phases, strict=True)]
    tokens = {f"{n:012x}-0001" for n in bad}
    gone = to_delete(all_of_them, keep_last, bad=tokens)
    newest = {info.phase: info for info in all_of_them if info.token not in tokens}
    assert not {info.token for info in newest.values()} & {info.token for info in gone}
    assert all(info.token in tokens or info.order < newest[info.phase].order for info in gone)


class Noted(LocalStorage):
    """Says in which order it was asked to change something; `stuck` cannot be removed."""

    def __init__(self, path: Path, stuck: str = "none"):
        super().__init__(path)
        self.asked: list[str] = []
        self.stuck = stuck

    def remove(self, name: str) -> None:
        self.asked.append(f"remove {name}")
        if self.stuck in name:
            raise OSError(errno.EBUSY, "Device or resource busy", name)
        super().remove(name)

    def sync_folder(self, folder: str) -> None:
        self.asked.append(f"sync {folder}")
        super().sync_folder(folder)


def save(folder: Path, *steps: int) -> list[CheckpointInfo]:
    checkpointer = Checkpointer(folder, {"x": Counter()}, keep_last=9)
    for step in steps:
        checkpointer.save(step)
    return list_checkpoints(folder)


def test_prune_removes_and_syncs_the_manifest_before_its_files(tmp_path: Path) -> None:
    """After a power cut in between there may be files without a manifest, never a manifest without its files."""
    (info,) = save(tmp_path, 1)
    storage = Noted(tmp_path)
    prune(storage, [info], [info], lambda: True)
    assert storage.asked[:2] == [f"remove {info.name}", f"sync {info.folder}"]
    assert all(token_of_file(asked.rpartition("/")[2]) == info.token for asked in storage.asked[2:])
    assert len(storage.asked) == 2 + 3
    assert list(tmp_path.iterdir()) == []


def test_prune_continues_with_the_next_checkpoint_after_a_failed_deletion(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commits = save(tmp_path, 1, 2, 3)
    prune(Noted(tmp_path, stuck=commits[0].name), commits, commits[:2], lambda: True)
    assert list_checkpoints(tmp_path) == [commits[0], commits[2]]
    assert f"{commits[0].name}: could not be deleted: " in caplog.text


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_retention_deletes_no_files_behind_a_symlinked_step_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    save(theirs, 1)
    before = contents(theirs)
    ours.mkdir()
    (ours / "step_00000001").symlink_to(theirs / "step_00000001")
    checkpointer = Checkpointer(ours, {"x": Counter()}, keep_last=1)
    for step in (2, 3):
        checkpointer.save(step)
    assert contents(theirs) == before
    assert "step_00000001 is a link, and what it leads to is left alone" in caplog.text
    assert [info.step for info in list_checkpoints(ours)] == [1, 3]


def test_leftovers_are_only_old_files_without_any_possible_manifest(tmp_path: Path) -> None:
    def names() -> set[str]:
        return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*-r0000*")}

    (first,) = save(tmp_path, 1)
    storage = LocalStorage(tmp_path)
    checkpointer = Checkpointer(tmp_path, {"x": Counter()}, keep_last=1)
    save(tmp_path, 2)
    checkpointer.restore(1, retire_later=True)
    (tmp_path / first.name).unlink()  # the files of the first are now those of the third alone
    unread = tmp_path / "step_00000003"
    unread.mkdir()
    (unread / "MANIFEST.aaaaaaaaaaaa-0001.json").write_text("cannot be read just now")
    for name in ("aaaaaaaaaaaa-0001-r0000.json", "bbbbbbbbbbbb-0001-r0000.json"):
        (unread / name).write_text("x")
    dead, ours = "cccccccccccc-0001-r0000.json", "dddddddddddd-0001-r0000.json"
    for name in (dead, ours):
        (tmp_path / "step_00000002" / name).write_text("x")
    for name in names():
        os.utime(tmp_path / name, (1e9, 1e9))
    commits = list_checkpoints(tmp_path)
    assert len(commits) == 2
    assert list(leftovers(storage, commits, commits[-1], "dddddddddddd")) == [f"step_00000002/{dead}"]


class Sick(LocalStorage):
    """Manifests of these names cannot be read for now; nothing can be published while it is `full`."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.sick: set[str] = set()
        self.full = False

    def read(self, name: str, limit: int | None = None) -> bytes:
        if name in self.sick:
            raise OSError(errno.EIO, "Input/output error", name)
        return super().read(name, limit)

    def publish(self, name: str, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        super().publish(name, data)


def after_two_saves(folder: Path, keep_last: int = 3) -> tuple[Sick, Checkpointer]:
    """A new attempt, which has not looked yet."""
    before = Checkpointer(folder, {"x": Counter()})
    before.save(1)
    before.save(2)
    storage = Sick(folder)
    return storage, Checkpointer(storage, {"x": Counter()}, keep_last=keep_last)


def test_checkpoint_saved_after_a_failed_save_sorts_after_an_unreadable_one(tmp_path: Path) -> None:
    storage, checkpointer = after_two_saves(tmp_path)
    storage.sick = {list_checkpoints(tmp_path)[-1].name}
    checkpointer.restore()
    storage.full = True
    with pytest.raises(CheckpointError, match="No space left"):
        checkpointer.save(3)
    storage.full = False
    checkpointer.save(4)
    assert [info.step for info in list_checkpoints(tmp_path)] == [1, 2, 4]
    assert len({info.order for info in list_checkpoints(tmp_path)}) == 3


def test_commit_is_newer_than_an_unreadable_rollback_manifest(tmp_path: Path) -> None:
    storage, checkpointer = after_two_saves(tmp_path)
    checkpointer.restore(1, retire_later=True)
    storage.sick = {list_checkpoints(tmp_path)[-1].name}
    checkpointer.save(3)
    commits = list_checkpoints(tmp_path)
    assert commits[-1].step == 3
    assert len({info.order for info in commits}) == len(commits)


def test_retention_keeps_files_of_a_temporarily_unreadable_manifest(tmp_path: Path) -> None:
    storage, checkpointer = after_two_saves(tmp_path, keep_last=1)
    checkpointer.restore(1, retire_later=True)  # a second manifest of step 1, with the files of the first
    storage.sick = {list_checkpoints(tmp_path)[-1].name}
    checkpointer.save(3)
    assert [info.step for info in list_checkpoints(tmp_path)] == [1, 3], "the first manifest of step 1 goes"
    storage.sick = set()
    restored = Checkpointer(tmp_path, {"x": Counter()}).restore(1)
    assert restored is not None
    assert restored.step == 1
