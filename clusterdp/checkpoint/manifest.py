"""The manifest: the small file whose existence is the checkpoint, and the list of them in a folder. Torch-free.

    {"head": {"format": 1, "step": 1000, "token": ..., "order": ..., ..., "body_digest": ..., "digest": ...},
    "body": {"block": 1048576, "files": {name: {"size": n, "crc32": ...}}, "index": {...}, "state": ..., "meta": ...}}

One JSON document in two lines: to list checkpoints is to read their first lines. Each line is covered by a digest, so
that a flipped digit in `order` cannot make an old checkpoint the newest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from clusterdp.checkpoint import layout
from clusterdp.checkpoint.layout import Layout
from clusterdp.errors import DamagedError
from clusterdp.storage import Storage, open_storage

FORMAT = 1
HEAD_LIMIT = 4096  # bytes of a first line, so that one small read lists a checkpoint
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_OPEN, _MIDDLE, _CLOSE = b'{"head": ', b',\n"body": ', b"}\n"


@dataclass(frozen=True)
class CheckpointInfo:
    """What `ls` shows. `order` counts the commits to a folder: the highest is the newest, whatever its step.

    `data` is the token that names the files: another checkpoint's where this one commits the same bytes anew, which is
    how a run that goes on from an older step makes that step the newest.
    """

    step: int
    token: str
    data: str
    order: int
    committed_at: float
    world_size: int
    bytes: int
    attempt: str

    @property
    def folder(self) -> str:
        return layout.step_folder(self.step)

    @property
    def name(self) -> str:
        return f"{self.folder}/{layout.manifest_name(self.token)}"

    @property
    def age(self) -> tuple[int, float, str]:
        """Sorts from oldest to newest commit."""
        return self.order, self.committed_at, self.token


@dataclass(frozen=True)
class Damage:
    """A manifest that cannot be believed."""

    name: str
    why: str


@dataclass(frozen=True)
class FileRecord:
    """What a file of the checkpoint must look like: `crc32` has one value a block, from the file's first byte on."""

    size: int
    crc32: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    info: CheckpointInfo
    files: Mapping[str, FileRecord]
    layout: Layout
    state: Any  # the tree of JSON values with references to tensors; tree.py reads it
    meta: Any

    def encode(self) -> bytes:
        body = _dump(
            {
                "block": layout.BLOCK,
                "files": {
                    name: {"size": record.size, "crc32": layout.pack_checksums(record.crc32)}
                    for name, record in sorted(self.files.items())
                },
                "index": self.layout.to_json(),
                "state": self.state,
                "meta": self.meta,
            }
        )
        head = {"format": FORMAT, **asdict(self.info), "body_bytes": len(body), "body_digest": _digest(body)}
        line = _OPEN + _seal(head)
        if len(line) + len(_MIDDLE) > HEAD_LIMIT:
            raise ValueError(f"attempt: {self.info.attempt[:80]!r}... is too long. Name it in under 1,000 characters.")
        return line + _MIDDLE + body + _CLOSE


def expected_files(info: CheckpointInfo) -> Iterator[tuple[str, str]]:
    """(slice, rank file) of each rank. Names are derived, never read from a file: they cannot lead elsewhere."""
    for rank in range(info.world_size):
        yield layout.slice_name(info.data, rank, info.world_size), layout.rank_name(info.data, rank)


def decode(data: bytes, name: str) -> Manifest:
    """The manifest that was written as `name` (step folder and file name); raises DamagedError."""
    try:
        head, start = _decode_head(data)
        info = _info(head, name)
        body = data[start : start + head["body_bytes"]]
        if data[start + len(body) :] != _CLOSE or _digest(body) != head["body_digest"]:
            raise ValueError("its second line does not match its digest")
        content = json.loads(body)
        return _manifest(info, content)
    except _MALFORMED as error:
        raise DamagedError(f"{name}: {error}. The manifest is damaged; another checkpoint must be used.") from error


