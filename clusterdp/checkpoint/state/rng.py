"""The random number generators of this rank, as state: Python's, numpy's if it is loaded, torch's on CPU and GPU."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # This rank's device only: a call for another device would start a context on it, which takes memory.
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def apply(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].clone())
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].clone())


def derive(token: str, rank: int) -> None:
    """Seeds the generators of a rank that the checkpoint has no states for, in the same way at each restore."""
    digest = hashlib.blake2b(f"{token}/{rank}".encode(), digest_size=8).digest()
    seed(int.from_bytes(digest, "little"))


def seed(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)  # on CUDA too
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number % 2**32)
