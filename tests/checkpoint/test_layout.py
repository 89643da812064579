"""The flat buffer and its cut: every byte belongs to one rank, and every rank computes the same."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize

from clusterdp.checkpoint.format.checksum import checksum, checksums
from clusterdp.checkpoint.format.layout import (
    ALIGN,
    BLOCK,
    HEADER,
    ITEM_SIZES,
    FlatLayout,
    pack_checksums,
    safetensors_header,
    step_folder,
    step_of,
    token_of_file,
    unpack_checksums,
)

tensors = st.dictionaries(
    st.text(max_size=8),
    st.tuples(st.sampled_from(sorted(ITEM_SIZES)), st.lists(st.integers(0, 40), max_size=3).map(tuple)),
    max_size=12,
)


@given(tensors, st.integers(1, 70))
def test_rank_slices_cover_the_buffer_without_gap_or_overlap(specs: dict[str, tuple], size: int) -> None:
    layout = FlatLayout.of(specs)
    spans = [layout.span(rank, size) for rank in range(size)]
    assert spans[0][0] == 0
    assert spans[-1][1] == layout.total
    assert all(stop == start for (_, stop), (start, _) in pairwise(spans))
    assert all(start % ALIGN == 0 for start, _ in spans)
    fair = layout.total / size
    assert all(start <= stop for start, stop in spans)
    assert all(abs(stop - start - fair) <= ALIGN for start, stop in spans)


@given(tensors)
def test_flatlayout_sorts_and_aligns_tensors_and_reads_back_from_json(specs: dict[str, tuple]) -> None:
    layout = FlatLayout.of(dict(reversed(specs.items())))
    assert [entry.name for entry in layout.entries] == sorted(specs)
    end = 0
    for entry in layout.entries:
        assert entry.offset >= end
        assert entry.offset % ALIGN == 0
        end = entry.end
    assert end <= layout.total
    assert FlatLayout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


@pytest.mark.parametrize(
    "index",
    [
        [],
        {"a": 3},
        {"a": [0, 4, "float32"]},
        {"a": [0, 8, "float32", [1]]},
        {"a": [64, 4, "float32", [1]]},
        {"a": [0, 4, "float31", [1]]},
        {"a": [0, -4, "float32", [-1]]},
        {"a": [0, 4, ["float32"], [1]]},
        {"a": [0, 4, "float32", [1]], "b": [0, 4, "float32", [1]]},
    ],
)
def test_flatlayout_from_json_refuses_an_invalid_index(index: object) -> None:
    with pytest.raises(ValueError, match="index"):
        FlatLayout.from_json(index)


def test_slice_file_header_is_valid_safetensors() -> None:
    data = bytes(range(256)) * 3
    ((name, content),) = deserialize(safetensors_header(len(data), {"token": "x"}) + data)
    assert (name, content["dtype"], content["shape"], bytes(content["data"])) == ("slice", "U8", [len(data)], data)
    empty = safetensors_header(0, {})
    assert len(empty) == HEADER
    assert deserialize(empty)[0][1]["shape"] == [0]


@given(st.binary(max_size=100), st.integers(0, 3))
def test_checksums_have_one_value_per_block_and_unpack_unchanged(tail: bytes, blocks: int) -> None:
    values = checksums(memoryview(bytes(blocks * BLOCK) + tail))
    assert len(values) == blocks + bool(tail)
    assert unpack_checksums(pack_checksums(values)) == values


def test_step_and_token_are_parsed_from_valid_file_names_only() -> None:
    assert step_of(step_folder(12)) == 12
    assert step_of(step_folder(10**9)) == 10**9
    assert step_of("step_12") is None
    assert step_of("step_00000012.bak") is None
    assert token_of_file("0123456789ab-0001-r0003-of-0008.safetensors") == "0123456789ab-0001"
    assert token_of_file("0123456789ab-0001-r0003.local.safetensors") == "0123456789ab-0001"
    assert token_of_file(".MANIFEST.0123456789ab-0001.json.77.tmp") == "0123456789ab-0001"
    assert token_of_file("MANIFEST.0123456789ab-0001.json") is None
    assert token_of_file("notes.txt") is None


@given(st.binary(max_size=3000), st.lists(st.integers(0, 3000)))
def test_checksum_of_pieces_equals_checksum_of_the_whole(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert checksum(*(data[a:b] for a, b in pairwise(places))) == checksum(data)
