"""The manifest's list of pieces is input: what does not make whole tensors of bytes that are there is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterdp.checkpoint.format import chunks
from clusterdp.checkpoint.format.layout import HEADER, FlatLayout

PLAN = FlatLayout.of({"w": ("float32", (4, 6)), "step": ("float32", ()), "none": ("int8", (0, 3))})
SIZES = [HEADER + 100, HEADER + 100]
# Rank 0 has w[0:4, 0:3] and the scalar, rank 1 the rest of w in two pieces.
GOOD: dict[str, Any] = {
    "none": [],
    "step": [[0, HEADER + 48, [], []]],
    "w": [[0, HEADER, [0, 0], [4, 3]], [1, HEADER, [0, 3], [1, 3]], [1, HEADER + 12, [1, 3], [3, 3]]],
}


def test_chunk_list_is_unchanged_after_a_json_round_trip() -> None:
    found = chunks.from_json(GOOD, PLAN, SIZES)
    assert chunks.to_json(found) == GOOD
    assert chunks.from_json(json.loads(json.dumps(chunks.to_json(found))), PLAN, SIZES) == found


BAD: dict[str, Any] = {
    "a tensor has no chunks": {"w": []},
    "a hole": {"w": GOOD["w"][:2]},
    "one twice": {"w": [*GOOD["w"], GOOD["w"][1]]},
    "an overlap that fills a hole elsewhere": {
        "w": [[0, HEADER, [0, 0], [4, 3]], [1, HEADER, [0, 3], [1, 3]], [1, HEADER + 12, [0, 3], [3, 3]]]
    },
    "two scalars": {"step": [[0, HEADER + 48, [], []], [1, HEADER + 80, [], []]]},
    "out of its shape": {"w": [[0, HEADER, [0, 1], [4, 6]]]},
    "negative": {"w": [[0, HEADER, [0, -3], [4, 6]]]},
    "sizes of another rank": {"w": [[0, HEADER, [0], [24]]]},
    "an empty chunk": {"w": [*GOOD["w"], [1, HEADER, [4, 0], [0, 6]]]},
    "past the end of the file": {"step": [[0, SIZES[0] - 3, [], []]]},
    "before its beginning": {"step": [[0, -4, [], []]]},
    "a rank that wrote nothing": {"step": [[2, HEADER, [], []]]},
    "bytes of another chunk": {"step": [[0, HEADER + 44, [], []]]},
    "no number": {"step": [[0, True, [], []]]},
    "no list": {"step": {"rank": 0}},
    "a tensor that is not in the index": {"x": [[0, HEADER, [], []]]},
    "huge": {"w": [[0, HEADER, [0, 0], [2**70, 6]]]},
}


@pytest.mark.parametrize("what", BAD)
def test_chunk_list_with_gaps_overlaps_or_invalid_values_is_refused(what: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):  # what a manifest calls damage
        chunks.from_json({**GOOD, **BAD[what]}, PLAN, SIZES)


def test_chunk_list_with_a_missing_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="not those of the tensors in its index"):
        chunks.from_json({"w": GOOD["w"]}, PLAN, SIZES)


def test_chunks_header_places_pieces_aligned_and_without_gaps() -> None:
    pieces = {"a": ("bool", (3,)), "b": ("float64", (2, 2)), "c": ("complex128", (1,)), "d": ("bfloat16", (5,))}
    head, starts = chunks.header(pieces, {"token": "x" * 5000})
    assert len(head) % HEADER == 0
    assert len(head) > HEADER
    assert [starts[name] - len(head) for name in "cbda"] == [0, 16, 48, 58]
    tensors = json.loads(head[8:])
    assert tensors["c"] == {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}, "safetensors has no such numbers"
    assert int.from_bytes(head[:8], "little") == len(head) - 8
