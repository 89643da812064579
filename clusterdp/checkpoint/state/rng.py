"""The random number generators of this rank, as state: Python's, numpy's if it is loaded, torch's on CPU and GPU."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def capture() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        here = torch.cuda.current_device()
        state["cuda"] = torch.cuda.get_rng_state()
        more = [index for index in range(here + 1, torch.cuda.device_count()) if _is_used(index)]
        if more:  # the model is split over several GPUs, the first of which is current
            state["cuda_of"] = {index - here: torch.cuda.get_rng_state(index) for index in more}
    return state


def _is_used(index: int) -> bool:
    """Returns whether this process uses the GPU. Reading the random state of an unused GPU would start a context on the
    GPU, and take memory."""
    return bool(torch._C._cuda_hasPrimaryContext(index))  # type: ignore[attr-defined]


def apply(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].clone())
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].clone())
        here, count = torch.cuda.current_device(), torch.cuda.device_count()
        for place, more in state.get("cuda_of", {}).items():
            if here + place < count:
                torch.cuda.set_rng_state(more.clone(), here + place)


@contextmanager
def kept(streams: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Applies the streams, if any, for the with block, and restores the present ones after it, which are its value."""
    now = capture()
    if streams is not None:
        apply(streams)
    try:
        yield now
    finally:
        apply(now)


def difference(saved: dict[str, Any]) -> str | None:
    """Returns, as text, why apply() cannot restore all saved generators on this machine; None if it can."""
    here = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if ("cuda" in saved) != here:
        there, now = ("a GPU", "the CPU") if "cuda" in saved else ("the CPU", "a GPU")
        return f"it was saved on {there} and goes on on {now}: what is drawn there differs"
    needed = 1 + max(saved.get("cuda_of", {}), default=0)
    if here and torch.cuda.current_device() + needed > torch.cuda.device_count():
        return f"each rank had {needed} GPUs: random numbers of the missing ones are not restored"
    return None


def derive(token: str, rank: int) -> None:
    """Seeds the generators of a rank for which the checkpoint has no states, in the same way at each restore."""
    digest = hashlib.blake2b(f"{token}/{rank}".encode(), digest_size=8).digest()
    seed(int.from_bytes(digest, "little"))


def seed(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)  # manual_seed() also seeds CUDA
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number % 2**32)
