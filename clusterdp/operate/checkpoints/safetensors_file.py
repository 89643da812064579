"""One plain .safetensors file (https://huggingface.co/docs/safetensors), written tensor by tensor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO

from clusterdp.checkpoint.format.chunks import header
from clusterdp.checkpoint.format.layout import ALIGN, SAFETENSORS
from clusterdp.checkpoint.format.payload import Payload
from clusterdp.checkpoint.format.skeleton import Path
from clusterdp.errors import StateError


def keys_of(places: Iterable[tuple[Path, str]]) -> dict[str, str]:
    """Key in the file -> name of the tensor. Keys are joined by dots, as a module's are; where that would give two
    tensors one key, those two have slashes."""
    dotted: dict[str, list[tuple[Path, str]]] = {}
    for path, name in places:
        dotted.setdefault(".".join(map(str, path)), []).append((path, name))
    keys: dict[str, str] = {}
    for key, found in dotted.items():
        keys |= {key: found[0][1]} if len(found) == 1 else {"/".join(map(str, path)): name for path, name in found}
    return keys


def write(
    file: BinaryIO, keys: Mapping[str, str], payload: Payload, note: Mapping[str, str], advance: Callable[[int], None]
) -> None:
    """Write the file. `keys`: each key of the file, and its tensor. A tied tensor is written once for each key, for the
    format has no ties."""
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
    # The order is the payload's, so that each byte is read once; the file's order is by alignment.
    for entry in payload.entries:
        at = places.get(entry.name, [])
        for piece in payload.read(entry) if at else ():
            for i, start in enumerate(at):
                file.seek(start)
                file.write(piece)
                at[i] = start + len(piece)
            advance(len(piece))
    file.seek(0, os.SEEK_END)
