"""The manifest, a small file that makes saved files a checkpoint when it is created; and the list of manifests in a
folder. Torch-free.

    {"head": {"format": 1, "step": 1000, "token": ..., "order": ..., ..., "body_digest": ..., "digest": ...},
    "body": {"block": 1048576, "files": {name: {"size": n, "xxh3": ...}}, "index": {...}, "state": ..., "meta": ...,
             "strides": {...}, "changed": {...}}}

Format 1 is the flat buffer. Format 2 also has "chunks" in the body of the manifest: the places of the pieces of sharded
tensors. Format 3 is either; files of ranks are sections of the file of their node: "nodes" has the sizes of these
files, and a record of `files` has "at": [node, first byte]. A manifest is a JSON document in two lines: scan() reads
only the first lines. A digest covers each line, so that a flipped digit in `order` cannot make an old checkpoint the
newest."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import accumulate
from typing import Any

from clusterdp.checkpoint.format import chunks, layout, skeleton, strictjson, strides
from clusterdp.checkpoint.format.chunks import Chunks, Shape
from clusterdp.checkpoint.format.layout import FlatLayout, TensorEntry
from clusterdp.errors import DamagedError
from clusterdp.storage import Storage, open_storage

FLAT, SHARDED, OF_NODES = 1, 2, 3  # formats
HEAD_LIMIT = 4096  # limit of the bytes of a manifest's first line: one small read lists a checkpoint
LIMIT = 1 << 30  # limit of a manifest's bytes; a larger file is refused before it is read into memory
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
# Errors for a pipe or a link in place of a manifest, for which another read has the same result. EINVAL: see plainfile.
NO_FILE = (errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENOTDIR)
_YEAR_10000 = 253402300800  # seconds since 1970; no valid time is later, and no calendar can show it
_OPEN, _MIDDLE, _CLOSE = b'{"head": ', b',\n"body": ', b"}\n"


@dataclass(frozen=True)
class CheckpointInfo:
    """The values of a checkpoint that `clusterdp checkpoint ls` shows.

    A run that continues from an older step commits the files of this step again, as the newest commit; `data` of the
    new commit is the token of the older save.
    """

    step: int  # number of the step, counted through all phases
    token: str
    data: str  # the token in the names of the files
    order: int  # number of the commit in this folder: the highest is the newest commit, whatever its step
    committed_at: float
    world_size: int
    bytes: int
    attempt: str
    phase: str = ""  # the name of the phase (phase.py); not in the file if it is empty

    @property
    def folder(self) -> str:
        return layout.step_folder(self.step)

    @property
    def name(self) -> str:
        return f"{self.folder}/{layout.manifest_name(self.token)}"

    @property
    def age(self) -> tuple[int, float, str]:
        """The sort key for the order from the oldest to the newest commit."""
        return self.order, self.committed_at, self.token


_FIELDS = tuple(field.name for field in fields(CheckpointInfo) if field.name != "phase")


@dataclass(frozen=True)
class Damage:
    """A manifest that is damaged, or that cannot be read at the moment (`unread`)."""

    name: str
    why: str
    unread: bool = False


@dataclass(frozen=True)
class Section:
    """The place of a rank's file in the file of its node."""

    node: int
    start: int  # position of the first byte
    file: str  # name of the node's file
    total: int  # bytes of the node's file


@dataclass(frozen=True)
class FileRecord:
    """The size of a file of the checkpoint, and the checksums of its blocks, beginning at the file's first byte."""

    size: int
    checksums: tuple[int, ...]
    section: Section | None = None  # None: it is a file

    @property
    def start(self) -> int:
        """The position of the first byte in the file on disk."""
        return self.section.start if self.section else 0

    @property
    def on_disk(self) -> int:
        """Bytes of the file on disk."""
        return self.section.total if self.section else self.size

    def path(self, name: str) -> str:
        """Returns the name of the file on disk. name: that of the rank's file, with its folder."""
        return f"{name.rpartition('/')[0]}/{self.section.file}" if self.section else name


