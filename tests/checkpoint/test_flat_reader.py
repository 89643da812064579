"""What can be read into the live tensors is, and nothing else is; nothing is changed before all has been verified."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from clusterdp.checkpoint import Checkpointer, CheckpointError
from clusterdp.checkpoint.format.layout import BLOCK, HEADER, FlatLayout
from clusterdp.checkpoint.format.manifest import FileRecord
from clusterdp.checkpoint.format.read_targets import ScatterTarget
from clusterdp.checkpoint.format.verified_reads import ranges_of_file
from clusterdp.checkpoint.load import flat_reader
from clusterdp.checkpoint.state import stateful
from clusterdp.storage import LocalStorage
from tests.checkpoint.gang import on_ranks


def trained(model: nn.Module, seed: int = 0) -> dict[str, Any]:
    """With an optimizer that has done a step."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters())
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.copy_(torch.rand(tensor.shape, generator=generator))
    for parameter in model.parameters():
        parameter.grad = torch.rand(parameter.shape, generator=generator).to(parameter.dtype)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def wide() -> nn.Module:
    """Blocks of one tensor, blocks of many, and tensors that are smaller than what alignment leaves between them."""
    return nn.Sequential(nn.Linear(700, 900), nn.BatchNorm1d(3), *(nn.Linear(i, 3) for i in range(1, 30)))


def values(state: dict[str, Any]) -> list[torch.Tensor]:
    moments = state["optimizer"].state_dict()["state"].values()
    return [
        *state["model"].state_dict().values(),
        *(one[key] for one in moments for key in ("exp_avg", "exp_avg_sq", "step")),
    ]


def addresses(state: dict[str, Any]) -> list[int]:
    return [tensor.data_ptr() for tensor in values(state)]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(values(one), values(other), strict=True))


def test_restore_reads_into_the_existing_tensors_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, live = trained(wide()), trained(wide(), seed=1)
    assert sum(tensor.nbytes for tensor in values(saved)) > 7 * BLOCK
    Checkpointer(tmp_path, saved).save(1)
    read: list[torch.Tensor] = []
    apart = flat_reader.tensors_of
    monkeypatch.setattr(
        flat_reader, "tensors_of", lambda plan, buffer, *known: read.append(buffer) or apart(plan, buffer, *known)
    )
    before = addresses(live)
    Checkpointer(tmp_path, live).restore()
    assert same(live, saved)
    assert addresses(live) == before
    assert not read[0].any(), "nothing was read into memory of its own"


def test_restore_creates_missing_optimizer_moments_and_keeps_model_tensors_in_place(tmp_path: Path) -> None:
    saved = trained(wide())
    Checkpointer(tmp_path, saved).save(1)
    model = wide()
    live = {"model": model, "optimizer": torch.optim.Adam(model.parameters())}
    before = [tensor.data_ptr() for tensor in model.state_dict().values()]
    Checkpointer(tmp_path, live).restore()
    assert same(live, saved)
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == before


@pytest.fixture
def as_if_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, all tensors claim to be on a GPU. Not proved by that: copies to a real one."""
    return lambda: monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True), raising=False)


def test_gpu_restore_reads_moments_of_a_new_optimizer_into_no_host_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_if_on_gpu: Callable[[], None]
) -> None:
    saved = trained(wide())
    Checkpointer(tmp_path, saved).save(1)
    model = wide()
    live = {"model": model, "optimizer": torch.optim.Adam(model.parameters())}
    read: list[torch.Tensor] = []
    apart = flat_reader.tensors_of
    monkeypatch.setattr(
        flat_reader, "tensors_of", lambda plan, buffer, *known: read.append(buffer) or apart(plan, buffer, *known)
    )
    checkpointer = Checkpointer(tmp_path, live)
    as_if_on_gpu()
    checkpointer.restore()
    assert same(live, saved)
    assert not read[0].any()


def layers() -> dict[str, Any]:
    """48 MB, and 96 MB of moments after a step."""
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(12)))
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters())}


RESTORE = """
import sys, torch
from clusterdp.checkpoint import Checkpointer
from clusterdp.storage import LocalStorage
LocalStorage.rereads = sys.argv[2] == "file system"
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(12)))
optimizer = torch.optim.Adam(model.parameters())
checkpointer = Checkpointer(sys.argv[1], {"model": model, "optimizer": optimizer})
def kb(name):
    return int(open("/proc/self/status").read().split(name + ":")[1].split()[0])
