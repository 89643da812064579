"""A start from what other programs have saved: all of it finds its place, or nothing is changed; no pickle runs."""

from __future__ import annotations

import argparse
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from clusterdp.checkpoint import Checkpointer, CheckpointError, StateError
from tests.checkpoint.gang import on_ranks
from tests.checkpoint.test_sharded import Run, map_tensors
from tests.checkpoint.training import Counter, Training, digest

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Here:
    """What a run has when it starts."""

    def __init__(self, seed: int = 1) -> None:
        self.training = Training(seed=seed, adam=True)
        self.position = Counter()

    @property
    def state(self) -> dict[str, Any]:
        thing = self.training
        return {"model": thing.net, "optimizer": thing.optimizer, "scaler": thing.scaler, "position": self.position}

    def step(self) -> None:
        self.training.optimizer.zero_grad()
        self.training.net(torch.randn(8, 16)).square().mean().backward()
        self.training.optimizer.step()

    def digest(self) -> str:
        states = {name: self.state[name].state_dict() for name in ("optimizer", "scaler")}
        return digest(map_tensors({**states, "model": dict(self.training.model.state_dict())}, lambda tensor: tensor))


@pytest.fixture
def there() -> Here:
    """What another program has trained."""
    here = Here(seed=2)
    for _ in range(3):
        here.step()
    here.training.scaler.load_state_dict({**here.training.scaler.state_dict(), "scale": 512.0})
    return here


def restore(here: Here, path: Path, folder: Path, **how: Any) -> Any:
    return Checkpointer(folder / "checkpoints", here.state).restore_from(path, **how)


def states(here: Here) -> tuple[Any, Any, Any]:
    training = here.training
    return training.model.state_dict(), training.optimizer.state_dict(), training.scaler.state_dict()


FILES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "the classic": lambda m, o, s: {"model": m, "optimizer": o, "amp": s, "step": 30, "epoch": 2},
    "scaler": lambda m, o, s: {"model": m, "optimizer": o, "scaler": s, "step": 30, "epoch": 2},
    "by the tutorial": lambda m, o, s: {
        "model_state_dict": m,
        "optimizer_state_dict": o,
        "scaler_state_dict": s,
        "global_step": 30,
        "epoch": 2,
    },
    "of DDP": lambda m, o, s: {
        "state_dict": {f"module.{key}": value for key, value in m.items()},
        "optim": o,
        "grad_scaler": s,
        "iteration": 30,
        "epoch": 2,
    },
    "of compiled DDP": lambda m, o, s: {
        "net": {f"module._orig_mod.{key}": value for key, value in m.items()},
        "optimizer": o,
        "amp": s,
        "iter": 30,
        "epoch": 2,
    },
}


@pytest.mark.parametrize("kind", FILES)
def test_restore_from_reads_common_torch_save_layouts(tmp_path: Path, there: Here, kind: str) -> None:
    torch.save(FILES[kind](*states(there)), tmp_path / "x.pt")
    here = Here()
    restored = restore(here, tmp_path / "x.pt", tmp_path)
    assert here.digest() == there.digest()
    assert (restored.step, restored.exact, restored.token) == (30, False, "")
    assert restored.meta["epoch"] == 2
    assert here.position.state == {"consumed": 0}, "nobody else has saved that"


