"""The machine and libraries on which a rank computes: kernels of another release or GPU may round differently.

A difference of machines need not change a bit, and equal machines do not guarantee equal bits: see docs/exact.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def describe() -> dict[str, str]:
    """Returns torch's version, and the name and libraries of this rank's GPU, or the CPU's instruction set and the
    number of threads."""
    found = {"torch": str(torch.__version__)}
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        # Sums over the batch, such as the gradients of LayerNorm, are divided among the threads.
        return {**found, "CPU": torch.backends.cpu.get_cpu_capability(), "threads": str(torch.get_num_threads())}
    nccl: Any = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()  # type: ignore[no-untyped-call]
    return {
        **found,
        "GPU": torch.cuda.get_device_name(),
        "CUDA": str(torch.version.cuda or torch.version.hip),
        "cuDNN": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "NCCL": ".".join(map(str, nccl if isinstance(nccl, tuple) else (nccl,))),
    }


def difference(saved: Mapping[str, str]) -> str | None:
    """Returns, as text, what has changed since a save. saved: the result of describe() at the save; empty in older
    checkpoints."""
    here = describe()
    changed = [f"{name} {there} -> {here[name]}" for name, there in saved.items() if here.get(name, there) != there]
    return f"it was computed elsewhere ({', '.join(changed)}), which may round otherwise" if changed else None
