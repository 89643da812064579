"""Files of torch.save(), safetensors and pickles: read as torch reads them, and without running anything."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import enum
import os
import pickle
import random
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from clusterdp.errors import CheckpointError
from clusterdp.rehearse.state import EndState, Leaf, compare, of_files, tensor_files
from clusterdp.rehearse.state.compare import values


@dataclasses.dataclass
class Settings:
    lr: float
    layers: list[int]


Pair = collections.namedtuple("Pair", "first second")
SCALAR = np.float64(1).__reduce__()[0]  # numpy's function that makes a scalar


def saved(folder: Path, tree: Any, name: str = "ckpt.pt") -> EndState:
    torch.save(tree, folder / name)
    return of_files(folder, [name])


def shown(leaf: Leaf) -> Any:
    """The value of a leaf, of a tensor as nested lists."""
    if leaf.stored is None:
        return leaf.value
    data = leaf.stored.read()
    found = values(data, leaf.dtype)
    assert found is not None
    return found.reshape(leaf.shape).tolist() if found.size == np.prod(leaf.shape) else found.tolist()


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint16, torch.complex64], ids=str)
def test_tensor_of_each_dtype_is_read_with_its_values(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.tensor([[0, 1], [1, 3]]).to(dtype)
    leaf = saved(tmp_path, {"w": tensor}).values["w"]
    assert (leaf.kind, leaf.dtype, leaf.shape) == ("tensor", str(dtype).removeprefix("torch."), (2, 2))
    assert shown(leaf) == tensor.tolist()


def test_tensor_views_are_read_as_their_visible_elements(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(2, 3, 4)
    tree = {"t": whole.transpose(0, 2), "part": whole[1, 1:, ::2], "all": whole, "last": torch.ones(2, 2, 3, 3)}
    tree["last"] = tree["last"].cumsum(0).to(memory_format=torch.channels_last)
    found = saved(tmp_path, tree).values
    assert {key: shown(leaf) for key, leaf in found.items()} == {key: each.tolist() for key, each in tree.items()}
    conjugate = torch.tensor([1 + 2j]).conj()
    assert shown(saved(tmp_path, {"c": conjugate}).values["c"]) == [1 - 2j]
    one = saved(tmp_path, {"e": torch.tensor([7.0]).expand(1000, 1000), "none": torch.empty(0, 3)}).values
    assert (one["e"].shape, shown(one["e"])) == ((1000, 1000), [7.0])
    assert (one["none"].shape, shown(one["none"])) == ((0, 3), [])


def test_saved_python_objects_are_read_field_by_field(tmp_path: Path) -> None:
    tree = {
        "set": Settings(0.5, [1, 2]), "ns": argparse.Namespace(depth=3), "pair": Pair(1, "b"),
        "od": collections.OrderedDict(a=1), "dd": collections.defaultdict(list, {"q": [4]}),
        "size": torch.Size([2, 3]), "device": torch.device("cuda", 1), "dtype": torch.bfloat16,
        "words": {"b", "a"}, "parameter": torch.nn.Parameter(torch.ones(1)), "scalar": np.float64(2.5),
        "fortran": np.asfortranarray([[1, 2], [3, 4]]), "swapped": np.array([1, 2], ">i4"), "large": 1 << 80,
        7: "int key", "nothing": None, "deque": collections.deque([5]), "raw": b"ab", "objects": np.array([None, "x"]),
    }  # fmt: skip
    found = {key: shown(leaf) for key, leaf in saved(tmp_path, tree).values.items()}
    assert found == {
        "set.lr": 0.5, "set.layers.0": 1, "set.layers.1": 2, "ns.depth": 3, "pair.0": 1, "pair.1": "b", "od.a": 1,
        "dd.q.0": 4, "size.0": 2, "size.1": 3, "device": "cuda:1", "dtype": "torch.bfloat16", "words": "{a, b}",
        "parameter": [1.0], "scalar": 2.5, "fortran": [[1, 2], [3, 4]], "swapped": [1, 2], "large": 1 << 80,
        "7": "int key", "nothing": None, "deque.0": 5, "raw": [97, 98], "objects.0": None, "objects.1": "x",
    }  # fmt: skip


def test_random_generator_states_are_read_as_nine_values(tmp_path: Path) -> None:
    rng = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}
    before = saved(tmp_path, {"rng": rng})
    assert len(before.values) == 9
    assert {leaf.part for leaf in before.values.values()} == {"rng"}
    other = tmp_path / "other"
    other.mkdir()
    rng["python"] = random.Random(3).getstate()
    [found] = compare(before, saved(other, {"rng": rng}))[:1]
    assert found.key == "rng.python.1"
    assert "of 625 elements" in found.what


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol_are_read(protocol: int, tmp_path: Path) -> None:
    state = np.random.RandomState(1).get_state()
    tree = {"step": 4, "numpy_random_seed": state, "f": frozenset([1]), "s": Settings(1, [])}
    (tmp_path / "random_states_1.pkl").write_bytes(pickle.dumps(tree, protocol))
    found = of_files(tmp_path, ["random_states_1.pkl"]).values
    assert found["step"].part == "step"
    assert found["s.lr"].value == 1
    keys = found["numpy_random_seed.1"]
    assert (keys.part, keys.rank, keys.dtype, keys.shape) == ("rng", 1, "uint32", (624,))
    assert keys.stored is not None
    assert keys.stored.read().tobytes() == state[1].tobytes()  # type: ignore[index]


class Hostile:
    def __init__(self, function: Any, *args: Any):
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


class Options(dict[str, Any]):
    """As in the checkpoints of Lightning and others: a dict whose items are attributes, too."""

    __getattr__ = dict.__getitem__


class Names(list[str]):
    pass


@dataclasses.dataclass(slots=True)
class Slots:
    lr: float


class Kind(enum.Enum):
    A = 1


def test_objects_with_items_or_without_dict_are_read_by_their_values(tmp_path: Path) -> None:
    options = Options(lr=0.5, w=torch.ones(1))
    options.__dict__["frozen"] = True
    tree = {"hparams": options, "ns": argparse.Namespace(depth=3), "kind": Kind.A, "rows": [np.float32(1.5)]}
    found = {key: shown(leaf) for key, leaf in saved(tmp_path, tree).values.items()}
    assert found == {
        "hparams.lr": 0.5, "hparams.w": [1.0], "hparams.frozen": True, "ns.depth": 3, "kind.0": 1, "rows.0": 1.5,
    }  # fmt: skip
    rng = random.Random(1)
    other = saved(tmp_path, {"s": Slots(0.5), "k": {Kind.A: 1}, "r": rng}).values
    assert (shown(other["s.lr"]), shown(other["k.{'0': 1}"])) == (0.5, 1)
    assert shown(other["r.state.1"]) == [*rng.getstate()[1]]


@pytest.mark.parametrize("name", ["a.pt", "a.pkl"])
def test_clocks_paths_and_order_in_sets_are_never_a_difference(name: str, tmp_path: Path) -> None:
    states = []
    for run in ("first", "second"):
        names = ["a", "b", "c"] if run == "first" else ["c", "b", "a"]
        tree = {
            "meta": datetime.datetime.now(), "f": Path("/tmp", run), "g": Hostile(frozenset, names),
            "h": Hostile(set, names), "none": np.zeros((0, 3)),
        }  # fmt: skip
        folder = tmp_path / run
        folder.mkdir()
        torch.save(tree, folder / name) if name == "a.pt" else (folder / name).write_bytes(pickle.dumps(tree, 2))
        states.append(of_files(folder, [name]))
    assert {key: shown(leaf) for key, leaf in states[0].values.items()} == {
        "meta": "datetime.datetime", "f": "/tmp/first", "g": "{a, b, c}", "h": "{a, b, c}", "none": [],
    }  # fmt: skip
    assert compare(*states) == []


def test_large_torch_file_is_mapped_and_not_held_in_memory(tmp_path: Path) -> None:
    def held() -> int:
        return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) << 10

    torch.save({"w": torch.ones(32 << 20)}, tmp_path / "ckpt.pt")
    before = held()
    state = of_files(tmp_path, ["ckpt.pt"])
    assert state.values["w"].shape == (32 << 20,)
    assert held() - before < 32 << 20


def test_tensors_in_a_plain_pickle_and_sparse_tensors_are_read(tmp_path: Path) -> None:
    tree = {"w": torch.nn.Linear(2, 1).state_dict(), "p": torch.nn.Parameter(torch.ones(2)), "e": torch.eye(2)[1]}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(tree))
    found = {key: shown(leaf) for key, leaf in of_files(tmp_path, ["a.pkl"]).values.items()}
    expected = {"w.weight": tree["w"]["weight"], "w.bias": tree["w"]["bias"], "p": tree["p"], "e": tree["e"]}
    assert found == {key: tensor.tolist() for key, tensor in expected.items()}
    sparse = saved(tmp_path, {"s": torch.tensor([0.0, 5.0]).to_sparse()}).values
    assert {key: shown(leaf) for key, leaf in sparse.items()} == {"s.indices": [[1]], "s.values": [5.0]}


@pytest.mark.parametrize(
    ("tree", "protocol", "why"),
    [
        ({"n": Names(["a"])}, 2, "Can only append to lists"),
        ({"n": [Names(["a"]), Options(a=1)]}, 2, "Can only"),
        ({"n": 1}, 4, "Unsupported operand .*the default pickle_protocol"),
        ({"n": torch.empty(2, device="meta")}, 2, "meta"),
        ({"n": torch.ones(1).untyped_storage()}, 2, "a storage without a shape"),
        ({"n": Hostile(SCALAR, Hostile(np.dtype, "f4,f4"), bytes(8))}, 2, "'f4,f4' is not a dtype"),
    ],
)
def test_objects_beyond_torch_are_refused_with_the_reason(tree: Any, protocol: int, why: str, tmp_path: Path) -> None:
    torch.save(tree, tmp_path / "ckpt.pt", pickle_protocol=protocol)
    with pytest.raises(CheckpointError, match=rf"ckpt\.pt: .*{why}"):
        of_files(tmp_path, ["ckpt.pt"])


@pytest.mark.filterwarnings("ignore")
def test_tensor_without_bytes_of_its_own_is_refused(tmp_path: Path) -> None:
    scales, zeros = torch.ones(2), torch.zeros(2)
    torch.save({"n": torch.quantize_per_channel(torch.ones(2, 2), scales, zeros, 0, torch.qint8)}, tmp_path / "ckpt.pt")
    with pytest.raises(CheckpointError, match=r"ckpt\.pt: it cannot be compared: .*quantized"):
        of_files(tmp_path, ["ckpt.pt"])


def test_files_with_the_same_classes_are_read_in_several_threads(tmp_path: Path) -> None:
    tree = {str(i): Settings(i, [i]) for i in range(100)}
    expected = saved(tmp_path, tree).values
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda _: of_files(tmp_path, ["ckpt.pt"]).values, range(12))]
    assert all(each == expected for each in found)


@pytest.mark.parametrize("name", ["ckpt.pt", "state.pkl"])
def test_code_in_a_pickle_is_not_executed(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    tree = {"a": Hostile(eval, f"open({str(marker)!r}, 'w')"), "b": Hostile(open, str(marker), "w")}
    path = tmp_path / name
    torch.save(tree, path) if name == "ckpt.pt" else path.write_bytes(pickle.dumps(tree))
    found = of_files(tmp_path, [name]).values
    assert found["b.0"].value == str(marker)  # the argument, and no more than that
    assert not marker.exists()
    pickle.loads(pickle.dumps(tree["b"])).close()
    assert marker.exists(), "this pickle would not have done anything anyway"


def test_command_in_a_torch_file_is_refused_by_its_name(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with pytest.raises(CheckpointError, match=r"ckpt\.pt: .*posix\.system"):
        saved(tmp_path, {"a": Hostile(os.system, f"touch {marker}")})
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(Hostile(os.system, f"touch {marker}")))
    assert of_files(tmp_path, ["a.pkl"]).values["0"].value == f"touch {marker}"
    assert not marker.exists()


def test_stand_ins_are_not_allowed_after_their_file_is_read(tmp_path: Path) -> None:
    before = torch.serialization.get_safe_globals()
    saved(tmp_path, {"set": Settings(0.5, [])})
    assert {*torch.serialization.get_safe_globals()} == {*before}
    with pytest.raises(pickle.UnpicklingError, match="Settings"):
        torch.load(tmp_path / "ckpt.pt", weights_only=True)


HOSTILE = [
    b"cos\nsystem\n(S'touch ran'\ntR.", b"(cos\nsystem\nS'touch ran'\no.", b"(S'touch ran'\nios\nsystem\n.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x09touch ran\x85R.",
    b"cbuiltins\nexec\n(S'open(\"ran\", \"w\")'\ntR.",
    b"cclusterdp.rehearse.state.compare\ncompare\n}S'MARGIN'\nI1\nsb.",  # BUILD, on what is ours
    b"cbuiltins\nset\n(N}S'__defaults__'\n(I1\ntstb.", b"cnumpy\ndtype\n}S'fields'\nI1\nsb.",
    b"cos\nenviron\nS'A'\nS'B'\ns.", b"cos\npath\n(lp0\nI1\nae.", b"\x82\x01.", b"P1\n.",
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_pickle_opcodes_leave_files_environment_and_attributes_unchanged(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = dict(os.environ)
    (tmp_path / "a.pkl").write_bytes(data)
    with contextlib.suppress(CheckpointError):
        of_files(tmp_path, ["a.pkl"])
    assert os.listdir(tmp_path) == ["a.pkl"]
    assert dict(os.environ) == environ
    assert not hasattr(compare, "MARGIN")
    assert tensor_files._KNOWN["builtins", "set"].__defaults__ == ((),)
    assert not hasattr(tensor_files.StandIn, "fields")


def test_exponentially_nested_or_self_containing_pickle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterdp.rehearse.state.flatten.MOST", 500)
    bomb: list[Any] = [0]
    for _ in range(40):
        bomb = [bomb, bomb]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(bomb))
    with pytest.raises(CheckpointError, match=r"a\.pkl.*more than 500 values"):
        of_files(tmp_path, ["a.pkl"])
    itself: list[Any] = []
    itself.append(itself)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(itself))
    with pytest.raises(CheckpointError, match="nested deeper"):
        of_files(tmp_path, ["a.pkl"])


def rewritten(path: Path, old: bytes, new: bytes) -> None:
    """The archive with other bytes in its pickle."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            assert not name.endswith("data.pkl") or old in data
            archive.writestr(name, data.replace(old, new) if name.endswith("data.pkl") else data)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"K\x01", b"K\x03", "storage"),
        (b"K\x02", b"K\x09", "storage"),
        (b"FloatStorage", b"NoSuchStorag", "NoSuchStorag"),
    ],
)
def test_tensor_outside_its_storage_or_of_unknown_type_is_refused(
    old: bytes, new: bytes, why: str, tmp_path: Path
) -> None:
    saved(tmp_path, {"w": torch.ones(4)[1:3]})
    rewritten(tmp_path / "ckpt.pt", old, new)
    with pytest.raises(CheckpointError, match=rf"ckpt\.pt: .*{why}"):
        of_files(tmp_path, ["ckpt.pt"])