def test_restore_from_reads_the_old_nonzip_torch_save_format(tmp_path: Path, there: Here) -> None:
    torch.save(FILES["scaler"](*states(there)), tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    here = Here()
    restore(here, tmp_path / "x.pt", tmp_path)
    assert here.digest() == there.digest()


def test_restore_from_a_path_or_url_does_not_keep_the_file_mapped(tmp_path: Path, there: Here) -> None:
    path = tmp_path / "x.pt"
    torch.save(FILES["scaler"](*states(there)), path)
    for where in (path, f"file://{path}", "memory://migration/x.pt"):
        if str(where).startswith("memory"):
            import fsspec

            fsspec.filesystem("memory").pipe_file("/migration/x.pt", path.read_bytes())
        here = Here()
        Checkpointer(tmp_path / "checkpoints", here.state).restore_from(where)
        before = path.read_bytes()
        here.step()
        assert path.read_bytes() == before
        maps = Path("/proc/self/maps")  # Linux alone tells
        assert not maps.exists() or str(path) not in maps.read_text(), "the file is mapped no longer"


def test_restore_from_a_weights_file_fails_without_a_selection_of_the_model(tmp_path: Path, there: Here) -> None:
    torch.save(there.training.model.state_dict(), tmp_path / "x.pt")
    here = Here()
    with pytest.raises(
        StateError,
        match=r"nothing for optimizer, scaler\. It holds: head\.weight, .* and 7 more.*start_only: \[model\]",
    ):
        restore(here, tmp_path / "x.pt", tmp_path)
    restore(here, tmp_path / "x.pt", tmp_path, only=["model"])
    assert here.training.optimizer.state_dict()["state"] == {}
    for key, value in there.training.model.state_dict().items():
        assert torch.equal(here.training.model.state_dict()[key], value)


def wrong_keys(m: Any) -> Any:
    m = {key: value for key, value in m.items() if key != "first.bias"}
    return {**m, "extra.weight": torch.ones(3), "head.weight": torch.ones(2, 32)}


BAD: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "keys": (
        lambda m, o, s: {"model": wrong_keys(m), "optimizer": o, "scaler": s},
        r"not in the checkpoint: first\.bias; only in the checkpoint: extra\.weight; of another shape: head\.weight",
    ),
    "no optimizer": (lambda m, o, s: {"model": m, "scaler": s}, r"nothing for optimizer.*only=\['model'\]"),
    "left over": (
        lambda m, o, s: {"model": m, "optimizer": o, "scaler": s, "ema": m},
        "the state has no object for ema",
    ),
    "no dict": (lambda m, o, s: [m], "it holds a list and no dict"),
    "strange state": (
        lambda m, o, s: {"model": m, "optimizer": {**o, "state": {**o["state"], 99: {}}}, "scaler": s},
        "optimizer: state of parameters that its groups have not: 99",
    ),
    "groups": (
        lambda m, o, s: {"model": m, "optimizer": {"state": {}, "param_groups": []}, "scaler": s},
        r"optimizer: AdamW\.load_state_dict\(\) failed",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_restore_from_names_the_mismatch_of_an_incompatible_file(tmp_path: Path, there: Here, what: str) -> None:
    make, message = BAD[what]
    torch.save(make(*states(there)), tmp_path / "x.pt")
    with pytest.raises(StateError, match=message) as caught:
        restore(Here(), tmp_path / "x.pt", tmp_path)
    assert str(tmp_path / "x.pt") in str(caught.value)


def test_restore_from_reads_only_the_selected_objects(tmp_path: Path, there: Here) -> None:
    model, optimizer, *_ = states(there)
    torch.save({"model": model, "optimizer": optimizer, "ema": model}, tmp_path / "x.pt")
    here = Here()
    restore(here, tmp_path / "x.pt", tmp_path, only=["model"])
    assert not here.training.optimizer.state
    assert torch.equal(here.training.model.first.weight, there.training.model.first.weight)
    with pytest.raises(StateError, match="only: there is no ema"):
        restore(here, tmp_path / "x.pt", tmp_path, only=["ema"])


def test_restore_from_reports_a_missing_file_invalid_file_or_folder_without_metadata(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"x\.pt: cannot be read: No such file"):
        restore(Here(), tmp_path / "x.pt", tmp_path)
    (tmp_path / "y.pt").write_bytes(b"these are not the bytes of a checkpoint" * 9)
    with pytest.raises(CheckpointError, match=r"y\.pt: "):
        restore(Here(), tmp_path / "y.pt", tmp_path)
    with pytest.raises(CheckpointError, match=r"a folder without a \.metadata"):
        restore(Here(), tmp_path, tmp_path)


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_restore_from_refuses_a_pickle_without_running_its_code(tmp_path: Path, there: Here) -> None:
    made = tmp_path / "made"
    path = tmp_path / "x.pt"
    content = FILES["scaler"](*states(there))
    for old in (False, True):
        torch.save({**content, "args": Hostile(made)}, path, _use_new_zipfile_serialization=not old)
        with pytest.raises(StateError, match=r"a (posix|nt)\.mkdir, and only a pickle that may run code"):
            restore(Here(), path, tmp_path)
    path.write_bytes(pickle.dumps(Hostile(made)))
    with pytest.raises(CheckpointError):
        restore(Here(), path, tmp_path)
    folder = tmp_path / "dcp"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Hostile(made)))
    with pytest.raises(StateError, match=r"\.metadata: it holds a (posix|nt)\.mkdir"):
        restore(Here(), folder, tmp_path)
    dcp.save({"model": {"w": torch.ones(3), "x": Hostile(made)}}, checkpoint_id=tmp_path / "values")
    assert not made.exists()
    with pytest.raises(StateError, match=r"values: model\.x: it holds a (posix|nt)\.mkdir"):
        restore(Here(), tmp_path / "values", tmp_path)
    assert not made.exists()
    pickle.loads(pickle.dumps(Hostile(made)))
    assert made.exists(), "it would have"


@pytest.mark.parametrize(
    "what", ["pathlib PosixPath", "torch.distributed.checkpoint.metadata Metadata", "torch float32"]
)
def test_restore_from_refuses_a_dcp_metadata_pickle_modifying_a_class(tmp_path: Path, what: str) -> None:
    module, name = what.split()
    state = pickle.dumps({"is_dir": 7}, protocol=2)[2:-1]
    hostile = b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"N" + state + b"\x86b."  # BUILD with slots
    (tmp_path / ".metadata").write_bytes(hostile)
    with pytest.raises(StateError, match=r"\.metadata: it changes a (type|EnumType|dtype)"):
        restore(Here(), tmp_path, tmp_path)
    assert tmp_path.is_dir()


