"""Whole jobs on a GPU: a hang, two NCCL ranks on one GPU, full memory, the time of a step, units of FSDP."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from clusterdp.batch.decide.evidence import OUT_OF_MEMORY
from clusterdp.checkpoint import Checkpointer
from clusterdp.train.profile.stopwatch import WARM_UP
from tests.gpu.conftest import Start

HANGING = """
import time
import torch

def main(job):
    model = job.wrap(torch.nn.Linear(4, 1).to(job.device))
    for at, x in enumerate(job.loop([torch.ones(2, 4)] * 20, {}, move=True)):
        loss = model(x).sum()
        if at == 6 and job.device.type == "cuda":
            torch.cuda._sleep(10**12)
            torch.distributed.all_reduce(loss.detach())
            loss.item()  # the main thread waits for the GPU
        elif at == 6:
            time.sleep(600)
"""
FULL = """
import torch
taken = []
while True:
    try:
        taken.append(torch.empty(1 << 26, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        print(type(error).__name__, error)
        break
try:
    small = taken.pop()[: 4 * 64].view(torch.float32).view(8, 8)
    small @ small  # cuBLAS allocates its workspace beside torch's allocator
    print("cuBLAS has its memory")
except RuntimeError as error:
    print(type(error).__name__, error)
"""


def clusterdp(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clusterdp", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100)


def test_why_names_a_line_waiting_for_the_gpu(tmp_path: Path, device: torch.device) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    options = ("resources.gpus_per_node=1",) if device.type == "cuda" else ()
    (tmp_path / "c.yaml").write_text(
        "entry: hanging:main\nrun_dir: run\ntrain: {timeout_s: 60}\n"
        "restart: {hang_after_s: 4, on_hang: restart, max_crashes: 0}\n"
    )
    done = clusterdp(tmp_path, "submit", "--cluster", "local", "--watch", "c.yaml", *options)
    assert done.returncode != 0, done.stdout
    why = clusterdp(tmp_path, "why", "run").stdout
    assert "hanging.py" in why, why
    assert "hang" in why, why
    if device.type == "cuda":
        [report] = (tmp_path / "run" / "attempts").glob("*/hang.txt")
        assert re.search(r"all_reduce \d+ \(pending\)", report.read_text()), report.read_text()
        assert "flight-record-" in why, why


def test_two_nccl_ranks_on_one_gpu_train_or_why_explains(tmp_path: Path, device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("for GPUs")
    (tmp_path / "c.yaml").write_text(
        "entry: clusterdp.recipes.first:main\nrun_dir: run\nrestart: {max_attempts: 1}\ntrain: {backend: nccl}\n"
        "resources: {gpus_per_node: 2}\n"
    )
    done = clusterdp(tmp_path, "submit", "--cluster", "local", "--watch", "c.yaml")
    if done.returncode:
        assert "GPU" in clusterdp(tmp_path, "why", "run").stdout


def test_errors_of_a_full_gpu_are_out_of_memory(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("for GPUs")
    said = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=60, check=True).stdout
    first, last = said.splitlines()[0], said.splitlines()[-1]
    assert OUT_OF_MEMORY.search(f"RuntimeError: {first}")
    assert last == "cuBLAS has its memory" or OUT_OF_MEMORY.search(f"RuntimeError: {last}"), last


def test_stopwatch_counts_the_time_of_the_gpu(start: Start, device: torch.device) -> None:
    job, steps = start(), 30
    x = torch.randn(2048, 2048, device=device) if device.type == "cuda" else torch.randn(512, 512)
    began = ended = 0.0
    for at, _ in enumerate(job.loop([0] * steps, {})):
        if at == WARM_UP:
            began = now(device)
        for _ in range(20):  # the launches alone take a hundredth of this
            x @ x
    ended = now(device)
    report = job.stopwatch.report(job.group)
    assert report is not None
    measured_s = sum(report["ranks"][0]["ms"].values()) * report["steps"] / 1e3
    assert measured_s == pytest.approx(ended - began, rel=0.05 if device.type == "cuda" else 0.5)


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@pytest.mark.parametrize("origin", ["cpu", "meta"])
def test_fsdp_moves_one_unit_at_a_time_and_resumes(
    tmp_path: Path, start: Start, device: torch.device, origin: str
) -> None:
    width, layers = (4096, 32) if device.type == "cuda" else (64, 4)  # 2 GB of weights
    job = start(strategy="fsdp", fsdp={"units": ["Linear"]})

    def wrapped(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        with torch.device(origin):
            model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
        model = job.wrap(model)
        return model, torch.optim.AdamW(model.parameters())

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(1, width, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    model, optimizer = wrapped(1)
    if device.type == "cuda":
        unit = 4 * width * width
        assert torch.cuda.max_memory_allocated() - before < (layers + 4) * unit, "the shards of one rank, and few units"
    step(model, optimizer)
    Checkpointer(tmp_path, {"model": model, "optimizer": optimizer}).save(1)
    step(model, optimizer)
    expected = [whole(parameter) for parameter in model.parameters()]
    model, optimizer = wrapped(2)
    assert Checkpointer(tmp_path, {"model": model, "optimizer": optimizer}).restore() is not None
    step(model, optimizer)
    assert all(torch.equal(*pair) for pair in zip(map(whole, model.parameters()), expected, strict=True))


def whole(parameter: torch.Tensor) -> torch.Tensor:
    full: torch.Tensor = parameter.full_tensor()  # type: ignore[attr-defined]
    return full.detach().cpu()