torch.Tensor.is_cuda = property(lambda tensor: True)
def to_gpu(parameter, value, *_, **__):  # a view of a host buffer would be copied to the GPU
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
torch.optim.Optimizer._process_value_according_to_param_policy = staticmethod(to_gpu)
open("/proc/self/clear_refs", "w").write("5")
before = kb("VmRSS")
checkpointer.restore()
state = 2 * sum(parameter.nbytes for parameter in model.parameters()) >> 10
print((kb("VmHWM") - before - state) >> 10, (kb("VmRSS") - before - state) >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("storage", ["file system", pytest.param("store", marks=pytest.mark.slow)])
def test_gpu_restore_takes_host_memory_of_a_few_blocks(tmp_path: Path, forking: Path, storage: str) -> None:
    """The moments themselves are in main memory here, and are counted out."""
    state = layers()
    for parameter in state["model"].parameters():
        parameter.grad = parameter.detach().clone()
    state["optimizer"].step()
    Checkpointer(tmp_path, state).save(1)
    words = [forking, "-c", RESTORE, str(tmp_path), storage]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    peak_mb, after_mb = map(int, done.stdout.split())
    assert peak_mb < 48, "through the flat buffer: 96 more"
    assert after_mb < 32


def test_step_counts_of_a_gpu_optimizer_hold_no_page_of_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_if_on_gpu: Callable[[], None]
) -> None:
    """The moments of a new optimizer on the CPU go through the buffer."""
    saved = trained(wide())
    Checkpointer(tmp_path, saved).save(1)
    monkeypatch.setattr(LocalStorage, "rereads", False)
    model = wide()
    live = {"model": model, "optimizer": torch.optim.Adam(model.parameters())}
    checkpointer = Checkpointer(tmp_path, live)
    monkeypatch.setattr(stateful, "on_gpu", lambda optimizer: True)
    buffers: list[torch.Tensor] = []
    apart = flat_reader.tensors_of
    monkeypatch.setattr(
        flat_reader, "tensors_of", lambda plan, buffer, *known: buffers.append(buffer) or apart(plan, buffer, *known)
    )
    checkpointer.restore()
    assert same(live, saved)
    start = buffers[0].data_ptr()
    steps = [one["step"].data_ptr() for one in live["optimizer"].state.values()]  # type: ignore[attr-defined]
    assert not any(start <= step < start + buffers[0].numel() for step in steps)


def test_restore_without_a_good_checkpoint_warns_of_overwritten_state(tmp_path: Path) -> None:
    Checkpointer(tmp_path, trained(wide())).save(1)
    damage_last_byte(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"none is good: .*Do not train on in this process"):
        Checkpointer(tmp_path, trained(wide(), seed=1)).restore()


def test_restore_after_a_damaged_block_takes_all_state_from_the_older_checkpoint(tmp_path: Path) -> None:
    older = trained(wide(), seed=1)
    Checkpointer(tmp_path, older).save(1)
    Checkpointer(tmp_path, trained(wide(), seed=2)).save(2)
    damage_last_byte(tmp_path, 2)
    live = trained(wide(), seed=3)
    restored = Checkpointer(tmp_path, live).restore()
    assert restored is not None
    assert restored.step == 1
    assert same(live, older)


def test_restore_reads_each_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Checkpointer(tmp_path, trained(wide())).save(1)
    monkeypatch.setattr(Store, "rereads", True)
    monkeypatch.setattr(Store, "nodes_that_read_all", 1)
    storage = Store(str(tmp_path))
    Checkpointer(storage, trained(wide(), seed=1)).restore()
    (path,) = tmp_path.glob("*/*-of-0001.safetensors")
    assert storage.bytes_read == path.stat().st_size


