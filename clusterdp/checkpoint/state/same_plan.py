"""SamePlan: the methods of torch.distributed.checkpoint's StorageReader and StorageWriter that need no work in
clusterdp. enum_member: a part of its pickles."""

from __future__ import annotations

import pickle
from enum import Enum
from typing import Any


class SamePlan:
    """Leaves the planner's plan unchanged: each rank reads and writes exactly what the plan says."""

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_reader(self, *args: Any, **kwargs: Any) -> None:
        pass

    def set_up_storage_writer(self, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def enum_member(kind: Any, name: str) -> Enum:
    """Returns a member of an Enum. An unpickler of plans uses this function in place of getattr, because Python 3.11.0
    to 3.11.3 pickles a member as getattr(its class, its name). Raises UnpicklingError for anything else."""
    if not (isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__):
        raise pickle.UnpicklingError(f"there is an attribute of {kind!r}, which no plan and no description needs")
    return kind.__members__[name]
