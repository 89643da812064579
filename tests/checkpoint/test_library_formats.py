"""A start from what Hugging Face, accelerate and Lightning write: the layouts are theirs, made by torch alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from clusterdp.checkpoint import Checkpointer, CheckpointError, StateError
from tests.checkpoint.training import digest


class Net(torch.nn.Module):
    """With tied weights, of which safetensors files have one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)
        self.body = torch.nn.Linear(3, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def trained(seed: int, steps: int = 2) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(steps):
        model.head(model.body(model.embedding(torch.arange(5)))).square().sum().backward()
        optimizer.step()
        scheduler.step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def states(state: dict[str, Any]) -> dict[str, Any]:
    return {name: thing.state_dict() for name, thing in state.items()}


def weights(tree: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in tree["model"].items() if key != "head.weight"}


def one_file(folder: Path, tree: dict[str, Any]) -> None:
    save_file(weights(tree), folder / "model.safetensors", {"format": "pt"})


def parts(folder: Path, tree: dict[str, Any]) -> None:
    names = {key: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, key in enumerate(weights(tree))}
    for file in set(names.values()):
        save_file({key: value for key, value in weights(tree).items() if names[key] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def one_pickle(folder: Path, tree: dict[str, Any]) -> None:
    torch.save(tree["model"], folder / "pytorch_model.bin")


def pickles(folder: Path, tree: dict[str, Any]) -> None:
    names = {key: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, key in enumerate(tree["model"])}
    for file in set(names.values()):
        torch.save({key: value for key, value in tree["model"].items() if names[key] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))


def restore(where: Path, folder: Path, state: dict[str, Any], **how: Any) -> Any:
    return Checkpointer(folder / "checkpoints", state).restore_from(where, **how)


@pytest.mark.parametrize("write", [one_file, parts, one_pickle, pickles])
def test_huggingface_weights_folder_is_refused_unless_option_only_selects_the_model(tmp_path: Path, write: Any) -> None:
    there, here = trained(1), trained(2)
    where = tmp_path / "there"
    where.mkdir()
    write(where, states(there))
    with pytest.raises(StateError, match=r"nothing for optimizer\. It holds: model\. .*start_only: \[model\]"):
        restore(where, tmp_path, here)
    restore(where, tmp_path, here, only=["model"])
    assert digest(states(here)["model"]) == digest(states(there)["model"])
    assert here["model"].head.weight is here["model"].embedding.weight


@pytest.mark.parametrize("library", ["accelerate", "transformers"])
def test_accelerate_or_trainer_folder_restores_model_optimizer_and_scheduler(
    tmp_path: Path, library: str, caplog: pytest.LogCaptureFixture
) -> None:
    there, here = trained(1), trained(2)
    where = tmp_path / "there"
    where.mkdir()
    tree = states(there)
    one_file(where, tree)
    suffix = "bin" if library == "accelerate" else "pt"
    torch.save(tree["optimizer"], where / f"optimizer.{suffix}")
    torch.save(tree["scheduler"], where / f"scheduler.{suffix}")
    (where / "random_states_0.pkl").write_bytes(b"a pickle that nobody reads")
    if library == "transformers":
        (where / "trainer_state.json").write_text('{"global_step": 30}')
    with caplog.at_level(logging.WARNING):
        restored = restore(where, tmp_path, here)
    assert restored.step == (30 if library == "transformers" else 0)
    assert digest(states(here)) == digest(states(there))
    assert "not read: random_states_0.pkl." in caplog.text


@pytest.mark.parametrize("prefix", ["model.", "net.inner.", ""])
def test_lightning_checkpoint_restores_model_optimizer_and_scheduler_under_any_prefix(
    tmp_path: Path, prefix: str
) -> None:
    there, here = trained(1), trained(2)
    tree = states(there)
    torch.save(
        {
            "epoch": 2,
            "global_step": 30,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": {f"{prefix}{key}": value for key, value in tree["model"].items()},
            "loops": {"fit_loop": {"state_dict": {}}},
            "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
            "optimizer_states": [tree["optimizer"]],
            "lr_schedulers": [tree["scheduler"]],
        },
        tmp_path / "last.ckpt",
    )
    restored = restore(tmp_path / "last.ckpt", tmp_path, here)
    assert (restored.step, restored.meta) == (30, {"epoch": 2, "global_step": 30})
    assert digest(states(here)) == digest(states(there))


def test_safetensors_file_restores_the_model_if_option_only_selects_it(tmp_path: Path) -> None:
    there, here = trained(1), trained(2)
    one_file(tmp_path, states(there))
    with pytest.raises(StateError, match=r"nothing for optimizer, scheduler\. It holds: body\.bias"):
        restore(tmp_path / "model.safetensors", tmp_path, here)
    restore(tmp_path / "model.safetensors", tmp_path, here, only=["model"])
    assert digest(states(here)["model"]) == digest(states(there)["model"])


BAD = {
    "index outside": ("model.safetensors.index.json", b'{"weight_map": {"a": "../x.safetensors"}}', "of this folder"),
    "index of nothing": ("model.safetensors.index.json", b"{}", "of this folder"),
    "index no JSON": ("model.safetensors.index.json", b"{", "it is not JSON"),
    "index a list": ("model.safetensors.index.json", b"[]", "it holds a list"),
    "a part that is not there": (
        "model.safetensors.index.json",
        b'{"weight_map": {"a": "x.safetensors"}}',
        "No such file",
    ),
    "no safetensors": ("model.safetensors", b"12345678", "no safetensors file"),
}


@pytest.mark.parametrize("what", BAD)
def test_huggingface_folder_with_an_invalid_index_or_file_is_an_error(tmp_path: Path, what: str) -> None:
    name, content, message = BAD[what]
    where = tmp_path / "there"
    where.mkdir()
    (where / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as raised:
        restore(where, tmp_path, trained(2))
    assert "\n" not in str(raised.value)