def test_restore_of_an_incompatible_checkpoint_changes_no_tensor(tmp_path: Path) -> None:
    saved = trained(wide())
    Checkpointer(tmp_path, {**saved, "second": nn.Linear(2, 3)}).save(1)
    live, twin = trained(wide(), seed=1), trained(wide(), seed=1)
    with pytest.raises(CheckpointError, match="second"):
        Checkpointer(tmp_path, {**live, "second": nn.Linear(2, 4)}).restore()
    assert same(live, twin)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_restore_detects_a_file_changed_before_it_fills_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_if_on_gpu: Callable[[], None], on_gpu: bool
) -> None:
    """Live tensors may have changed by then: the training must not go on."""
    Checkpointer(tmp_path, trained(wide())).save(1)
    fill = flat_reader.FlatReader.fill

    def changed(flat: flat_reader.FlatReader) -> None:
        (path,) = tmp_path.glob("*/*-of-0001.safetensors")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1  # of the last block
        path.write_bytes(data)
        fill(flat)

    monkeypatch.setattr(flat_reader.FlatReader, "fill", changed)
    checkpointer = Checkpointer(tmp_path, trained(wide(), seed=1))
    if on_gpu:
        as_if_on_gpu()
    with pytest.raises(CheckpointError, match="checksum"):
        checkpointer.restore()


class Tied(nn.Module):
    def __init__(self, *, tied: bool):
        super().__init__()
        self.one, self.two = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        if tied:
            self.two.weight = self.one.weight


