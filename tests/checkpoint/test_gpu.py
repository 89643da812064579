"""On a GPU: its tensors and its random numbers come back too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clusterdp.checkpoint import Checkpointer
from tests.checkpoint.training import digest

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]


def test_gpu_training_resumes_bit_identical_with_its_random_numbers(tmp_path: Path) -> None:
    def build(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1)).cuda()
        return model, torch.optim.AdamW(model.parameters())

    def run(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(32, 64, device="cuda")).square().mean().backward()
            optimizer.step()
        return digest([{k: v.cpu() for k, v in model.state_dict().items()}, torch.cuda.get_rng_state()])

    model, optimizer = build(1)
    run(model, optimizer)
    Checkpointer(tmp_path, {"model": model, "optimizer": optimizer}).save(3)
    expected = run(model, optimizer)

    model, optimizer = build(2)
    checkpointer = Checkpointer(tmp_path, {"model": model, "optimizer": optimizer})
    assert checkpointer.restore() is not None
    checkpointer.restore_rng()
    assert run(model, optimizer) == expected
    assert all(p.is_cuda for p in model.parameters())
