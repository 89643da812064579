"""plans_only(): while a sharded save is planned, torch's ranks send each other pickles. Only plans are read from them.

The pickles come over sockets that other users may reach, and reading a pickle can run any code.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import distributed_c10d

_METADATA = "torch.distributed.checkpoint.metadata"
_PLANNER = "torch.distributed.checkpoint.planner"
ALLOWED = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata")),
    *((_METADATA, name) for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")),
    *((_PLANNER, name) for name in ("SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")),
    ("torch.distributed.checkpoint.storage", "WriteResult"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("traceback", "FrameSummary"),  # of a rank's error
    ("traceback", "StackSummary"),
}


class Plans(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        found = getattr(sys.modules.get(module), name, None)  # nothing is imported for it
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        if module == "torch" and isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
            return found
        raise pickle.UnpicklingError(f"a rank has sent a {module}.{name}, which no plan of a save needs")


@contextmanager
def plans_only() -> Iterator[None]:
    """In the main thread, which alone sends and receives objects. torch has no public way to say which are read."""
    before = distributed_c10d._unpickler
    distributed_c10d._unpickler = Plans
    try:
        yield
    finally:
        distributed_c10d._unpickler = before