class Renames(nn.Module):
    """What was saved as one is two from now on, and the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.register_load_state_dict_pre_hook(self._rename)

    def _rename(self, module: nn.Module, state: dict[str, Any], *_: object) -> None:
        state["one.weight"], state["two.weight"] = state["two.weight"], state["one.weight"]


class Doubles(nn.Linear):
    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        before = self.weight.clone()
        super()._load_from_state_dict(state, prefix, *rest)
        with torch.no_grad():
            self.weight.copy_(before + self.weight)


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        (Tied(tied=False), Tied(tied=True)),
        (Tied(tied=True), Tied(tied=False)),
        (Tied(tied=False), Renames()),
        (nn.Linear(4, 4), Doubles(4, 4)),
        (nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)),
        (nn.Linear(4, 4), nn.Linear(4, 4).to(torch.float64)),
        (nn.Linear(4, 4).to(torch.float64), nn.Linear(4, 4)),
    ],
    ids=["tied later", "no longer tied", "renames", "own loading", "strided", "wider", "narrower"],
)
def test_restore_and_load_state_dict_end_with_equal_weights(saved: nn.Module, live: nn.Module, tmp_path: Path) -> None:
    trained(saved)
    twin = copy.deepcopy(trained(live, seed=1)["model"])
    Checkpointer(tmp_path, {"model": saved}).save(1)
    Checkpointer(tmp_path, {"model": live}).restore()
    twin.load_state_dict(copy.deepcopy(saved.state_dict()))
    expected = twin.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in live.state_dict().items())


def test_restore_into_overlapping_parameters_keeps_the_last_loaded_value(tmp_path: Path) -> None:
    """As in a model whose parameters somebody has laid over each other. The order of names is not that of loading."""
    saved, live = nn.Module(), nn.Module()
    memory = torch.zeros(50)
    for model, z, a in ((saved, torch.rand(25), torch.rand(25)), (live, memory[:25], memory[10:35])):
        model.z, model.a = nn.Parameter(z), nn.Parameter(a)
    Checkpointer(tmp_path, {"model": saved}).save(1)
    Checkpointer(tmp_path, {"model": live}).restore()
    assert torch.equal(live.a, saved.a), "it was loaded last"


class Store(LocalStorage):
    """Like a store: its bytes are read once. Counts the bytes of shared state that are read."""

    rereads = False
    nodes_that_read_all = 0
    bytes_read = 0

    @contextmanager
    def open(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        if "-of-" in name:
            self.bytes_read += (self.size(name) if stop is None else stop) - start
        with super().open(name, start, stop) as file:
            yield file


def damage_last_byte(folder: Path, step: int) -> None:
    (path,) = folder.glob(f"*{step}*/*-of-0001.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def read_by_each(rank: int, size: int, folder: str, storage: type[LocalStorage], fresh: int) -> tuple[bool, int, bool]:
    """Restores step 1 on a rank of a large job, into a new optimizer on rank `fresh`. Returns whether the state is
    the saved one, the bytes read, and whether any went through the buffer."""
    LocalStorage.nodes_that_read_all = 0
    buffers: list[torch.Tensor] = []
    apart = flat_reader.tensors_of
    flat_reader.tensors_of = lambda plan, buffer, *known: buffers.append(buffer) or apart(plan, buffer, *known)  # type: ignore[func-returns-value]
    live = trained(wide(), seed=1 + rank)
    if rank == fresh:
        live["optimizer"] = torch.optim.Adam(live["model"].parameters())
    store = storage(folder)
    Checkpointer(store, live).restore()
    return same(live, trained(wide())), getattr(store, "bytes_read", 0), bool(buffers[0].any())


@pytest.mark.parametrize("storage", [Store, LocalStorage])
def test_broadcast_restore_fills_live_tensors_without_a_buffer(tmp_path: Path, storage: type[LocalStorage]) -> None:
    Checkpointer(tmp_path, trained(wide())).save(1)
    answers = on_ranks(3, read_by_each, str(tmp_path), storage, -1)
    assert [(equal, buffered) for equal, _, buffered in answers] == [(True, False)] * 3
    (path,) = tmp_path.glob("*/*-of-0001.safetensors")
    if storage is Store:
        assert sum(read for _, read, _ in answers) == path.stat().st_size


def test_broadcast_restore_fills_ranks_with_different_live_tensors(tmp_path: Path) -> None:
    Checkpointer(tmp_path, trained(wide())).save(1)
    assert all(equal for equal, _, _ in on_ranks(3, read_by_each, str(tmp_path), Store, 1))


def test_restore_from_a_store_reads_each_byte_once(tmp_path: Path) -> None:
    saved, live = trained(wide()), trained(wide(), seed=1)
    Checkpointer(tmp_path, saved).save(1)
    store = Store(tmp_path)
    Checkpointer(store, live).restore()
    assert same(live, saved)
    (path,) = tmp_path.glob("*/*-of-0001.safetensors")
    assert store.bytes_read == path.stat().st_size


def restore_damaged(rank: int, size: int, folder: str) -> tuple[bool, tuple[str, ...]]:
    live = trained(wide(), seed=3)
    restored = Checkpointer(Store(folder), live).restore()
    assert restored is not None
    return same(live, trained(wide(), seed=1)), restored.skipped


@pytest.mark.parametrize("size", [1, 3])
def test_older_checkpoint_overwrites_all_state_after_a_damaged_block_of_a_store(tmp_path: Path, size: int) -> None:
    state = trained(wide(), seed=1)
    checkpointer = Checkpointer(tmp_path, state)
    checkpointer.save(1)
    for tensor in values(state):
        tensor.data.copy_(torch.zeros_like(tensor))
    checkpointer.save(2)
    damage_last_byte(tmp_path, 2)
    for equal, skipped in on_ranks(size, restore_damaged, str(tmp_path)):
        assert equal
        assert ["checksum" in why for why in skipped] == [True]


def fail_on_damage(rank: int, size: int, folder: str) -> tuple[str, bool]:
    live = trained(wide(), seed=3)
    with pytest.raises(CheckpointError) as caught:
        Checkpointer(Store(folder), live).restore()
    return str(caught.value), same(live, trained(wide(), seed=3))


@pytest.mark.parametrize("size", [1, 3])
def test_damaged_last_block_without_an_older_checkpoint_fails_on_all_ranks(tmp_path: Path, size: int) -> None:
    Checkpointer(tmp_path, trained(wide())).save(1)
    damage_last_byte(tmp_path, 1)
    for words, unchanged in on_ranks(size, fail_on_damage, str(tmp_path)):
        assert "none is good" in words
        assert unchanged == (size > 1)  # a rank alone has filled the first blocks; three ranks share one range
        assert "Do not train on in this process" in words


@given(
    sizes=st.lists(st.integers(1, 3 * BLOCK // 4), min_size=1, max_size=20),
    wanted=st.sets(st.integers(0, 19)),
    files=st.integers(1, 3),
)
@example(sizes=[1, 1], wanted={1}, files=2)  # the tensor before the file's first would lie in its header
def test_blocks_with_bytes_of_no_live_tensor_are_read_apart(sizes: list[int], wanted: set[int], files: int) -> None:
    plan = FlatLayout.of({f"{number:02}": ("uint8", (size,)) for number, size in enumerate(sizes)})
    ranges = []
    for rank in range(files):
        start, stop = plan.span(rank, files)
        sums = (0,) * -(-(HEADER + stop - start) // BLOCK)
        ranges += ranges_of_file(str(rank), FileRecord(HEADER + stop - start, sums), start)
    live = {f"{number:02}": torch.empty(0) for number in wanted}
    apart, direct = flat_reader._divide(ranges, plan, live)
    blocks = {
        (each.name, n): replace(each, first=n, last=n + 1) for each in ranges for n in range(each.first, each.last)
    }
    others = [entry for entry in plan.entries if entry.name not in live]
    expected = {
        key for key, one in blocks.items() if any(e.offset < one.span[1] and e.end > one.span[0] for e in others)
    }
    found = [{(each.name, n) for each in some for n in range(each.first, each.last)} for some in (apart, direct)]
    assert found == [expected, blocks.keys() - expected] if live else [blocks.keys(), set()]


@given(
    gaps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=8),
    cuts=st.sets(st.integers(1, 60)),
)
def test_scattertarget_fills_all_pieces_at_any_cut_of_the_data(gaps: list[tuple[int, int]], cuts: set[int]) -> None:
    data = bytes(range(1, 101))
    pieces, at = [], 0
    for gap, length in gaps:
        pieces.append((at + gap, bytearray(length)))
        at += gap + length
    target = ScatterTarget([(start, memoryview(piece)) for start, piece in pieces])
    ends = [0, *sorted(cuts), 100]
    for start, stop in itertools.pairwise(ends):
        done = start
        for room in target.room(start, stop):
            room[:] = data[done : done + len(room)]
            done += len(room)
        assert done == stop
        target.accept(start, stop)
    assert all(piece == data[start : start + len(piece)] for start, piece in pieces if start + len(piece) <= 100)


def test_scattertarget_gives_a_damaged_gap_room_of_its_own() -> None:
    pieces = [(2, memoryview(bytearray(2))), (6, memoryview(bytearray(2)))]
    rooms = ScatterTarget(pieces).room(0, 10)
    for number, room in enumerate(rooms):
        room[:] = bytes([number] * len(room))
    assert b"".join(rooms) == bytes([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])


def test_block_of_more_tensors_than_a_read_takes_is_restored(tmp_path: Path) -> None:
    state = {f"w{number}": torch.full((8,), float(number)) for number in range(3000)}
    Checkpointer(tmp_path, {"model": (saved := plain_module(state))}).save(1)
    live = plain_module({name: torch.zeros(8) for name in state})
    Checkpointer(tmp_path, {"model": live}).restore()
    assert all(map(torch.equal, saved.parameters(), live.parameters()))


def plain_module(tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_parameter(name, nn.Parameter(tensor))
    return module


class Holder:
    """An object of the user's own, with a tensor that is another object's parameter too."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"tensor": self.tensor}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.tensor = state["tensor"]


