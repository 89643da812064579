"""Checkpoints on a disk nearby, and in a store that is away for a while."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from clusterdp.checkpoint import Checkpointer, CheckpointError, list_checkpoints
from clusterdp.storage import LocalStorage
from tests.checkpoint.gang import on_ranks
from tests.checkpoint.test_async_save import counter, steps
from tests.train.ranks import wait_until


class Store(LocalStorage):
    """A store that can be away."""

    def __init__(self, path: Path | str):
        super().__init__(path)
        self.away = False

    def list(self, folder: str = "") -> list[str]:
        if self.away:
            raise OSError(110, "Connection timed out", str(self.root))
        return super().list(folder)

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        self.list()
        super().write(name, chunks)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Checkpointer, Store]]:
    monkeypatch.setattr("clusterdp.checkpoint.save.mirror.LONGEST_PAUSE_S", 0.01)

    def checkpointer(x: Any, **options: Any) -> tuple[Checkpointer, Store]:
        store = Store(tmp_path / "far")
        return Checkpointer(store, {"x": x}, local=tmp_path / "near", **options), store

    return checkpointer


def test_upload_copies_local_checkpoints_to_the_store_with_separate_retention(make: Any, tmp_path: Path) -> None:
    checkpointer, _ = make(counter(1.0), keep_local=2, keep_last=3)
    for step in range(1, 6):
        checkpointer.save(step)
        assert checkpointer.upload(60)
    assert steps(tmp_path / "near") == [4, 5]
    assert steps(tmp_path / "far") == [3, 4, 5]
    near, far = (list_checkpoints(tmp_path / name)[-1] for name in ("near", "far"))
    assert near == far, "it is the same commit"
    fresh = counter(0.0)
    restored = Checkpointer(tmp_path / "far", {"x": fresh}).restore()
    assert restored is not None
    assert (restored.skipped, fresh.state["value"]) == ((), 1.0)


def test_unreachable_store_delays_no_save_and_later_gets_the_newest_checkpoint(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer, store = make(counter(1.0), keep_local=2)
    store.away = True
    for step in range(1, 6):
        checkpointer.save(step)
    wait_until(lambda: caplog.text, "a word about it")
    assert not checkpointer.upload(0)
    assert steps(tmp_path / "near") == [4, 5]
    assert "Connection timed out" in caplog.text
    store.away = False
    assert checkpointer.upload(60)
    assert steps(tmp_path / "far") == [5]
    assert caplog.text.count("Connection timed out") == 1


def test_unreachable_store_later_gets_the_newest_checkpoint_of_each_phase(make: Any, tmp_path: Path) -> None:
    checkpointer, store = make(counter(1.0), keep_local=1)
    store.away = True
    checkpointer.save(1)
    checkpointer.begin("second", {"x": counter(1.0)}, 1)
    checkpointer.save(2)
    store.away = False
    assert checkpointer.upload(60)
    assert steps(tmp_path / "far") == [1, 2]


def test_restore_uses_the_local_folder_while_the_store_is_unreachable(make: Any, tmp_path: Path) -> None:
    checkpointer, store = make(counter(1.0))
    checkpointer.save(1)
    checkpointer.upload(60)
    fresh = counter(0.0)
    checkpointer, store = make(fresh)
    store.away = True
    assert checkpointer.restore().step == 1
    assert fresh.state["value"] == 1.0
    shutil.rmtree(tmp_path / "near")
    checkpointer, store = make(counter(0.0))
    store.away = True
    with pytest.raises(CheckpointError, match="Connection timed out"):
        checkpointer.restore()


def test_emptied_local_folder_restores_its_checkpoint_from_the_store(make: Any, tmp_path: Path) -> None:
    checkpointer, _ = make(counter(1.0))
    checkpointer.save(7)
    assert checkpointer.upload(60)
    shutil.rmtree(tmp_path / "near")
    checkpointer, _ = make(fresh := counter(0.0))
    assert checkpointer.restore().step == 7
    assert fresh.state["value"] == 1.0
    checkpointer.save(8)
    assert [info.order for info in list_checkpoints(tmp_path / "near")] == [1, 2], "the order of commits goes on"


def flip(folder: Path, step: int, pattern: str) -> None:
    (file,) = (folder / f"step_{step:08d}").glob(pattern)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_restore_takes_the_newest_good_checkpoint_in_the_store_or_fails(make: Any, tmp_path: Path) -> None:
    checkpointer, _ = make(counter(1.0))
    for step in (1, 2):
        checkpointer.save(step)
        assert checkpointer.upload(60)
    shutil.rmtree(tmp_path / "near")
    flip(tmp_path / "far", 2, "*-of-0001.safetensors")
    assert make(counter(0.0))[0].restore().step == 1
    shutil.rmtree(tmp_path / "near")
    flip(tmp_path / "far", 1, "MANIFEST*")
    with pytest.raises(CheckpointError, match="none is good"):
        make(counter(0.0))[0].restore()


def test_checkpoint_not_uploaded_by_one_attempt_is_uploaded_by_the_next(make: Any, tmp_path: Path) -> None:
    checkpointer, store = make(counter(1.0))
    store.away = True
    checkpointer.save(1)
    later, _ = make(counter(0.0))
    later.restore()
    assert later.upload(60)
    assert steps(tmp_path / "far") == [1]


def test_restore_reads_a_damaged_local_checkpoint_from_the_store_instead(make: Any, tmp_path: Path) -> None:
    checkpointer, _ = make(counter(1.0))
    checkpointer.save(1)
    checkpointer.save(2)
    assert checkpointer.upload(60)
    flip(tmp_path / "near", 2, "*-of-0001.safetensors")
    checkpointer, _ = make(fresh := counter(0.0))
    restored = checkpointer.restore()
    assert (restored.step, len(restored.skipped), fresh.state["value"]) == (2, 1, 1.0)


def test_step_deleted_locally_can_be_restored_from_the_store(make: Any, tmp_path: Path) -> None:
    checkpointer, _ = make(counter(1.0), keep_local=1)
    for step in (1, 2, 3):
        checkpointer.save(step)
        assert checkpointer.upload(60)
    assert steps(tmp_path / "near") == [3]
    checkpointer, _ = make(counter(0.0), keep_local=1)
    assert checkpointer.restore(1, retire_later=True).step == 1
    assert list_checkpoints(tmp_path / "near")[-1].step == 1


def save_on(rank: int, size: int, near: str, far: str) -> bool:
    checkpointer = Checkpointer(far, {"x": counter(1.0)}, local=near)
    checkpointer.async_save(1)
    checkpointer.wait()
    return checkpointer.upload(60)


def test_upload_of_a_checkpoint_by_three_ranks_reaches_the_store(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    assert on_ranks(3, save_on, str(near), str(far)) == [True] * 3
    assert steps(far) == [1]
    files = [{path.name: path.read_bytes() for path in folder.glob("*/*")} for folder in (far, near)]
    assert files[0] == files[1]
    assert len(files[0]) == 2, "of their node, and the manifest"
