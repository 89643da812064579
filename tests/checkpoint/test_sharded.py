"""FSDP2 under the same manifest: exact, resharded, interchangeable with DDP, and no flipped byte gets in."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from clusterdp.checkpoint import Checkpointer, CheckpointError, list_checkpoints
from clusterdp.checkpoint.errors import LostContact
from clusterdp.checkpoint.format.manifest import Manifest
from clusterdp.checkpoint.format.payload import shared_payload, whole
from clusterdp.checkpoint.format.verified_reads import read_manifest, verify
from clusterdp.checkpoint.save import sharded
from clusterdp.cli import main
from clusterdp.storage import LocalStorage
from tests.checkpoint.gang import on_ranks
from tests.checkpoint.training import digest

WIDTH = 320  # three layers of it have over 1 MB of gradients


class Net(nn.Module):
    """With what is awkward to shard: 3 outputs over 4 ranks, buffers, and a tied weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.head = nn.Linear(width, 3)
        self.twin = nn.Linear(width, 3)
        self.twin.weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.inner:
            x = layer(x).relu()
        x = nn.functional.dropout(self.norm(x), 0.1)
        return self.head(x) + self.twin(x)  # type: ignore[no-any-return]


class ByRow(torch.optim.Optimizer):
    """Keeps a number for each row, which FSDP2 shards like the rows, and one for each column, which all ranks have."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            with torch.no_grad():
                found = parameter.grad.reshape(len(parameter), -1).square().mean(1)
                rows = self.state[parameter].setdefault("rows", torch.zeros_like(found))
                rows.lerp_(found, 0.1)
                whole = parameter.grad.reshape(len(parameter), -1).abs().mean(0)
                whole = whole.redistribute(placements=[Replicate()]) if isinstance(whole, DTensor) else whole
                self.state[parameter].setdefault("columns", torch.zeros_like(whole)).lerp_(whole, 0.1)
                parameter.sub_(1e-3 * self.state[parameter]["columns"].mean())
                scale = rows.sqrt().add(1e-8).reshape(-1, *[1] * (parameter.dim() - 1))
                parameter.sub_(1e-2 * parameter.grad / scale)


class Run:
    """kind: fsdp, by_row (FSDP2 with this optimizer), hsdp (2 x n/2), ddp, or plain."""

    def __init__(self, kind: str, size: int, *, width: int = WIDTH, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.width = width
        self.model: nn.Module = Net(width)
        self.net = self.model
        if kind in ("fsdp", "hsdp", "by_row"):
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            shape, names = ((2, size // 2), ("replicate", "shard")) if kind == "hsdp" else ((size,), ("shard",))
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            for layer in self.model.inner:  # type: ignore[union-attr]
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        elif kind == "ddp":
            self.net = nn.parallel.DistributedDataParallel(self.model)
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            ByRow(parameters) if kind == "by_row" else torch.optim.AdamW(parameters, lr=1e-2, amsgrad=True)
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.net, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def step(self, rank: int) -> None:
        torch.manual_seed(int(torch.randint(1 << 30, ())) + rank)
        self.optimizer.zero_grad()
        self.net(torch.randn(8, self.width)).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    def here(self) -> str:
        """A digest of every bit that this rank has."""
        tree = {name: dict(thing.state_dict()) for name, thing in self.state.items()}
        tree["model"] = dict(self.model.state_dict())
        for name, _ in self.model.named_buffers():
            del tree["model"][name]  # statistics of this rank's batches: rank 0's are saved
        return digest([map_tensors(tree, lambda t: getattr(t, "_local_tensor", t)), torch.get_rng_state()])

    def everywhere(self) -> str:
        """A digest of the whole state, the same whatever it is spread over. Collective."""
        tree = {
            "model": dict(self.model.named_parameters(remove_duplicate=False)),
            "state": self.optimizer.state_dict(),
        }
        return digest(map_tensors(tree, lambda t: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone()))


def map_tensors(tree: Any, change: Callable[[Any], Any]) -> Any:
    """In one order of keys, whatever way they came."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(tree[key], change) for key in sorted(tree, key=str)}
    return [map_tensors(item, change) for item in tree] if isinstance(tree, list) else tree


