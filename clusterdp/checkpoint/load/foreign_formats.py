"""Reads files of other programs as a tree: a file of torch.save(), a folder of torch.distributed.checkpoint, or a
folder of Hugging Face or accelerate.

Files of torch.save() and folders of torch.distributed.checkpoint contain pickles, and reading a pickle can run any
code. This module runs no code of a pickle: a file is read by torch.load() with weights_only=True, and a folder's
.metadata may hold only descriptions of tensors. Any other class is refused, with an error that names the class.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from clusterdp.checkpoint.format.manifest import CheckpointInfo, scan
from clusterdp.checkpoint.format.payload import shared_payload
from clusterdp.checkpoint.format.verified_reads import read_manifest
from clusterdp.checkpoint.load.torch_file import tree
from clusterdp.checkpoint.state.same_plan import enum_member
from clusterdp.checkpoint.state.tree import key_of
from clusterdp.errors import CheckpointError, DamagedError, StateError
from clusterdp.storage import open_storage

_GLOBAL = re.compile(r"(?:GLOBAL|class|global:?) ([\w.]+\.\w+)")
# Classes that describe tensors in a .metadata, as (module, name). _Restricted also allows torch's dtypes and layouts.
_DESCRIBES = {
    *(("torch.distributed.checkpoint.metadata", name) for name in (
        "Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    *(("pathlib", name) for name in ("PosixPath", "PurePosixPath")),
}  # fmt: skip
_log = logging.getLogger("clusterdp.checkpoint")
Load = Callable[[str, Path], Any]  # a function that reads a file of torch.save() without running code of the file
_PART = re.compile(r"(model|pytorch_model|optimizer|scheduler|scaler)(_\d+)?\.(safetensors|bin|pt)(\.index\.json)?")
_STATE = (".bin", ".pt", ".pth", ".pkl", ".safetensors")
_SCALERS = ("MixedPrecision", "MixedPrecisionPlugin", "native_amp_scaling_state")


def read(where: str, live: Mapping[str, torch.Tensor]) -> Any:
    """Returns the content of `where` as a tree. live: this program's tensors by name. A tensor whose live tensor is
    sharded is read sharded, if the format allows it. Raises StateError if `where` cannot be read safely, and
    CheckpointError if `where` cannot be read at all."""
    with _reading(where):
        if (own := _of_clusterdp(where)) is not None:
            return own
    if "://" in where and not where.startswith("file://"):
        folder, _, name = where.rpartition("/")
        with _reading(where):
            data = open_storage(folder).read(name)
        return of_lightning(_torch_file(where, io.BytesIO(data)))
    path = Path(where.removeprefix("file://")).expanduser()
    if (path / ".metadata").is_file():
        return _folder(path, live)
    with _reading(where):
        if path.is_dir():
            return _library_folder(where, path)
        if path.suffix == ".safetensors" and path.is_file():
            return read_safetensors(path)
    return of_lightning(_torch_file(where, path))


def commits_in(where: str) -> list[CheckpointInfo]:
    """Returns the checkpoints that clusterdp has saved in this folder or store, the oldest first."""
    is_folder = "://" in where or Path(where).expanduser().is_dir()
    return scan(open_storage(where))[0] if is_folder and not where.endswith(_STATE) else []


def _of_clusterdp(where: str) -> Any:
    """Returns the state of the newest good checkpoint of clusterdp; None if there is none. Raises DamagedError if all
    are damaged."""
    damage: DamagedError | None = None
    for info in reversed(commits_in(where)):
        try:
            manifest = read_manifest(storage := open_storage(where), info)
            with shared_payload(storage, manifest) as payload:
                return tree(manifest.state, payload)
        except DamagedError as error:
            _log.warning("%s: %s", where, error)
            damage = damage or error
    if damage is not None:
        raise damage
    return None


def _library_folder(where: str, path: Path) -> Any:
    tree = read_folder(path, _torch_file)
    if tree is None:
        raise CheckpointError(
            f"{where}: a folder without a .metadata, a model.safetensors or a pytorch_model.bin is nothing that "
            "torch.distributed.checkpoint, Hugging Face or accelerate has written. Name a file of torch.save(); "
            "checkpoints of clusterdp are restored with restore()."
        )
    return tree


@contextmanager
def _reading(where: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{where}: cannot be read: {error.strerror or error}. Look at the path.") from error


def _torch_file(where: str, file: Path | io.BytesIO) -> Any:
    try:
        # The file is mapped: it takes no memory until tensors are copied, and is in memory only once for all ranks of a
        # node.
        mapped = isinstance(file, Path) and zipfile.is_zipfile(file)
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped or None)
    except OSError as error:
        raise CheckpointError(f"{where}: cannot be read: {error.strerror or error}. Look at the path.") from error
    except pickle.UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        what = f"a {found[1]}" if found else "something"
        raise StateError(
            f"{where}: it holds {what}, and only a pickle that may run code can load that; it is not loaded. "
            "Where you trust the file, convert it once: d = torch.load(f, weights_only=False); "
            "torch.save({k: d[k] for k in ('model', 'optimizer')}, g)"
        ) from None
    except Exception as error:  # an unpickler can raise anything on arbitrary bytes
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{where}: no file of torch.save(), or a damaged one: {reason}.") from error


def _folder(path: Path, live: Mapping[str, torch.Tensor]) -> Any:
    """Reads a folder of torch.distributed.checkpoint. Each rank reads only its part of sharded tensors."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    from clusterdp.checkpoint.load import resharding

    class FolderReader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            return described

    class Planner(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
            self.state_dict[read_item.dest_index.fqn] = _torch_file(f"{path}: {read_item.dest_index.fqn}", value)

    described: Metadata = _metadata(path / ".metadata")
    places = described.planner_data if isinstance(described.planner_data, dict) else {}
    target: dict[str, Any] = {}
    try:
        for fqn, about in described.state_dict_metadata.items():
            target[fqn] = None
            if isinstance(about, TensorStorageMetadata):
                name = key_of(*places.get(fqn, (fqn,)))
                target[fqn] = resharding.like(name, about.properties.dtype, tuple(about.size), live)
        resharding.load(target, FolderReader(path), Planner(flatten_state_dict=False, flatten_sharded_tensors=False))
    except CheckpointError:
        raise
    except Exception as error:  # for example, a file of the folder is missing
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path}: cannot be read: {reason}.") from error
    tree: Any = {}
    for fqn, value in target.items():
        _put(tree, places.get(fqn, (fqn,)), value)
    return _lists(tree)


