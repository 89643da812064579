"""A pipeline of NVIDIA DALI on the CPU as the data of a Trainer: pip install nvidia-dali-cuda120 (800 MB)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.train import JobHandle, Trainer
from clusterdp.train.ranks import shared_flags
from tests.checkpoint.training import digest
from tests.train.test_trainer import trained
from tests.train.trainings import striker

pytest.importorskip("nvidia.dali")

SAMPLES, BATCH = 96, 8


def batches(job: JobHandle) -> Any:
    """Returns DALI's iterator over this rank's share."""
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    share = SAMPLES // job.world_size

    def sample(info: Any) -> Any:
        if info.idx_in_epoch >= share:
            raise StopIteration
        number = info.idx_in_epoch * job.world_size + job.rank
        x = torch.randn(4, generator=torch.Generator().manual_seed(number))
        return x.numpy(), x.sum(0, keepdim=True).numpy()

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=7)
    def pipeline() -> Any:
        x, y = fn.external_source(source=sample, num_outputs=2, batch=False)
        return x * 2.0, y

    return DALIGenericIterator([pipeline()], ["x", "y"], size=share, last_batch_policy=LastBatchPolicy.PARTIAL)


def train(job: JobHandle, record: str, fault: list[Any] | None = None) -> None:
    """fault: (signal, the step after which it comes, the rank that gets it)."""
    shared_flags.MOST_STEPS = 1
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    seen: list[float] = []

    def forward(trainer: Trainer, batch: Any) -> Any:
        x, y = batch[0]["x"], batch[0]["y"]
        seen.append(float(x.sum()))
        outputs = trainer.model(x)
        return nn.functional.mse_loss(outputs, y), outputs, y

    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    trainer = Trainer(net, None, optimizer, job=job, forward=forward, on_step=[striker(job, fault)])
    history = trainer.fit(batches(job), epochs=4)
    assert trainer.loop is not None
    assert trainer.loop.step == 4 * SAMPLES // (BATCH * job.world_size)
    end = {"history": history.rows, "digest": digest([net.state_dict(), optimizer.state_dict()]), "last": seen[-5:]}
    Path(record, f"end-{job.rank}").write_text(json.dumps(end))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "fault"),
    [(1, ["SIGKILL", 20, 0]), (2, ["SIGTERM", 9, 1]), (2, ["SIGTERM", 12, 0])],
    ids=["killed", "preempted within an epoch", "preempted at its end"],
)
def test_training_on_a_dali_pipeline_resumes_exactly(tmp_path: Path, size: int, fault: list[Any]) -> None:
    os.environ.setdefault("DALI_DISABLE_NVML", "1")
    _, whole = trained(tmp_path / "whole", size, entry="tests.train.test_dali:train")
    run, resumed = trained(tmp_path / "resumed", size, fault, entry="tests.train.test_dali:train")
    assert "restored" in run.events
    assert resumed == whole
    assert len(whole[0]["history"]) == 4