def test_object_sharing_a_model_parameter_gets_a_separate_tensor_without_grad(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    Checkpointer(tmp_path, {"model": model, "holder": Holder(model.weight)}).save(1)
    live = nn.Linear(3, 2)
    holder = Holder(live.weight)
    Checkpointer(tmp_path, {"model": live, "holder": holder}).restore()
    assert torch.equal(holder.tensor, model.weight)
    assert not holder.tensor.requires_grad
    assert holder.tensor.data_ptr() != live.weight.data_ptr()


def test_restored_optimizer_keeps_its_live_tensor_lr(tmp_path: Path) -> None:
    """A compiled step reads that very tensor, and would go on with the old value."""
    model = nn.Linear(2, 2)
    Checkpointer(tmp_path, {"optimizer": torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5))}).save(1)
    live = torch.tensor(0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=live)
    Checkpointer(tmp_path, {"optimizer": optimizer}).restore()
    assert optimizer.param_groups[0]["lr"] is live
    assert live == 0.5


def test_restored_tensor_lr_of_a_number_holds_no_page_of_the_buffer(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    Checkpointer(tmp_path, {"optimizer": torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5))}).save(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    Checkpointer(tmp_path, {"optimizer": optimizer}).restore()
    assert optimizer.param_groups[0]["lr"].untyped_storage().nbytes() == 4


def test_restore_keeps_param_groups_held_by_name(tmp_path: Path) -> None:
    def built() -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": nn.Linear(2, 2).parameters()}], lr=0.5)

    optimizer = built()
    optimizer.param_groups[0]["lr"] = 0.25
    Checkpointer(tmp_path, {"optimizer": optimizer}).save(1)
    again = built()
    group = again.param_groups[0]
    Checkpointer(tmp_path, {"optimizer": again}).restore()
    assert again.param_groups[0] is group
    assert group["lr"] == 0.25
