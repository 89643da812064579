"""What Hugging Face, accelerate and Lightning write, as the tree that a file of torch.save() has: {"model": ..., ...}.

folder   model.safetensors or pytorch_model.bin, or an .index.json that names the files which have its parts;
         beside it, of accelerate, optimizer.bin, scheduler.bin and scaler.pt, with _1 for a second one; of the
         Trainer of transformers, optimizer.pt, scheduler.pt, scaler.pt and trainer_state.json
file     Lightning's .ckpt: state_dict, and lists of optimizer_states and lr_schedulers
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clusterdp.errors import CheckpointError

_log = logging.getLogger("clusterdp.checkpoint")
Load = Callable[[str, Path], Any]  # a file of torch.save(), of which nothing is run

_PART = re.compile(r"(model|pytorch_model|optimizer|scheduler|scaler)(_\d+)?\.(safetensors|bin|pt)(\.index\.json)?")
_STATE = (".bin", ".pt", ".pth", ".pkl", ".safetensors")
_SCALERS = ("MixedPrecision", "MixedPrecisionPlugin", "native_amp_scaling_state")


def read_folder(path: Path, load: Load) -> dict[str, Any] | None:
    """The tree of a folder; None if no library wrote it. Raises StateError, CheckpointError or OSError."""
    tree: dict[str, Any] = {}
    read: set[str] = set()
    for file in sorted(path.iterdir(), reverse=True):  # safetensors after .bin: where there are both, they count
        match = _PART.fullmatch(file.name)
        if match is None:
            continue
        name = match[1].removeprefix("pytorch_") + (match[2] or "")
        if match[4] is None:
            tree[name] = _file(file, load)
            read.add(file.name)
        else:
            parts = _parts(file)
            tree[name] = {key: value for part in parts for key, value in _file(path / part, load).items()}
            read |= {file.name, *parts}
    if "model" not in tree:
        return None
    trainer = path / "trainer_state.json"
    if trainer.is_file():
        tree["global_step"] = _json(trainer).get("global_step")
    left = sorted(file.name for file in path.iterdir() if file.suffix in _STATE and file.name not in read)
    if left:
        _log.warning("%s: not read: %s.", path, ", ".join(left))
    return tree


def read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: no safetensors file, or a damaged one: {error}.") from error


def of_lightning(tree: Any) -> Any:
    """The tree with the names that other programs use, if it is Lightning's. The state of its loops and callbacks is
    left out: a run counts its own steps."""
    if not isinstance(tree, Mapping) or not ("state_dict" in tree and "optimizer_states" in tree):
        return tree
    found: dict[str, Any] = {"model": tree["state_dict"]}
    for name, states in (("optimizer", tree["optimizer_states"]), ("scheduler", tree.get("lr_schedulers", []))):
        found |= {f"{name}_{i}" if i else name: state for i, state in enumerate(states)}
    scalers = [tree[name] for name in _SCALERS if name in tree]
    found |= {"scaler": scalers[0]} if scalers else {}
    return found | {name: tree[name] for name in ("epoch", "global_step") if name in tree}


def _file(file: Path, load: Load) -> Any:
    return read_safetensors(file) if file.suffix == ".safetensors" else load(str(file), file)


def _parts(index: Path) -> list[str]:
    found = _json(index).get("weight_map")
    parts = sorted(set(found.values())) if isinstance(found, dict) else [""]
    if not all(isinstance(part, str) and part and Path(part).name == part for part in parts):
        raise CheckpointError(f"{index}: its weight_map does not name files of this folder. Download it again.")
    return parts


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: it is no JSON: {error}. Download it again.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: it holds a {type(found).__name__} and no object. Download it again.")
    return found
