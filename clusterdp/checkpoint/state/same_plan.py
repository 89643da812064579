"""SamePlan: the methods of torch.distributed.checkpoint's StorageReader and StorageWriter that need no work in
clusterdp."""

from __future__ import annotations

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
