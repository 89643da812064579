"""Process groups on a GPU: mixed backends, offloaded shards, and an end without a word."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from clusterdp.train import NanGuard
from tests.gpu.conftest import ON, Start


def test_world_group_reduces_tensors_of_cpu_and_gpu(start: Start, device: torch.device) -> None:
    start()
    for where in {torch.device("cpu"), device}:
        value = torch.ones(3, device=where)
        dist.all_reduce(value)
        assert value.tolist() == [1.0] * 3


def test_offloaded_shards_are_clipped_and_guarded(start: Start, device: torch.device) -> None:
    job = start(strategy="fsdp", fsdp={"cpu_offload": device.type == "cuda"}, clip_norm=0.5, on_nan="stop")
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    model = job.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters())
    guard = NanGuard(model, job.group, "stop")
    for _ in range(3):
        loss = model(torch.ones(4, 64, device=device)).square().mean()
        job.amp.backward(guard.watch(loss, lambda: [0]))
        job.amp.step(optimizer, clip_norm=0.5, nan_guard=guard)
        optimizer.zero_grad()
    assert all(torch.isfinite(parameter.full_tensor()).all() for parameter in model.parameters())  # type: ignore[attr-defined]


END = """
import sys, torch
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train import Group, Rendezvous
group = Group.start(Rendezvous.find(SlurmEnv("single"), {}))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(group.device))
model(torch.ones(2, 4, device=group.device)).sum().backward()
group.close()
"""


def test_closed_group_ends_its_process_silently(device: torch.device) -> None:
    for _ in range(3 if ON == "cpu" else 10):
        done = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_random_numbers_of_the_gpu_are_restored(device: torch.device) -> None:
    from clusterdp.checkpoint.state import rng

    if device.type != "cuda":
        pytest.skip("for GPUs")
    torch.rand(3, device=device)
    state = rng.capture()
    expected = torch.rand(5, device=device)
    rng.apply(state)
    assert torch.equal(torch.rand(5, device=device), expected)
    assert rng.difference(state) is None
