"""What stands in a store that everybody can write to is believed only if a rank of this very attempt has written it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch.distributed as dist

from clusterdp.train.ranks.peers import FAILED, PeerWatch
from clusterdp.train.ranks.store_notes import MOST, StoreNotes, make_key, read_key

KEY = bytes(range(32))


@pytest.fixture
def store() -> dist.HashStore:
    return dist.HashStore()


def notes(store: dist.HashStore, key: bytes | None = KEY, attempt: str = "7.0") -> StoreNotes:
    return StoreNotes(store, key, attempt)


def test_first_store_note_is_not_overwritten_by_later_ranks(store: dist.HashStore) -> None:
    assert notes(store).find("failed") is None
    notes(store).leave("failed", 3, "ValueError: a bad sample")
    notes(store).leave("failed", 5, "RuntimeError: connection closed")
    assert notes(store).find("failed") == (3, "ValueError: a bad sample")


@pytest.mark.parametrize("forged", ["rank 7: \x1b[31mboo", "", "0", "3 boo", "\udcff", f"{'0' * 64} 3 boo", "é 3 boo"])
def test_forged_store_note_is_ignored(store: dist.HashStore, forged: str) -> None:
    store.set("clusterdp/failed", forged.encode(errors="surrogateescape"))
    assert notes(store).find("failed") is None
    assert PeerWatch(notes(store), 1, 2).first_failure() is None
    notes(store).leave("failed", 0, "ValueError")
    assert notes(store).find("failed") == (0, "ValueError")


def test_store_note_is_valid_only_for_its_name_attempt_rank_and_key(store: dist.HashStore) -> None:
    notes(store).leave("failed", 3, "ValueError")
    note = store.get("clusterdp/failed")
    assert notes(store, attempt="7.1").find("failed") is None
    assert notes(store, key=bytes(32)).find("failed") is None
    store.set("clusterdp/leaving/3", note)
    assert notes(store).find("leaving/3") is None
    store.set("clusterdp/failed", note.replace(b" 3 ", b" 4 "))
    assert notes(store).find("failed") is None


def test_store_notes_without_a_key_are_neither_written_nor_read(store: dist.HashStore) -> None:
    notes(store, key=None).leave("failed", 3, "ValueError")
    assert store.num_keys() == 0
    notes(store).leave("failed", 3, "ValueError")
    assert notes(store, key=None).find("failed") is None


def test_store_note_is_one_short_printable_line(store: dist.HashStore) -> None:
    notes(store).leave(FAILED, 0, "a\nb\x1b[2Jc\x85" + "x" * 10_000)
    said = PeerWatch(notes(store), 1, 2).first_failure()
    assert said is not None
    assert said.startswith("rank 0: a b [2Jc x")
    assert len(said) < MOST + 20


def test_store_key_is_private_and_new_at_each_start(tmp_path: Path) -> None:
    path = tmp_path / "attempts" / "7.0" / "key"
    assert read_key(path) is None
    before = os.umask(0)
    try:
        make_key(path)
    finally:
        os.umask(before)
    first = read_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    make_key(path)
    assert first not in (None, read_key(path))


def test_truncated_symlinked_or_fifo_store_key_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"short")
    assert read_key(path) is None
    (tmp_path / "elsewhere").write_bytes(KEY)
    path.unlink()
    path.symlink_to("elsewhere")
    assert read_key(path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_key(path) is None
