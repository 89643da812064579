"""PowerSGD, torch's communication hook, with a state that is in the checkpoint.

PowerSGD adds a step's compression error to the next gradient, and begins from the last step's low-rank factors. A run
that resumes without this state computes other gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from clusterdp.train.argument_names import check_options

_TENSORS = ("error_dict", "p_memory_dict", "q_memory_dict")


def add_powersgd(model: DistributedDataParallel, options: Mapping[str, Any]) -> PowerSGD:
    """Adds the hook to a DDP model. options: arguments of PowerSGDState, such as matrix_approximation_rank and
    start_powerSGD_iter."""
    check_options("train.powersgd", options, powerSGD_hook.PowerSGDState)
    # torch's own default of 0 turns a gradient without full rank, such as the gradient of dead units, into NaN.
    device = next(model.parameters()).device
    hook = PowerSGD(device, **{"orthogonalization_epsilon": 1e-8, **options})
    by_nccl = device.type == "cuda" and "nccl" in dist.get_backend()  # or `cpu:gloo,cuda:nccl`
    model.register_comm_hook(hook.of_torch, powerSGD_hook.powerSGD_hook if by_nccl else _one_by_one)
    model.comm_hook_state = hook  # type: ignore[assignment]  # where the loop finds it
    return hook


def _one_by_one(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
    """Runs torch's hook on a bucket, and waits for the result. A bucket takes three all-reduces; each of them starts
    when the previous one is done. Without the wait, gloo's threads would send several buckets' all-reduces in another
    order on each rank: with two buckets, the ranks hang. NCCL's streams keep the buckets apart."""
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()
    return future


class PowerSGD:
    """The hook's state. Each rank has its own state, because the compression errors come from the rank's own
    gradients."""

    per_rank = True

    def __init__(self, device: torch.device, **options: Any):
        self.device = device
        self.of_torch = powerSGD_hook.PowerSGDState(None, **options)

    def state_dict(self) -> dict[str, Any]:
        tensors = {name: dict(getattr(self.of_torch, name)) for name in _TENSORS}
        return {**tensors, "iter": self.of_torch.iter, "rng": self.of_torch.rng.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in _TENSORS:
            here = {bucket: saved.to(self.device, copy=True) for bucket, saved in state[name].items()}
            setattr(self.of_torch, name, here)
        self.of_torch.iter = state["iter"]
        self.of_torch.rng.set_state(state["rng"])