def test_tensor_larger_than_memory_in_dcp_metadata_is_a_one_line_error(tmp_path: Path, there: Here) -> None:
    dcp.save({"model": {"w": torch.ones(3)}}, checkpoint_id=tmp_path)
    path = tmp_path / ".metadata"
    about = pickle.loads(path.read_bytes())
    about.state_dict_metadata["model.w"].size = torch.Size([1 << 44])
    path.write_bytes(pickle.dumps(about))
    with pytest.raises(CheckpointError, match="cannot be read: ") as caught:
        restore(Here(), tmp_path, tmp_path)
    assert "\n" not in str(caught.value)


def test_restore_from_refuses_nontensor_objects_and_prints_how_to_convert_the_file(tmp_path: Path, there: Here) -> None:
    torch.save({**FILES["scaler"](*states(there)), "args": argparse.Namespace(lr=1)}, tmp_path / "x.pt")
    with pytest.raises(StateError, match=r"a argparse\.Namespace, and only .* convert it once: d = torch\.load"):
        restore(Here(), tmp_path / "x.pt", tmp_path)


def test_restore_from_reads_a_torch_distributed_checkpoint_folder(tmp_path: Path, there: Here) -> None:
    model, optimizer, scaler = states(there)
    dcp.save({"model": model, "optimizer": optimizer, "scaler": scaler, "step": 7}, checkpoint_id=tmp_path / "dcp")
    here = Here()
    assert restore(here, tmp_path / "dcp", tmp_path).step == 7
    assert here.digest() == there.digest()


def test_restore_from_reads_a_dcp_optimizer_state_keyed_by_parameter_name(tmp_path: Path, there: Here) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(there.training.model, there.training.optimizer)
    scaler = there.training.scaler.state_dict()
    dcp.save({"model": model, "optim": optimizer, "scaler": scaler}, checkpoint_id=tmp_path / "dcp")
    here = Here()
    restore(here, tmp_path / "dcp", tmp_path)
    assert here.digest() == there.digest()


def test_weights_file_for_two_modules_is_refused_without_a_selection(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    torch.save(model.state_dict(), tmp_path / "x.pt")
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 2)
    checkpointer = Checkpointer(tmp_path / "checkpoints", {"generator": generator, "critic": critic})
    with pytest.raises(StateError, match="the state of one module"):
        checkpointer.restore_from(tmp_path / "x.pt")
    checkpointer.restore_from(tmp_path / "x.pt", only=["critic"])
    assert torch.equal(critic.weight, model.weight)
    assert not torch.equal(generator.weight, model.weight)


def into_shards(rank: int, size: int, folder: str) -> list[bool]:
    """The same as in the file; the same as in the folder; and it trains on in the same way."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    whole = Run("plain", 1, width=40, seed=3)
    whole.step(0)
    states = {name: thing.state_dict() for name, thing in whole.state.items()}
    if rank == 0:
        torch.save(states, f"{folder}/x.pt")
    sharded = Run("fsdp", size, width=40, seed=4)
    sharded.step(0)
    model, optimizer = get_state_dict(sharded.model, sharded.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=f"{folder}/dcp")
    one, other = Run("fsdp", size, width=40, seed=5), Run("fsdp", size, width=40, seed=6)
    Checkpointer(f"{folder}/checkpoints", one.state).restore_from(f"{folder}/x.pt")
    Checkpointer(f"{folder}/checkpoints", other.state).restore_from(f"{folder}/dcp", only=["model", "optimizer"])
    found = [one.everywhere() == whole.everywhere(), other.everywhere() == sharded.everywhere()]
    other.scheduler.load_state_dict(sharded.scheduler.state_dict())
    for run in (sharded, other):
        torch.manual_seed(1)
        run.step(0)
    return [*found, other.everywhere() == sharded.everywhere(), whole.everywhere() != sharded.everywhere()]


def test_restore_from_loads_files_and_dcp_folders_into_fsdp2(tmp_path: Path) -> None:
    assert on_ranks(2, into_shards, str(tmp_path)) == [[True] * 4] * 2


def fails_on_one(rank: int, size: int, folder: str) -> tuple[str, bool]:
    run = Run("plain", 1, width=8)
    before = run.everywhere()
    torch.save(
        {name: thing.state_dict() for name, thing in Run("plain", 1, width=8, seed=7).state.items()},
        f"{folder}/{rank}.pt",
    )
    try:
        Checkpointer(f"{folder}/checkpoints", run.state).restore_from(f"{folder}/{rank if rank == 0 else 'none'}.pt")
    except CheckpointError as error:
        return str(error), run.everywhere() == before
    return "", False


def test_restore_from_failing_on_one_rank_changes_no_state_on_any_rank(tmp_path: Path) -> None:
    answers = on_ranks(2, fails_on_one, str(tmp_path))
    assert answers[0] == answers[1]
    assert answers[0][1]
    assert "rank 1: " in answers[0][0]
    assert "none.pt: cannot be read" in answers[0][0]