@dataclass(frozen=True)
class Box:
    """A part of a tensor in consecutive bytes, which begin at `address` (Manifest.boxes)."""

    address: int
    offsets: Shape
    sizes: Shape


@dataclass(frozen=True)
class Manifest:
    info: CheckpointInfo
    files: Mapping[str, FileRecord]
    layout: FlatLayout
    state: Any  # a tree of JSON values with references to tensors, which tree.py reads
    meta: Any
    chunks: Chunks | None = None  # None: tensors are in the flat buffer
    strides: Mapping[str, Shape] | None = None  # strides of tensors that are not row-major; None: not recorded
    changed: Any = None  # changes since the objects were built (as_built.py), as a tree; None: no known change

    @cached_property
    def bases(self) -> list[int]:
        """The address at which each rank's file begins. Addresses are positions in the flat buffer, or for sharded
        state in the sequence of all ranks' files."""
        if self.chunks is None:
            return [self.layout.cut(rank, self.info.world_size) for rank in range(self.info.world_size)]
        sizes = [self.files[name].size for name, _ in expected_files(self.info)]
        return [0, *accumulate(sizes)][:-1]

    def boxes(self, entry: TensorEntry) -> list[Box]:
        """Returns the places of the tensor, sorted by their offsets."""
        if self.chunks is None:
            return [Box(entry.offset, (0,) * len(entry.shape), entry.shape)]
        found = sorted(self.chunks[entry.name], key=lambda chunk: chunk.offsets)
        return [Box(self.bases[chunk.rank] + chunk.start, chunk.offsets, chunk.sizes) for chunk in found]

    def encode(self) -> bytes:
        sharded = {} if self.chunks is None else {"chunks": chunks.to_json(self.chunks)}
        noted = {} if self.strides is None else {"strides": self.strides}
        noted |= {"changed": self.changed} if self.changed else {}
        sections = [record.section for record in self.files.values() if record.section]
        totals = {section.node: section.total for section in sections}
        nodes = {"nodes": [totals.get(node, 0) for node in range(max(totals) + 1)]} if totals else {}
        body = _dump(
            {
                "block": layout.BLOCK,
                "files": {
                    name: {
                        "size": record.size,
                        "xxh3": layout.pack_checksums(record.checksums),
                        **({"at": [record.section.node, record.section.start]} if record.section else {}),
                    }
                    for name, record in sorted(self.files.items())
                },
                "index": self.layout.to_json(),
                "state": self.state,
                "meta": self.meta,
                **sharded,
                **noted,
                **nodes,
            }
        )
        head = {
            "format": OF_NODES if nodes else SHARDED if sharded else FLAT,
            **{name: value for name, value in asdict(self.info).items() if name != "phase" or value},
            "body_bytes": len(body),
            "body_digest": _digest(body),
        }
        line = _OPEN + _seal(head)
        if len(line) + len(_MIDDLE) > HEAD_LIMIT:
            raise ValueError(f"attempt: {self.info.attempt[:80]!r}... is too long. Name it in under 1,000 characters.")
        if len(body) > LIMIT - HEAD_LIMIT:
            raise ValueError(f"the manifest would have {len(body)} bytes. Save fewer, larger tensors.")
        return line + _MIDDLE + body + _CLOSE


def expected_files(info: CheckpointInfo) -> Iterator[tuple[str, str]]:
    """Yields (slice, rank file) of each rank. Names are computed, never read from a file, so that no name can lead to
    another folder."""
    for rank in range(info.world_size):
        yield layout.slice_name(info.data, rank, info.world_size), layout.rank_name(info.data, rank)


@contextmanager
def _refusing_damage(name: str) -> Iterator[None]:
    try:
        yield
    except MALFORMED as error:
        raise DamagedError(f"{name}: {error}. The manifest is damaged; another checkpoint must be used.") from error


