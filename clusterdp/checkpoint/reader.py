"""Verified bytes (blocks.py) as tensors. Nothing here talks to other ranks."""

from __future__ import annotations

from typing import Any

import torch

from clusterdp.checkpoint import blocks
from clusterdp.checkpoint.blocks import Run, check_sizes, read_manifest, runs_of, twice, verify
from clusterdp.checkpoint.layout import Layout
from clusterdp.checkpoint.manifest import Manifest
from clusterdp.checkpoint.tree import from_bytes, memory_of, unflatten
from clusterdp.storage import Storage

__all__ = [
    "Run",
    "check_sizes",
    "read_manifest",
    "read_own",
    "read_runs",
    "runs_of",
    "tensors_of",
    "twice",
    "verify",
]


def read_runs(storage: Storage, runs: list[Run], into: torch.Tensor | None) -> None:
    """Verify the blocks and, unless `into` is None, leave their data there. Raises DamagedError, or OSError."""
    blocks.read_runs(storage, runs, None if into is None else memory_of(into))


def read_own(storage: Storage, manifest: Manifest, rank: int) -> Any:
    """What belonged to this rank alone."""
    skeleton, plan, runs = blocks.read_rank_file(storage, manifest, rank)
    buffer = torch.empty(plan.total, dtype=torch.uint8)
    read_runs(storage, runs, buffer)
    # Copies: torch.Generator.set_state() reads a view from where its storage begins, and crashes on what is there.
    return unflatten(skeleton, {name: view.clone() for name, view in tensors_of(plan, buffer).items()})


def tensors_of(plan: Layout, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors as views of the flat buffer."""
    return {e.name: from_bytes(buffer[e.offset : e.end], e.dtype, e.shape) for e in plan.entries}
