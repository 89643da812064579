"""Memory: whoever trains a model that just fits must not find a copy of it that torch itself does not need."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.config.tree import CheckpointConfig
from clusterdp.train import Group, JobHandle, StopSignal, Trainer
from clusterdp.train.settings import WorkerSettings

SIDE = 512
MODEL = 2 * SIDE * SIDE * 4  # bytes of its weights


def bytes_in_large_tensors() -> int:
    """Of all there are in this process, each storage once. DDP's buckets count, because gradients are views of them."""
    gc.collect()
    found: dict[int, int] = {}
    for thing in gc.get_objects():
        for tensor in (thing, thing.grad) if type(thing) in (torch.Tensor, nn.Parameter) else ():
            if tensor is not None and tensor.numel() >= SIDE * SIDE:
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


@pytest.mark.parametrize(("level", "saves"), [pytest.param("O0", False, marks=pytest.mark.slow), ("bf16", True)])
def test_training_holds_only_model_gradients_and_one_staging_copy_in_memory(
    group: Group, tmp_path: Path, level: str, saves: bool
) -> None:
    before = bytes_in_large_tensors()
    url = str(tmp_path / "checkpoints") if saves else None
    job = JobHandle(
        WorkerSettings(checkpoint=CheckpointConfig(url=url, every_steps=2, every_s=None)), group, StopSignal(), "1.0"
    )
    net = nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), nn.ReLU(), nn.Linear(SIDE, SIDE, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []

    def look(trainer: Trainer, values: Any) -> None:
        if trainer.job.step in (0, 3):  # to look takes a second in a process that has run many tests
            seen.append(bytes_in_large_tensors() - before)

    batch = (torch.randn(2, SIDE), torch.randn(2, SIDE))
    trainer = Trainer(job.wrap(net), nn.MSELoss(), optimizer, job=job, amp=level, clip_norm=1.0, on_step=[look])
    trainer.fit([batch] * 4)
    staged = MODEL if saves else 0  # one rank writes all of it: T/N
    weights_and_gradients = 2 * MODEL
    assert len(seen) == 2
    assert seen[0] == weights_and_gradients
    assert (
        weights_and_gradients <= seen[-1] <= bytes_in_large_tensors() - before <= weights_and_gradients + 1.01 * staged
    )