def train(rank: int, size: int, folder: str, kind: str, resume: bool) -> str:
    """Five steps with a checkpoint after the second; or what is left of them, by a run of other first weights."""
    run = Run(kind, size, seed=int(resume))
    checkpointer = Checkpointer(folder, run.state)
    restored = checkpointer.restore()
    assert (restored is not None) == resume
    torch.manual_seed(3 + rank)
    checkpointer.restore_rng()
    for step in range(restored.step if restored else 0, 5):
        run.step(rank)
        if step + 1 == 2:
            checkpointer.save(2)
    return run.here()


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("fsdp", 2),
        ("by_row", 2),
        *(pytest.param(kind, 4, marks=pytest.mark.slow) for kind in ("fsdp", "hsdp")),
    ],
)
def test_resumed_sharded_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path: Path, kind: str, size: int) -> None:
    straight = on_ranks(size, train, str(tmp_path), kind, False)
    assert on_ranks(size, train, str(tmp_path), kind, True) == straight
    assert len(set(straight)) == size, "each has its own shard"


def save(rank: int, size: int, folder: str, kind: str, width: int = WIDTH) -> str:
    run = Run(kind, size, width=width)
    run.step(0)  # the same data: DDP has the same on all ranks
    Checkpointer(folder, run.state).save(1)
    return run.everywhere()


def restore(rank: int, size: int, folder: str, kind: str, width: int = WIDTH) -> tuple[str, Any]:
    run = Run(kind, size, width=width, seed=9)
    restored = Checkpointer(folder, run.state).restore()
    assert restored is not None
    run.step(0)  # what was loaded can be trained on
    again = Run(kind, size, width=width, seed=9)
    Checkpointer(folder, again.state).restore()
    return again.everywhere(), restored


PAIRS = [("ddp", 2, "fsdp", 3)]
MORE = [
    *(("fsdp", 3, "ddp", 2), ("ddp", 4, "fsdp", 2), ("fsdp", 4, "plain", 1), ("plain", 1, "hsdp", 4)),
    *(("hsdp", 4, "fsdp", 3), ("fsdp", 3, "hsdp", 4), ("fsdp", 1, "fsdp", 2)),
]


@pytest.mark.parametrize(
    ("saved", "by", "restored", "on"), [*PAIRS, *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE)]
)
def test_checkpoint_is_restored_under_another_parallelism_or_rank_count(
    tmp_path: Path, saved: str, by: int, restored: str, on: int
) -> None:
    before = on_ranks(by, save, str(tmp_path), saved)
    after = on_ranks(on, restore, str(tmp_path), restored)
    assert len(set(before)) == 1
    assert {digest for digest, _ in after} == set(before)
    assert [found.exact for _, found in after] == [by == on] * on
    assert read(tmp_path).chunks is None or saved in ("fsdp", "hsdp")


def reshard(rank: int, size: int, folder: str) -> tuple[str, str]:
    run = Run("fsdp", size, seed=size)
    checkpointer = Checkpointer(folder, run.state)
    restored = checkpointer.restore()
    found = run.everywhere()
    run.step(0)
    checkpointer.save(restored.step + 1 if restored else 1)
    return found, run.everywhere()


@pytest.mark.slow
def test_sharded_checkpoint_is_restored_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    (_, four), (before_two, two), (before_three, _) = (on_ranks(size, reshard, str(tmp_path))[0] for size in (4, 2, 3))
    assert before_two == four
    assert before_three == two
    assert [info.world_size for info in list_checkpoints(tmp_path)] == [4, 2, 3]


def beside(rank: int, size: int, folder: str) -> tuple[str, str]:
    run = Run("fsdp", size)
    run.step(rank)
    checkpointer = Checkpointer(folder, run.state)
    assert checkpointer.async_save(1)
    saved = run.everywhere()
    while checkpointer.step() is None:
        run.step(rank)
    run = Run("fsdp", size, seed=5)
    Checkpointer(folder, run.state).restore()
    return saved, run.everywhere()


def test_sharded_async_save_holds_the_state_at_its_call(tmp_path: Path) -> None:
    for saved, restored in on_ranks(2, beside, str(tmp_path)):
        assert saved == restored


def read(folder: Path) -> Manifest:
    return read_manifest(LocalStorage(folder), list_checkpoints(folder)[-1])


def flip(path: Path, at: int) -> None:
    """Back again if it is flipped already."""
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


def two_checkpoints(rank: int, size: int, folder: str) -> list[str]:
    run = Run("fsdp", size, width=40)
    checkpointer = Checkpointer(folder, run.state)
    digests = []
    for step in (1, 2):
        run.step(0)
        checkpointer.save(step)
        digests.append(run.everywhere())
    return digests