def decode(data: bytes, name: str) -> Manifest:
    """Returns the manifest that was written as `name` (step folder and file name). Raises DamagedError."""
    with _refusing_damage(name):
        head, body = _verified(data)
        return _manifest(_info(head, name), strictjson.loads(body))


def verify(data: bytes, name: str) -> bytes:
    """Returns the bytes of a manifest. Raises DamagedError if they are not those that were written."""
    with _refusing_damage(name):
        _verified(data)
    return data


def _verified(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the info in the first line, and the body."""
    head, start = _decode_head(data)
    body = data[start : start + head["body_bytes"]]
    if data[start + len(body) :] != _CLOSE or _digest(body) != head["body_digest"]:
        raise ValueError("its second line does not match its digest")
    return head, body


def decode_head(data: bytes, name: str) -> CheckpointInfo:
    """Returns the info of a manifest from its first HEAD_LIMIT bytes. Raises DamagedError."""
    with _refusing_damage(name):
        head, _ = _decode_head(data)
        return _info(head, name)


def scan(
    storage: Storage, known: Mapping[str, CheckpointInfo] | None = None
) -> tuple[list[CheckpointInfo], list[Damage]]:
    """Returns the checkpoints from oldest to newest commit, and the manifests that are damaged or unreadable. Reads
    only the first lines of manifests. A manifest in `known` (name -> info) is not read, because a manifest never
    changes."""
    folders = storage.tree(lambda folder: layout.step_of(folder) is not None)
    names = [
        f"{folder}/{file}" for folder, files in folders.items() for file in files if layout.token_of_manifest(file)
    ]
    found = storage.each(lambda name: (known or {}).get(name) or _look(storage, name), names)
    good = [info for info in found if isinstance(info, CheckpointInfo)]
    bad = [damage for damage in found if isinstance(damage, Damage)]
    return sorted(good, key=lambda info: info.age), bad


def _look(storage: Storage, name: str) -> CheckpointInfo | Damage | None:
    """Returns the head of a manifest; None if the manifest was deleted meanwhile."""
    try:
        return decode_head(storage.read(name, HEAD_LIMIT), name)
    except FileNotFoundError:
        return None
    except (DamagedError, OSError) as error:
        return Damage(name, str(error), unread=isinstance(error, OSError) and error.errno not in NO_FILE)


def list_checkpoints(url: str | os.PathLike[str]) -> list[CheckpointInfo]:
    """Returns committed checkpoints from oldest to newest, without verifying their bytes. A missing folder has no
    checkpoints."""
    return scan(open_storage(url))[0]


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _seal(head: dict[str, Any]) -> bytes:
    text = _dump(head)
    return text[:-1] + b',"digest":"' + _digest(text).encode() + b'"}'


def _decode_head(data: bytes) -> tuple[dict[str, Any], int]:
    """Returns the info in the first line, and the position at which the body begins."""
    end = data.find(_MIDDLE)
    if not data.startswith(_OPEN) or end < 0:
        raise ValueError("its first line is not that of a manifest")
    line = data[len(_OPEN) : end]
    head = strictjson.loads(line)
    if head.get("format") not in (FLAT, SHARDED, OF_NODES):
        raise ValueError(f"format {head.get('format')!r} is not one that this version reads: {FLAT} to {OF_NODES}")
    # The digest is computed from the bytes as read, because encoding the JSON again took a tenth of the time to list
    # 1,000 checkpoints.
    text, comma, digest = line.rpartition(b',"digest":"')
    if not comma or _digest(text + b"}").encode() + b'"}' != digest:
        raise ValueError("its first line does not match its digest")
    return head, end + len(_MIDDLE)


def _info(head: dict[str, Any], name: str) -> CheckpointInfo:
    info = CheckpointInfo(**{name: head[name] for name in _FIELDS}, phase=head.get("phase", ""))
    if info.name != name:
        raise ValueError(f"it is the manifest of {info.name}")
    counts = (info.step, info.order, info.world_size, info.bytes)
    if not all(type(count) is int and 0 <= count < 1 << 63 for count in counts) or info.world_size < 1:
        raise ValueError("step, order, world_size and bytes are not the numbers that they should be")
    if type(info.committed_at) not in (int, float) or not 0 <= info.committed_at < _YEAR_10000:
        raise ValueError(f"committed_at is {info.committed_at!r:.80}")
    if type(info.attempt) is not str or not layout.is_token(info.data):
        raise ValueError(f"data is {info.data!r:.80} and attempt {info.attempt!r:.80}")
    if type(info.phase) is not str or not (info.phase == "" or layout.is_phase(info.phase)):
        raise ValueError(f"phase is {info.phase!r:.80}")
    return info


def _manifest(info: CheckpointInfo, content: dict[str, Any]) -> Manifest:
    sharded = "chunks" in content
    if content["block"] != layout.BLOCK:
        raise ValueError(f"its checksums are of blocks of {content['block']} bytes, not {layout.BLOCK}")
    if len(content["files"]) < 2 * info.world_size:  # checked first: a wrong world_size must not cause a long loop
        raise ValueError(f"it has {len(content['files'])} files for {info.world_size} ranks")
    sections = _sections(info, content)
    files = {}
    for name, record in content["files"].items():
        if type(record["size"]) is not int or record["size"] < 0:
            raise ValueError(f"{name} has {record['size']!r:.80} bytes")
        sums = layout.unpack_checksums(record["xxh3"])
        if len(sums) != -(-record["size"] // layout.BLOCK):
            raise ValueError(f"{name} has {len(sums)} checksums for {record['size']} bytes")
        files[name] = FileRecord(record["size"], sums, sections.get(name))
    index = FlatLayout.from_json(content["index"])
    needed = set()
    for rank, (slice_file, rank_file) in enumerate(expected_files(info)):
        start, stop = index.span(rank, info.world_size)
        record = files[slice_file]
        if not sharded and record.size != (0 if record.section else layout.HEADER) + stop - start:
            raise ValueError(f"{slice_file} has {record.size} bytes, and its slice {stop - start}")
        needed |= {slice_file, rank_file}
    needed |= {record.section.file for record in files.values() if record.section}
    local = {layout.local_name(info.data, rank) for rank in range(info.world_size)}
    if not needed <= files.keys() <= needed | local:
        raise ValueError("its list of files is not that of its ranks")
    sizes = [files[name].size for name, _ in expected_files(info)]
    pieces = chunks.from_json(content["chunks"], index, sizes) if sharded else None
    skeleton.check(content["state"], {entry.name for entry in index.entries})
    skeleton.check(content["meta"], set())
    noted: dict[str, Shape] | None = None
    if "strides" in content:  # older versions did not record strides
        noted = strides.from_json(content["strides"], index.shapes)
    changed = content.get("changed")
    skeleton.check(changed, {entry.name for entry in index.entries})
    return Manifest(info, files, index, content["state"], content["meta"], pieces, noted, changed)


def _sections(info: CheckpointInfo, content: Mapping[str, Any]) -> dict[str, Section]:
    """Returns the places in files of nodes. Raises ValueError if they overlap."""
    totals = content.get("nodes", [])
    if not all(type(total) is int and 0 <= total < 1 << 63 for total in totals):
        raise ValueError(f"nodes is {totals!r:.80}")
    nodes = [(layout.node_name(info.data, node), total) for node, total in enumerate(totals)]
    found = sorted((*record["at"], record["size"], name) for name, record in content["files"].items() if "at" in record)
    sections: dict[str, Section] = {}
    before, end = -1, 0
    for node, start, size, name in found:
        if not (type(node) is type(start) is int and 0 <= node < len(nodes)):
            raise ValueError(f"{name} is at {[node, start]!r:.80}, of {len(nodes)} nodes")
        file, total = nodes[node]
        if node != before:
            before, end = node, 0
        if start < end or start + size > total:
            raise ValueError(f"{name} is at byte {start} of {file}, which has {total}, and other sections until {end}")
        sections[name], end = Section(node, start, file, total), start + size
    return sections
