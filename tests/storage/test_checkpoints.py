"""Whole checkpoints on real servers: saved, damaged, fallen back from, pruned; as on a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from clusterdp.checkpoint import Checkpointer, list_checkpoints
from clusterdp.checkpoint.format.manifest import scan
from clusterdp.storage import Storage
from tests.checkpoint.training import Counter


@pytest.fixture(autouse=True)
def leave_the_random_numbers_alone() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


def state(value: float) -> dict[str, Counter]:
    shared, own = Counter(), Counter(per_rank=True)
    shared.state = {"tensor": torch.full((300_000,), value), "value": value}
    own.state = {"mine": torch.full((3,), value)}
    return {"shared": shared, "own": own}


def steps(storage: Storage) -> list[int]:
    return [info.step for info in scan(storage)[0]]


@pytest.mark.parametrize("kind", ["memory", "s3", "sftp"])
def test_checkpointer_saves_falls_back_and_prunes_on_memory_s3_and_sftp(
    kind: str, open_kind: Callable[..., Storage]
) -> None:
    storage = open_kind(kind)
    saver = Checkpointer(storage, state(0.0), keep_last=2)
    for step in (1, 2, 3):
        saver = Checkpointer(storage, state(float(step)), keep_last=2)
        saver.save(step)
    assert steps(storage) == [2, 3]
    assert storage.list() == ["step_00000002", "step_00000003"]

    (slice_file,) = [name for name in storage.list("step_00000003") if name.endswith("-of-0001.safetensors")]
    name = f"step_00000003/{slice_file}"
    data = bytearray(storage.read(name))
    data[len(data) // 2] ^= 1
    storage.remove(name)
    storage.write(name, [memoryview(data)])

    live = state(0.0)
    restored = Checkpointer(storage, live, keep_last=2).restore()
    assert restored is not None
    assert (restored.step, len(restored.skipped)) == (2, 1)
    assert "checksum" in restored.skipped[0]
    assert live["shared"].state["value"] == 2.0
    assert bool((live["shared"].state["tensor"] == 2.0).all())
    assert bool((live["own"].state["mine"] == 2.0).all())

    again = Checkpointer(storage, live, keep_last=1)
    again.restore()
    for step in (4, 5):
        again.save(step)
    assert steps(storage) == [5]
    assert storage.list() == ["step_00000005"]
    assert len(storage.list("step_00000005")) == 4, "slice, two files of the rank, manifest"


def test_list_checkpoints_accepts_a_storage_url(open_kind: Callable[..., Storage]) -> None:
    storage = open_kind("memory")
    Checkpointer(storage, state(1.0)).save(1)
    assert [info.step for info in list_checkpoints(storage.url)] == [1]