def restore_each_time(rank: int, size: int, folder: str, kind: str) -> list[tuple[str, str, int, str]]:
    """With one byte flipped after another, in every file of the newest checkpoint; and at last with none."""
    found = []
    newest = Path(folder) / "step_00000002"
    places: list[Any] = [
        (path, at)
        for path in sorted(newest.iterdir())
        for at in ((9, 5000, 30_000, -9000, -2) if path.suffix == ".safetensors" else (path.stat().st_size // 2,))
    ]
    for place in [*places, None]:
        dist.barrier()
        if place and rank == 0:
            flip(*place)
        dist.barrier()
        run = Run(kind, size, width=40, seed=9)
        restored = Checkpointer(folder, run.state).restore()
        assert restored is not None
        found.append((place[0].name if place else "", run.everywhere(), restored.step, "; ".join(restored.skipped)))
        dist.barrier()
        if place and rank == 0:
            flip(*place)
    return found


@pytest.mark.parametrize("kind", ["fsdp", pytest.param("ddp", marks=pytest.mark.slow)])
def test_restore_skips_a_sharded_checkpoint_with_a_flipped_byte(tmp_path: Path, kind: str) -> None:
    (first, second), *_ = on_ranks(2, two_checkpoints, str(tmp_path))
    for answer in on_ranks(2, restore_each_time, str(tmp_path), kind):
        *damaged, (_, digest, step, skipped) = answer
        assert (digest, step, skipped) == (second, 2, "")
        assert len({name for name, *_ in damaged}) == 2, "of the node, and the manifest"
        for name, digest, step, skipped in damaged:
            assert (digest, step) == (first, 1), name
            assert name in skipped


def test_hsdp_writes_each_chunk_once_with_a_verifiable_checksum(tmp_path: Path) -> None:
    (saved, *_) = on_ranks(4, save, str(tmp_path), "hsdp")
    manifest, storage = read(tmp_path), LocalStorage(tmp_path)
    for name, record in manifest.files.items():
        verify(storage, f"{manifest.info.folder}/{name}", record)
    data = sum(record.size for name, record in manifest.files.items() if name.endswith("-of-0004.safetensors"))
    heads = sum(8 + struct.unpack("<Q", path.read_bytes()[:8])[0] for path in tmp_path.glob("*/*-of-0004.safetensors"))
    assert data - heads == sum(entry.nbytes for entry in manifest.layout.entries), "replicas are not written again"
    assert manifest.chunks is not None
    assert len(manifest.chunks["model/inner.0.weight"]) == 2
    assert "model/twin.weight" not in manifest.chunks, "tied weights are kept once"
    assert {chunk.rank for found in manifest.chunks.values() for chunk in found} == {0, 1, 2, 3}, "all take part"
    fresh = Run("plain", 1, seed=4)
    with shared_payload(storage, manifest) as payload:
        bytes_of = {entry.name: (entry, whole(payload, entry)) for entry in payload.entries}
    entry, data_of = bytes_of["model/inner.2.weight"]
    Checkpointer(tmp_path, fresh.state).restore()
    assert fresh.everywhere() == saved
    assert torch.equal(torch.frombuffer(data_of, dtype=torch.float32).view(entry.shape), fresh.model.inner[2].weight)  # type: ignore[union-attr,index]


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks have saved."""
    folder = tmp_path_factory.mktemp("fsdp")
    on_ranks(2, save, str(folder), "fsdp")
    return folder


def test_safetensors_opens_a_shard_file(by_two: Path) -> None:
    from safetensors import safe_open

    fresh = Run("plain", 1, seed=4)
    Checkpointer(by_two, fresh.state).restore()
    _, shard = sorted(by_two.glob("*/*-of-0002.safetensors"))
    with safe_open(shard, framework="pt") as file:
        name = f"model/inner.1.weight[{WIDTH // 2}:{WIDTH},0:{WIDTH}]"
        assert torch.equal(file.get_tensor(name), fresh.model.inner[1].weight[WIDTH // 2 :])  # type: ignore[union-attr,index]
        assert file.metadata()["world_size"] == "2"


def fail_on_one(rank: int, size: int, folder: str) -> str:
    run = Run("fsdp", size, width=40)
    checkpointer = Checkpointer(folder, run.state)
    if rank == 1:
        checkpointer._memory.shared.take = no_memory  # type: ignore[method-assign]
    with pytest.raises(CheckpointError) as caught:
        checkpointer.save(1)
    return str(caught.value)


def no_memory(*_: object) -> torch.Tensor:
    raise RuntimeError("cannot allocate memory")


def test_failed_copy_of_one_shard_fails_the_save_on_all_ranks(tmp_path: Path) -> None:
    said = "rank 1: RuntimeError: cannot allocate memory"
    assert on_ranks(3, fail_on_one, str(tmp_path)) == [said] * 3
    assert list_checkpoints(tmp_path) == []


def refuse_on_rank_0(rank: int, size: int, folder: str) -> str:
    run = Run("fsdp", size, width=40)
    if rank == 0:
        sharded.ALLOWED.clear()
    try:
        Checkpointer(folder, run.state).save(1)
    except LostContact as error:
        return str(error)
    return ""


def test_refused_plan_ends_all_ranks_instead_of_a_wait(tmp_path: Path) -> None:
    first, other = on_ranks(2, refuse_on_rank_0, str(tmp_path))
    assert first.startswith("checkpoint: the ranks cannot plan a save: a rank has sent a ")
    assert other.startswith("checkpoint: the ranks have lost contact: ")


def save_four_times(rank: int, size: int, folder: str) -> tuple[list[int], list[str], list[str]]:
    """Returns the number of plannings until each save, and the state at each save and after its restore."""
    run, plannings, digests = Run("fsdp", size, width=40), [], []
    with mock.patch.object(sharded.dcp, "save", wraps=sharded.dcp.save) as planned:
        checkpointer = Checkpointer(folder, run.state, keep_last=9)
        for step in range(1, 5):
            if step == 3 and rank == 1:
                checkpointer._memory.shared.plan = None  # as if this rank alone had other tensors
            checkpointer.save(step)  # the first one without the optimizer's moments
            plannings.append(planned.call_count)
            digests.append(run.everywhere())
            run.step(rank)
    restored = []
    for step in range(1, 5):
        other = Run("fsdp", size, width=40, seed=9)
        Checkpointer(folder, other.state).restore(step=step)
        restored.append(other.everywhere())
    return plannings, digests, restored


def test_sharded_saves_are_planned_again_only_for_other_tensors(tmp_path: Path) -> None:
    for plannings, digests, restored in on_ranks(2, save_four_times, str(tmp_path)):
        assert plannings == [1, 2, 3, 3]
        assert len(set(digests)) == 4
        assert restored == digests


def partial(rank: int, size: int, folder: str) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    class Sum:
        def state_dict(self) -> Any:
            mesh = init_device_mesh("cpu", (size,))
            return {"x": DTensor.from_local(torch.ones(3), mesh, [Partial()])}

        def load_state_dict(self, state: Any) -> None: ...

    with pytest.raises(CheckpointError) as caught:
        Checkpointer(folder, {"sum": Sum()}).save(1)
    return str(caught.value)


def test_save_refuses_a_dtensor_with_partial_placement(tmp_path: Path) -> None:
    said, _ = on_ranks(2, partial, str(tmp_path))
    assert "sum/x: " in said
    assert "redistribute it first" in said


@pytest.mark.parametrize(("ranks", "number"), [(1, 2), (2, 3)])
def test_manifest_of_a_sharded_checkpoint_has_format_2_or_3(tmp_path: Path, ranks: int, number: int) -> None:
    on_ranks(ranks, save, str(tmp_path), "fsdp")
    head = json.loads(next(tmp_path.glob("*/MANIFEST.*")).read_bytes())["head"]
    assert head["format"] == number, "a version that knows no shards must not take it for a flat one"


def test_checkpoint_verify_diff_and_export_read_sharded_checkpoints(
    by_two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file

    fresh = Run("plain", 1, seed=4)
    checkpointer = Checkpointer(by_two, fresh.state)
    checkpointer.restore()
    Checkpointer(tmp_path / "plain", fresh.state).save(1)
    assert main(["checkpoint", "verify", str(by_two)]) == 0
    assert main(["checkpoint", "diff", str(by_two), str(tmp_path / "plain"), "--only", "model"]) == 0
    assert "identical" in capsys.readouterr().out
    assert main(["checkpoint", "export", str(by_two), str(tmp_path / "x.safetensors"), "--only", "model"]) == 0
    tensors = load_file(tmp_path / "x.safetensors")
    assert tensors.keys() == fresh.model.state_dict().keys()
    assert all(torch.equal(tensors[key], value) for key, value in fresh.model.state_dict().items())
