"""Buffer: the kernel's flags of its pages. A misspelt request is only slower: no other test would see it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterdp.checkpoint.state.buffer import HUGE, Buffer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def flags_of(buffer: Buffer) -> list[str]:
    """VmFlags of the mapping that holds the buffer's last byte."""
    last, found = buffer.tensor.data_ptr() + buffer.tensor.numel() - 1, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split(" ", 1)[0]
        if "-" in word:
            start, _, stop = word.partition("-")
            found = int(start, 16) <= last < int(stop, 16)
        elif found and word == "VmFlags:":
            return line.split()[1:]
    raise AssertionError("the buffer is in no mapping")


def test_large_buffer_asks_for_huge_pages() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no huge pages")
    assert "hg" in flags_of(Buffer(2 * HUGE))


def test_buffer_hidden_from_children_is_not_copied_by_fork() -> None:
    buffer = Buffer(2 * HUGE)
    assert "dc" not in flags_of(buffer)
    buffer.hide_from_children()
    assert "dc" in flags_of(buffer)


def test_released_pages_are_given_back() -> None:
    buffer = Buffer(2 * HUGE)
    buffer.tensor.fill_(1)
    buffer.release(0, 2 * HUGE)
    assert not buffer.tensor.any()
