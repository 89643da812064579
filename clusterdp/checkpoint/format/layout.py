"""The layout of a checkpoint: names, the virtual flat buffer, and its division into one slice per rank. Torch-free.

    checkpoints/step_00001000/
        <token>-n0001.safetensors           the files below of the ranks on node 1, as sections (node_file.py); or
        <token>-r0003-of-0008.safetensors   rank 3's bytes of the flat buffer, as one U8 tensor named `slice`
        <token>-r0003.json                  the state of rank 3 alone: RNG, loader state
        <token>-r0003.local.safetensors     the tensors of that state, if there are any: again one U8 tensor
        MANIFEST.<token>.json               created last: it IS the checkpoint (manifest.py)

The replicated state is one virtual flat buffer: its tensors are sorted by name and aligned to 64 bytes, with zeros
between them. Rank r of N writes the bytes [cut(r), cut(r + 1)). Any number of ranks can read what another number of
ranks has written. Sharded state (FSDP2) is in files of the same names, which hold the pieces of each rank (chunks.py).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

ALIGN = 64  # bytes; a multiple of the size of every element, so that no cut divides an element
BLOCK = 1 << 20  # number of bytes for one checksum
HEADER = 4096  # bytes before the data in our safetensors files: a page, so that data can be mapped or written directly

ITEM_SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip

# dtype -> its name in safetensors. Other dtypes are stored as bytes, U8 (chunks.py).
SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0", "complex64": "C64",
}  # fmt: skip

_STEP_FOLDER = re.compile(r"step_(\d{8,})")
_TOKEN = re.compile(r"[0-9a-f]{12}-\d{4,}")
_MANIFEST = re.compile(rf"MANIFEST\.({_TOKEN.pattern})\.json")
_OF_RANK = r"r\d{4,}(-of-\d{4,}\.safetensors|\.json|\.local\.safetensors)"
_OWN_FILE = re.compile(rf"({_TOKEN.pattern})-({_OF_RANK}|n\d{{4,}}\.safetensors)")
_PHASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TEMPORARY = re.compile(rf"\.MANIFEST\.({_TOKEN.pattern})\.json\.\d+\.tmp")


def step_folder(step: int) -> str:
    return f"step_{step:08d}"


def step_of(folder: str) -> int | None:
    match = _STEP_FOLDER.fullmatch(folder)
    return int(match[1]) if match else None


def is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def is_phase(text: str) -> bool:
    """Returns whether a phase may have this name, which is also a part of the name of a folder."""
    return _PHASE.fullmatch(text) is not None


def manifest_name(token: str) -> str:
    return f"MANIFEST.{token}.json"


def token_of_manifest(name: str) -> str | None:
    match = _MANIFEST.fullmatch(name)
    return match[1] if match else None


def token_of_file(name: str) -> str | None:
    """Returns the token of the save to which a data file, or a temporary file of a manifest, belongs."""
    match = _OWN_FILE.fullmatch(name) or _TEMPORARY.fullmatch(name)
    return match[1] if match else None


def slice_name(token: str, rank: int, world_size: int) -> str:
    return f"{token}-r{rank:04d}-of-{world_size:04d}.safetensors"


def rank_name(token: str, rank: int) -> str:
    return f"{token}-r{rank:04d}.json"


def local_name(token: str, rank: int) -> str:
    return f"{token}-r{rank:04d}.local.safetensors"


def node_name(token: str, node: int) -> str:
    return f"{token}-n{node:04d}.safetensors"


@dataclass(frozen=True)
class TensorEntry:
    """The place of a tensor in a flat buffer."""

    name: str
    dtype: str  # a key of ITEM_SIZES
    shape: tuple[int, ...]  # in elements
    offset: int  # in bytes
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True)
class FlatLayout:
    entries: tuple[TensorEntry, ...]
    total: int

    @classmethod
    def of(cls, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> FlatLayout:
        """Returns the layout of tensors given as name -> (dtype, shape). Every rank computes the same layout."""
        return _layout_of(tuple(tensors.items()))

    def cut(self, rank: int, world_size: int) -> int:
        """Returns the first byte of the rank's slice; cut(world_size) is the end of the last slice."""
        return self.total if rank == world_size else rank * self.total // world_size // ALIGN * ALIGN

    def span(self, rank: int, world_size: int) -> tuple[int, int]:
        return self.cut(rank, world_size), self.cut(rank + 1, world_size)

    def overlapping(self, start: int, stop: int) -> Iterator[TensorEntry]:
        return (entry for entry in self.entries if entry.offset < stop and entry.end > start)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {entry.name: entry.shape for entry in self.entries}

    @cached_property
    def digest(self) -> str:
        return hashlib.blake2b(json.dumps(self.to_json()).encode(), digest_size=16).hexdigest()

    def to_json(self) -> dict[str, list[object]]:
        return {e.name: [e.offset, e.nbytes, e.dtype, list(e.shape)] for e in self.entries}

    @classmethod
    def from_json(cls, data: object) -> FlatLayout:
        """Raises ValueError if the entries are not exactly those that `of` computes from names, dtypes and shapes."""
        if not isinstance(data, dict):
            raise ValueError("the index is not an object")
        tensors = {}
        for name, entry in data.items():
            try:
                _, _, dtype, shape = entry
                known = dtype in ITEM_SIZES and all(type(n) is int and 0 <= n < 1 << 63 for n in shape)
            except (TypeError, ValueError):
                known = False
            if not known:
                raise ValueError(f"the index entry of {name} is not [offset, nbytes, dtype, shape]: {entry!r:.200}")
            tensors[name] = (dtype, tuple(shape))
        layout = cls.of(tensors)
        if layout.to_json() != data:
            raise ValueError("the offsets in the index are not those of its names, dtypes and shapes")
        return layout


@lru_cache(maxsize=8)  # cached because every save has the same layout
def _layout_of(tensors: tuple[tuple[str, tuple[str, tuple[int, ...]]], ...]) -> FlatLayout:
    entries, offset = [], 0
    for name, (dtype, shape) in sorted(tensors):
        nbytes = math.prod(shape) * ITEM_SIZES[dtype]
        entries.append(TensorEntry(name, dtype, shape, offset, nbytes))
        offset = -(-(offset + nbytes) // ALIGN) * ALIGN
    return FlatLayout(tuple(entries), offset)


def safetensors_header(nbytes: int, note: Mapping[str, str]) -> bytes:
    """Returns the first HEADER bytes of a safetensors file with one U8 tensor `slice` of `nbytes`. `note`: the file's
    metadata."""
    header = {"__metadata__": dict(note), "slice": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    room = HEADER - 8
    if len(text) > room:
        raise ValueError(f"the header needs {len(text)} bytes, and has {room}")
    return room.to_bytes(8, "little") + text.ljust(room)


def pack_checksums(values: Iterable[int]) -> str:
    """Returns the checksums as text, each as 16 hexadecimal digits (64 bits, see checksum.py)."""
    return "".join(f"{value:016x}" for value in values)


def unpack_checksums(text: str) -> tuple[int, ...]:
    return tuple(int(text[i : i + 16], 16) for i in range(0, len(text), 16))