def decode_head(data: bytes, name: str) -> CheckpointInfo:
    """The same from the first HEAD_LIMIT bytes alone."""
    try:
        head, _ = _decode_head(data)
        return _info(head, name)
    except _MALFORMED as error:
        raise DamagedError(f"{name}: {error}. The manifest is damaged; another checkpoint must be used.") from error


def scan(
    storage: Storage, known: Mapping[str, CheckpointInfo] | None = None
) -> tuple[list[CheckpointInfo], list[Damage]]:
    """All checkpoints from oldest to newest commit, and what looks like one and is not. Reads first lines only, and of
    those already `known` (name -> info) none: a manifest never changes."""
    known, good, bad = known or {}, [], []
    for folder in storage.list():
        if layout.step_of(folder) is None:
            continue
        for file in storage.list(folder):
            if layout.token_of_manifest(file) is None:
                continue
            name = f"{folder}/{file}"
            try:
                good.append(known.get(name) or decode_head(storage.read(name, HEAD_LIMIT), name))
            except FileNotFoundError:
                continue  # pruned while we were looking
            except (DamagedError, OSError) as error:
                bad.append(Damage(name, str(error)))
    return sorted(good, key=lambda info: info.age), bad


def list_checkpoints(url: str | os.PathLike[str]) -> list[CheckpointInfo]:
    """Committed checkpoints from oldest to newest; none if there is no such folder. Their bytes are not verified."""
    return scan(open_storage(url))[0]


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _seal(head: dict[str, Any]) -> bytes:
    text = _dump(head)
    return text[:-1] + b',"digest":"' + _digest(text).encode() + b'"}'


def _decode_head(data: bytes) -> tuple[dict[str, Any], int]:
    """The head, and where the body begins."""
    end = data.find(_MIDDLE)
    if not data.startswith(_OPEN) or end < 0:
        raise ValueError("its first line is not that of a manifest")
    line = data[len(_OPEN) : end]
    head = json.loads(line)
    if head.get("format") != FORMAT:
        raise ValueError(f"format {head.get('format')!r} is not {FORMAT}, the one this version reads")
    head.pop("digest", None)
    if _seal(head) != line:
        raise ValueError("its first line does not match its digest")
    return head, end + len(_MIDDLE)


def _info(head: dict[str, Any], name: str) -> CheckpointInfo:
    info = CheckpointInfo(**{field.name: head[field.name] for field in fields(CheckpointInfo)})
    if info.name != name:
        raise ValueError(f"it is the manifest of {info.name}")
    if not layout.is_token(info.data) or info.world_size < 1:
        raise ValueError(f"data is {info.data!r} and world_size {info.world_size}")
    return info


def _manifest(info: CheckpointInfo, content: dict[str, Any]) -> Manifest:
    if content["block"] != layout.BLOCK:
        raise ValueError(f"its checksums are of blocks of {content['block']} bytes, not {layout.BLOCK}")
    files = {}
    for name, record in content["files"].items():
        crc32 = tuple(layout.unpack_checksums(record["crc32"]))
        if len(crc32) != -(-record["size"] // layout.BLOCK):
            raise ValueError(f"{name} has {len(crc32)} checksums for {record['size']} bytes")
        files[name] = FileRecord(record["size"], crc32)
    index = Layout.from_json(content["index"])
    needed = set()
    for rank, (slice_file, rank_file) in enumerate(expected_files(info)):
        start, stop = index.span(rank, info.world_size)
        if files[slice_file].size != layout.HEADER + stop - start:
            raise ValueError(f"{slice_file} has {files[slice_file].size} bytes, and its slice {stop - start}")
        needed |= {slice_file, rank_file}
    local = {layout.local_name(info.data, rank) for rank in range(info.world_size)}
    if not needed <= files.keys() <= needed | local:
        raise ValueError("its list of files is not that of its ranks")
    return Manifest(info, files, index, content["state"], content["meta"])
