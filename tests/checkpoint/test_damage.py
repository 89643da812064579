"""Every byte matters: whatever happens to the files, wrong bytes are never loaded, and the previous good one is."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from clusterdp.checkpoint import Checkpointer, DamagedError, Restored, list_checkpoints
from clusterdp.checkpoint.format.checksum import checksums
from clusterdp.checkpoint.format.layout import manifest_name
from clusterdp.checkpoint.format.verified_reads import read_manifest, verify
from clusterdp.storage import LocalStorage
from tests.checkpoint.gang import Gang, on_ranks
from tests.checkpoint.training import Counter

SIZE = 300_000  # floats: with the noise, two blocks


def state(value: float) -> dict[str, Counter]:
    shared, own = Counter(), Counter(per_rank=True)
    shared.state = {"big": torch.full((SIZE,), value), "small": torch.tensor(value), "value": value}
    own.state = {"mine": torch.full((3,), value)}
    return {"shared": shared, "own": own}


def save(folder: Path, value: float) -> str:
    generator = torch.Generator().manual_seed(int(value))
    state_now = state(value)
    state_now["shared"].state["noise"] = torch.rand(SIZE // 2, generator=generator)
    return Checkpointer(folder, state_now).save(int(value)).token


def load(folder: Path) -> tuple[Restored, dict[str, Counter]]:
    live = state(0.0)
    restored = Checkpointer(folder, live).restore()
    assert restored is not None
    return restored, live


def change_bytes(path: Path, rng: random.Random, length: int, new: Callable[[bytes], bytes]) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        start = rng.randrange(size)
        file.seek(start)
        old = file.read(length)
        changed = new(old)
        if changed == old:  # a hole in zeros is not damage
            changed = bytes([old[0] ^ 255]) + old[1:]
        file.seek(start)
        file.write(changed)


def flip(path: Path, rng: random.Random, other: Path) -> None:
    change_bytes(path, rng, 1, lambda old: bytes([old[0] ^ (1 << rng.randrange(8))]))


def hole(path: Path, rng: random.Random, other: Path) -> None:
    change_bytes(path, rng, rng.choice([1, 512, 4096, 1 << 20]), lambda old: bytes(len(old)))


def garbage(path: Path, rng: random.Random, other: Path) -> None:
    change_bytes(path, rng, 4096, lambda old: rng.randbytes(len(old)))


def truncate(path: Path, rng: random.Random, other: Path) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def grow(path: Path, rng: random.Random, other: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(rng.choice([1, 4096])))


def lose(path: Path, rng: random.Random, other: Path) -> None:
    path.unlink()


def swap(path: Path, rng: random.Random, other: Path) -> None:
    path.rename(held := path.with_suffix(".held"))
    other.rename(path)
    held.rename(other)


def older(path: Path, rng: random.Random, other: Path) -> None:
    """The file of the previous checkpoint in its place."""
    step, token = path.parent.parent / "step_00000001", path.name
    (twin,) = step.glob("*" + token.split("-", 2)[2] if not token.startswith("MANIFEST") else "MANIFEST*")
    shutil.copy(twin, path)


def linked(path: Path, rng: random.Random, other: Path) -> None:
    """A link to the very same bytes elsewhere: not what we wrote, and not followed."""
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def misplaced(path: Path, rng: random.Random, other: Path) -> None:
    """Under the name that it would have in a checkpoint of two ranks; a manifest as that of another save."""
    changes = {"-of-0001": "-of-0002", "r0000.": "r0001.", "n0000.": "n0001.", "-0001.json": "-0002.json"}
    old, new = next((old, new) for old, new in changes.items() if old in path.name)
    path.rename(path.with_name(path.name.replace(old, new)))


DAMAGES = (flip, flip, hole, garbage, truncate, grow, lose, swap, older, linked, misplaced)


def damage_and_restore(
    folder: Path, seed: int, scratch: Path, rank: int = 0, together: Callable[[], object] = lambda: None
) -> None:
    """together: returns when all ranks have called it."""
    rng = random.Random(seed)
    if rank == 0:
        shutil.copytree(folder, scratch)
    newest = scratch / "step_00000002"
    path, other = rng.sample(sorted((folder / newest.name).iterdir()), 2)
    path, other = newest / path.name, newest / other.name
    damage = rng.choice(DAMAGES)
    if rank == 0:
        damage(path, rng, other)
    together()
    restored, live = load(scratch)
    together()
    what = f"seed {seed}: {damage.__name__} of {path.name} (and {other.name})"
    assert restored.step == 1, f"{what} was not noticed"
    assert live["shared"].state["value"] == 1, what
    assert bool((live["shared"].state["big"] == 1).all()), what
    assert bool((live["own"].state["mine"] == 1).all()), what
    if any(newest.glob("MANIFEST*")):  # without it there is no checkpoint, and nothing to report
        manifest = next(newest.glob("MANIFEST*"))
        others = {swap: other.name, misplaced: manifest.name}
        named = path.name in restored.skipped[0] or others.get(damage, path.name) in restored.skipped[0]
        assert named, (what, restored.skipped)
    together()
    if rank == 0:
        shutil.rmtree(scratch)


@pytest.fixture(scope="module")
def two_good_ones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "good"
    save(folder, 1)
    save(folder, 2)
    restored, _ = load(folder)
    assert (restored.step, restored.skipped) == (2, ()), "undamaged, it must load"
    return folder


def test_randomly_damaged_checkpoint_is_never_loaded_and_its_damaged_file_is_named(
    two_good_ones: Path, tmp_path: Path
) -> None:
    for seed in range(120):
        damage_and_restore(two_good_ones, seed, tmp_path / "scratch")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_2000_randomly_damaged_checkpoints_are_never_loaded(two_good_ones: Path, tmp_path: Path) -> None:
    for seed in range(1000, 3000):
        damage_and_restore(two_good_ones, seed, tmp_path / "scratch")


def test_every_changed_byte_of_a_checkpoint_data_file_changes_its_checksum(tmp_path: Path) -> None:
    live = state(1.0)
    live["shared"].state |= {"big": torch.arange(50.0)}
    commit = Checkpointer(tmp_path, live).save(1)
    storage = LocalStorage(tmp_path)
    (info,) = list_checkpoints(tmp_path)
    manifest = read_manifest(storage, info)
    names = {path.name for path in (tmp_path / info.folder).iterdir()}
    assert names == {*manifest.files, manifest_name(commit.token)}, "every file is under a checksum"
    for name, record in manifest.files.items():
        path = tmp_path / info.folder / name
        good = path.read_bytes()
        assert len(good) == record.size
        changed = bytearray(good)
        for at in range(len(good)):
            changed[at] ^= 1 << at % 8
            assert checksums(memoryview(changed)) != record.checksums, f"{name}: byte {at} is under no checksum"
            if at % 997 == 0:  # on disk that would take a minute for all
                path.write_bytes(changed)
                with pytest.raises(DamagedError, match=name):
                    verify(storage, f"{info.folder}/{name}", record)
            changed[at] = good[at]


def save_as_gang(rank: int, size: int, folder: str) -> None:
    for value in (1, 2):
        save(Path(folder), value)


def restore_as_gang(rank: int, size: int, folder: str, seeds: range) -> None:
    logging.disable()
    for seed in seeds:
        damage_and_restore(Path(folder), seed, Path(folder).parent / "scratch", rank, dist.barrier)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(1000, 3000), marks=pytest.mark.slow)], ids=len)
def test_ranks_never_load_a_randomly_damaged_file_of_their_node(tmp_path: Path, seeds: range) -> None:
    on_ranks(2, save_as_gang, str(tmp_path / "good"))
    assert sorted(path.suffix for path in tmp_path.glob("good/step_00000002/*")) == [".json", ".safetensors"]
    with Gang(2, restore_as_gang, str(tmp_path / "good"), seeds) as gang:
        gang.results(1800)


def load_as_gang(rank: int, size: int, folder: str) -> tuple[int, float]:
    live = state(0.0)
    restored = Checkpointer(folder, live).restore()
    assert restored is not None
    return restored.step, float(live["shared"].state["big"].sum()) + float(live["own"].state["mine"].sum())


def test_damage_seen_by_one_rank_makes_all_ranks_restore_the_previous_checkpoint(tmp_path: Path) -> None:
    on_ranks(3, save_as_gang, str(tmp_path))
    (path,) = (tmp_path / "step_00000002").glob("*n0000.safetensors")
    own = json.loads(path.read_bytes()[8:4096])["own-r0002"]["data_offsets"][0]
    with path.open("r+b") as file:
        file.seek(4096 + own + 100)
        file.write(b"\0")
    assert on_ranks(3, load_as_gang, str(tmp_path)) == [(1, SIZE + 3.0)] * 3