def _metadata(path: Path) -> Any:
    from torch.distributed.checkpoint.metadata import Metadata

    try:
        with path.open("rb") as file:
            found = _Restricted(file).load()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except StateError as error:
        raise StateError(f"{path}: {error}") from None
    except Exception as error:
        raise CheckpointError(f"{path}: damaged: {error}.") from error
    if not isinstance(found, Metadata):
        raise CheckpointError(f"{path}: it holds a {type(found).__name__}, and no description of a checkpoint.")
    return found


class _Restricted(pickle._Unpickler):  # written in Python: the C version hides the object that BUILD changes
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_build(self) -> None:
        """Handles the pickle instruction BUILD, which sets attributes of an object. Only objects that describe tensors
        are allowed: an attribute of a class, for example, would change the whole process."""
        built = type(self.stack[-2])  # type: ignore[attr-defined]
        if (built.__module__, built.__qualname__) not in _DESCRIBES:
            raise StateError(
                f"it changes a {built.__qualname__}, unlike any description of tensors. It may be hostile."
            )
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _DESCRIBES:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return enum_member
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
            return found
        raise StateError(f"it holds a {module}.{name}, which no description of tensors needs. It may be hostile.")


def _put(tree: dict[Any, Any], place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        tree = tree.setdefault(key, {})
    tree[place[-1]] = value


def _lists(tree: Any, *path: Any) -> Any:
    """Turns dicts with the keys 0, 1, ... into lists, because torch numbers the items of a list. An optimizer's `state`
    stays a dict with numbers as keys."""
    if not isinstance(tree, dict):
        return tree
    keys = list(tree)
    if path and path[-1] != "state" and keys and keys == list(range(len(keys))):
        return [_lists(item, *path, i) for i, item in enumerate(tree.values())]
    return {key: _lists(item, *path, key) for key, item in tree.items()}


def read_folder(path: Path, load: Load) -> dict[str, Any] | None:
    """Returns the tree {"model": ..., ...} of a folder of Hugging Face or accelerate; None if it has no model file.

    A model is model.safetensors, pytorch_model.bin, or an .index.json that names the files of its parts. accelerate
    adds optimizer.bin, scheduler.bin and scaler.pt, with _1 in the name of a second file. The Trainer of transformers
    adds optimizer.pt, scheduler.pt, scaler.pt and trainer_state.json. Raises StateError, CheckpointError or OSError.
    """
    tree: dict[str, Any] = {}
    read: set[str] = set()
    for file in sorted(path.iterdir(), reverse=True):  # model.safetensors comes last, and replaces pytorch_model.bin
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
    """Returns a tree of Lightning with the names that other programs use, and any other tree unchanged. The state of
    Lightning's loops and callbacks is left out because a run counts its own steps."""
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
        raise CheckpointError(f"{file}: it is not JSON: {error}. Download it again.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: it holds a {type(found).__name__} and no object. Download it again.")
    return found
