"""`clusterdp checkpoint export`: writes one file for other programs, and verifies each byte while it reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from clusterdp.checkpoint.format.chunks import header
from clusterdp.checkpoint.format.layout import ALIGN, SAFETENSORS
from clusterdp.checkpoint.format.manifest import Manifest
from clusterdp.checkpoint.format.payload import Payload, shared_payload
from clusterdp.checkpoint.format.skeleton import Path as KeyPath
from clusterdp.checkpoint.format.skeleton import TensorReference, leaves
from clusterdp.checkpoint.format.verified_reads import read_manifest
from clusterdp.errors import CheckpointError, ConfigError, DamagedError, StateError
from clusterdp.operate.checkpoints.place import CheckpointPlace
from clusterdp.operate.checkpoints.read_progress import read_progress
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.output.output_file import is_plain
from clusterdp.plainfile import sync_folder
from clusterdp.wording import size

KINDS = (".safetensors", ".pt", ".pth")
# Arguments: file, skeleton, tensors, callback for the bytes written since its last call. Only the .pt writer loads
# torch.
WriteTorch = Callable[[BinaryIO, Any, Payload, Callable[[int], None]], None]


def export(
    place: CheckpointPlace,
    target: Path,
    out: TextIO,
    write_torch: WriteTorch,
    only: str | None = None,
    force: bool = False,
) -> None:
    """Exports the newest checkpoint, or the checkpoint that the user named. With `only`, the file has one object's
    state, under the object's own keys."""
    check_target(target, force)
    info = place.newest()
    try:
        manifest = read_manifest(place.storage, info)
        state = manifest.state if only is None else _object(manifest, only)
        places = [(path, leaf.name) for path, leaf in leaves(state) if isinstance(leaf, TensorReference)]
        wanted = {name for _, name in places}
        total = sum(entry.nbytes for entry in manifest.layout.entries if entry.name in wanted)
        with (
            shared_payload(place.storage, manifest) as payload,
            read_progress(out, total) as bar,
            new_file(target) as file,
        ):
            bar.begin(f"step {info.step}")
            if target.suffix == ".safetensors":
                keys = keys_of(places)
                note = {"format": "pt", "step": str(info.step), "checkpoint": info.token}
                write(file, keys, payload, note, bar.advance)
            else:
                write_torch(file, state, payload, bar.advance)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{target}: {error.name} is not installed. Install it, or export to .safetensors.") from None
    except DamagedError as error:
        raise DamagedError(f"{error} Nothing was exported; --step N takes another checkpoint.") from None
    what = f"{len(wanted)} tensors, {size(total)}"
    out.write(f"{shown_path(target)}: {only or 'the state'} of step {info.step} ({what}), every byte verified\n")


def check_target(target: Path, force: bool) -> None:
    """Raises ConfigError for a target that cannot be used, such as a folder. Called before the checkpoint is read."""
    if target.suffix not in KINDS:
        raise ConfigError(f"{target}: its ending is not known. End it in .safetensors, or in .pt for torch.load().")
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: there is no folder {target.parent}. Make it first.")
    if target.is_dir() or (target.exists() and not force):
        what = "is a folder" if target.is_dir() else "is there already, and --force was not given"
        raise ConfigError(f"{target}: {what}. Name another file.")
    if not is_plain(target):  # some formats need a file that can seek
        raise ConfigError(f"{target}: is a pipe or a device. Name a file.")


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """Opens a new file, which has a temporary name until its content is complete and durable. If `target` is a link,
    the link stays, and the linked file is replaced."""
    place = Path(os.path.realpath(target))
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place)
        sync_folder(place.parent)
    except OSError as error:
        if error.filename is not None and Path(os.fsdecode(error.filename)) != temporary:
            raise  # an error in reading the checkpoint
        raise CheckpointError(f"{target}: cannot be written: {error.strerror or error}. Name another place.") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _object(manifest: Manifest, only: str) -> Any:
    if only not in manifest.state:
        known = ", ".join(manifest.state)
        raise CheckpointError(f"--only {only}: the checkpoint has no such object. It has: {known}.")
    return manifest.state[only]


def keys_of(places: Iterable[tuple[KeyPath, str]]) -> dict[str, str]:
    """Returns the name of a tensor for each key in the file. Dots join the parts of a key, as in a module's
    state_dict(); slashes join them if two tensors would get the same key."""
    dotted: dict[str, list[tuple[KeyPath, str]]] = {}
    for path, name in places:
        dotted.setdefault(".".join(map(str, path)), []).append((path, name))
    keys: dict[str, str] = {}
    for key, found in dotted.items():
        keys |= {key: found[0][1]} if len(found) == 1 else {"/".join(map(str, path)): name for path, name in found}
    return keys


def write(
    file: BinaryIO, keys: Mapping[str, str], payload: Payload, note: Mapping[str, str], advance: Callable[[int], None]
) -> None:
    """Writes the exported file. `keys` maps each key in the file to the name of its tensor. A tensor with several keys
    is written once for each key, because the format has no shared tensors."""
    entries = {entry.name: entry for entry in payload.entries}
    pieces = {key: (entries[name].dtype, entries[name].shape) for key, name in keys.items()}
    for key, (dtype, _) in pieces.items():
        if dtype not in SAFETENSORS:
            raise StateError(f"{key}: the format .safetensors has no {dtype}. Export to a .pt file.")
    head, starts = header(pieces, note, room=ALIGN)
    file.write(head)
    places: dict[str, list[int]] = {}
    for key, name in keys.items():
        places.setdefault(name, []).append(starts[key])
    # Tensors are written in the payload's order, to read each byte once. In the file they are ordered by alignment.
    for entry in payload.entries:
        at = places.get(entry.name, [])
        for piece in payload.read(entry) if at else ():
            for i, start in enumerate(at):
                file.seek(start)
                file.write(piece)
                at[i] = start + len(piece)
            advance(len(piece))
    file.seek(0, os.SEEK_END)