@pytest.mark.parametrize("keep", [0, 10, 200, 0.5, 0.99])
def test_truncated_torch_file_is_an_error_with_its_name(keep: float, tmp_path: Path) -> None:
    saved(tmp_path, {"w": torch.arange(1000)})
    data = (tmp_path / "ckpt.pt").read_bytes()
    (tmp_path / "ckpt.pt").write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(CheckpointError, match=r"ckpt\.pt: .*(damaged|cut)"):
        of_files(tmp_path, ["ckpt.pt"])


def test_torch_file_from_before_torch_1_6_is_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "ckpt.pt", _use_new_zipfile_serialization=False)
    assert shown(of_files(tmp_path, ["ckpt.pt"]).values["w"]) == [1.0]


@pytest.mark.parametrize("name", ["ckpt.pt", "ckpt.safetensors", "ckpt.npy", "cut.pt"])
def test_file_changed_between_reading_and_comparing_is_an_error(name: str, tmp_path: Path) -> None:
    def written(number: float) -> EndState:
        tensor, path = torch.full((100_000,), number), tmp_path / name
        if name == "ckpt.npy":
            np.save(path, tensor.numpy())
        else:
            save_file({"w": tensor}, path) if name == "ckpt.safetensors" else torch.save({"w": tensor}, path)
        return of_files(tmp_path, [name])

    a, b = written(1.0), written(0.0)
    if name == "cut.pt":  # to read a mapped page that is not there any more would end this process
        os.truncate(tmp_path / name, 10)
    with pytest.raises(CheckpointError, match=rf"{name}: it was changed after it was read"):
        compare(a, b)


def test_file_changed_within_a_tick_of_the_clock_is_an_error(tmp_path: Path) -> None:
    a = saved(tmp_path, {"w": torch.ones(4)})
    about = (tmp_path / "ckpt.pt").stat()
    b = saved(tmp_path, {"w": torch.zeros(4)})
    os.utime(tmp_path / "ckpt.pt", ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(CheckpointError, match="w: its file was changed after it was read"):
        compare(a, replace(a, values={"w": replace(b.values["w"], stored=a.values["w"].stored)}))
