"""SyncBatchNorm: ranks with half the batch each train as one process with all of it; on CPUs, too."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from clusterdp.train import JobHandle
from clusterdp.train.parallel.syncbn import sync_batchnorm
from tests.train import techniques
from tests.train.ranks import running
from tests.train.test_strategy import close


def test_sync_batchnorm_over_two_ranks_equals_batchnorm_over_the_whole_batch(tmp_path: Path) -> None:
    with running(tmp_path, techniques.batch_norms, size=2) as ranks:
        answers = ranks.answers
    model = techniques.Net(norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for x, y in techniques.batches():
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    (got, statistics, name, evaluated) = answers[0]
    assert answers[0] == answers[1]
    assert name == "GlooBatchNorm"
    assert close(got, techniques.weights(model))
    assert close(statistics, techniques.weights_of(model.norm))
    model.eval()
    assert close([y for (y,) in evaluated], model(torch.ones(2, 8)).flatten().tolist())


def test_sync_batchnorm_in_one_process_equals_batchnorm(job: JobHandle) -> None:
    for kind, shape in ((nn.BatchNorm1d, (6, 3)), (nn.BatchNorm2d, (2, 3, 4, 4))):
        for options in ({}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}):
            theirs = kind(3, **options)  # type: ignore[arg-type]
            ours = sync_batchnorm(kind(3, **options))  # type: ignore[arg-type]
            for _ in range(2):
                x = torch.randn(shape) + 2
                assert torch.allclose(ours(x), theirs(x), atol=1e-5)
            for (name, mine), other in zip(ours.named_buffers(), theirs.buffers(), strict=True):
                assert torch.allclose(mine.float(), other.float(), atol=1e-5), name
