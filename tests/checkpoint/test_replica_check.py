"""The checksum of tensors on GPUs, on the CPU: it must see each change that a rank may have alone."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterdp.checkpoint.save import replica_check
from clusterdp.checkpoint.save.replica_check import gpu_sum
from clusterdp.checkpoint.save.state_snapshot import StatePart
from clusterdp.checkpoint.state.tree import as_bytes
from tests.checkpoint.test_staging import empty_without_pinning
from tests.cuda_double import Cuda, OnGpu

WORD = 0xFFFFFFFFFFFFFFFF


def by_definition(data: bytes) -> int:
    data += bytes(-len(data) % 8)
    total = 0
    for i, (word,) in enumerate(struct.iter_unpack("<q", data)):
        mixed = word * replica_check._MIX & WORD
        signed = mixed - (1 << 64) if mixed >> 63 else mixed
        total += (signed ^ (signed >> 32)) * (2 * i + 1)
    return total & WORD


def sum_of(data: bytes) -> int:
    return int(gpu_sum(torch.frombuffer(bytearray(data), dtype=torch.uint8))) & WORD


@given(st.binary(min_size=1, max_size=200), st.sampled_from([8, 24, 1 << 20]))
def test_gpu_sum_is_the_weighted_sum_of_mixed_words(data: bytes, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_check, "_PIECE", piece)
        assert sum_of(data) == by_definition(data)


@given(st.binary(min_size=16, max_size=64), st.data())
def test_gpu_sum_changes_with_any_one_or_two_bits(data: bytes, draw: st.DataObject) -> None:
    bits = draw.draw(st.sets(st.integers(0, 8 * len(data) - 1), min_size=1, max_size=2))
    changed = bytearray(data)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    assert sum_of(bytes(changed)) != sum_of(data)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gpu_sum_changes_if_elements_are_negated_or_swapped(dtype: torch.dtype) -> None:
    tensor = torch.arange(1, 1001).to(dtype)
    others = [-tensor, tensor.flip(0), torch.cat([-tensor[:2], tensor[2:]]), tensor.roll(1)]
    sums = {int(gpu_sum(as_bytes(each))) for each in [tensor, *others]}
    assert len(sums) == 5


@pytest.mark.parametrize("offset", [0, 1, 8, 12])
def test_gpu_sum_takes_bytes_at_any_address(offset: int) -> None:
    data = torch.arange(100, dtype=torch.uint8)
    assert gpu_sum(data[offset:]) == gpu_sum(data[offset:].clone())


def test_sum_of_a_copied_slice_equals_the_sum_on_the_neighbours_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not proved: the order on a real GPU."""
    Cuda(monkeypatch)
    empty_without_pinning(monkeypatch)
    monkeypatch.setattr(replica_check, "gpu_sum", lambda piece: gpu_sum(piece.as_subclass(torch.Tensor)))
    tensors = {"x": torch.randn(1001), "y": torch.randn(3)}
    part = StatePart.of(dict(tensors))
    on_gpu = StatePart(
        part.skeleton, {name: OnGpu.of(tensor) for name, tensor in part.tensors.items()}, part.layout, {}
    )
    flat = torch.zeros(part.layout.total, dtype=torch.uint8)
    for entry in part.layout.entries:
        flat[entry.offset : entry.end] = as_bytes(part.tensors[entry.name])
    for rank, size in ((0, 2), (1, 2), (2, 3)):
        start, stop = part.layout.span((rank + 1) % size, size)
        data = memoryview(bytearray(flat[start:stop].tolist()))
        theirs = replica_check.of_neighbour(on_gpu, rank, size).values()
        own = replica_check.of_slice(part.layout, (rank + 1) % size, size, data, on_gpu.tensors)
        assert theirs == own
        assert own != replica_check.of_slice(part.layout, (rank + 1) % size, size, data, ())
