"""Steps on a GPU: no wait for the device between two saves, memory that does not grow, exact resumes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.state.tree import Flattener, as_bytes
from clusterdp.train import JobHandle, Meters
from tests.gpu.conftest import Start

Build = Callable[[torch.device], tuple[nn.Module, torch.optim.Optimizer]]


@contextmanager
def no_waits(device: torch.device) -> Iterator[None]:
    """Each wait of the host for the GPU is an error."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    yield
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")


def net(device: torch.device) -> nn.Module:
    convolution = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2))
    layers = nn.Sequential(*convolution, nn.Flatten(), nn.Linear(1024, 10))
    return layers.to(device, memory_format=torch.channels_last)


def batches(count: int, pinned: bool = False) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    found = [
        (torch.randn(8, 3, 8, 8, generator=draw), torch.randint(0, 10, (8,), generator=draw)) for _ in range(count)
    ]
    return [(x.pin_memory(), y.pin_memory()) for x, y in found] if pinned else found


def test_steps_between_saves_wait_for_no_gpu(start: Start, device: torch.device) -> None:
    job = start(amp={"level": "bf16"})
    model = job.wrap(net(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mean, seen = Meters(), 0
    loop = job.loop(batches(200, pinned=device.type == "cuda"), {}, move=True)
    steps = iter(loop)
    for _ in range(10):  # kernels are loaded, memory is allocated
        step(job, model, optimizer, next(steps), loop, mean)
    with no_waits(device):
        for batch in steps:
            step(job, model, optimizer, batch, loop, mean)
            seen += 1
            if seen == 150:
                break
    assert seen == 150


def step(job: JobHandle, model: nn.Module, optimizer: Any, batch: Any, loop: Any, mean: Meters) -> None:
    x, y = batch
    with job.amp.autocast():
        loss = nn.functional.cross_entropy(model(x).float(), y)
    job.amp.backward(loss)
    job.amp.step(optimizer, clip_norm=1.0)
    optimizer.zero_grad()
    loop.log(loss=loss)
    mean.mean(len(y), loss=loss)


OPTIMIZERS: dict[str, Callable[[Any, torch.device], torch.optim.Optimizer]] = {
    "sgd": lambda p, device: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p, device: torch.optim.AdamW(p, lr=1e-3),
    "adamw fused": lambda p, device: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adamw tensor lr": lambda p, device: torch.optim.AdamW(
        p, lr=torch.tensor(1e-3, device=device), capturable=device.type == "cuda", foreach=device.type == "cuda"
    ),
}


@pytest.mark.parametrize("level", ["O0", "bf16", "O1", "O2"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_training_ends_in_the_bits_of_the_whole_one(
    start: Start, device: torch.device, name: str, level: str
) -> None:
    if level in ("O1", "O2") and device.type == "cpu":
        pytest.skip("fp16 is for GPUs")
    job = start(amp={"level": level}, deterministic=True)

    def trained(folder: str, first: int, last: int) -> tuple[list[Any], list[Any]]:
        torch.manual_seed(first)
        model = job.wrap(job.amp.cast(net(device)))
        optimizer = OPTIMIZERS[name](model.parameters(), device)
        job.amp.adopt(optimizer)
        state = {"model": model, "optimizer": optimizer, "amp": job.amp}
        checkpointer = Checkpointer(folder, state)
        if first:
            checkpointer.restore()
            checkpointer.restore_rng()
        for at, (x, y) in enumerate(batches(last)[first:], first):
            with job.amp.autocast():
                loss = nn.functional.cross_entropy(model(x.to(device)).float(), y.to(device))
            job.amp.backward(loss)
            job.amp.step(optimizer)
            optimizer.zero_grad()
            if at == 4 and not first:
                checkpointer.save(5)
        flattener = Flattener()
        flattener.flatten({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "state")
        found = flattener.tensors.items()
        return (
            [(key, bytes(as_bytes(tensor.cpu()).tolist())) for key, tensor in found],
            [(key, tensor.device, tensor.dtype, tensor.stride()) for key, tensor in found],
        )

    folder = os.fspath(Path(os.fspath(job._settings.run_dir), "by_hand"))  # type: ignore[arg-type]
    torch.use_deterministic_algorithms(True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        whole = trained(folder, 0, 10)
        resumed = trained(folder, 5, 10)
    finally:
        torch.use_deterministic_algorithms(False)
    assert resumed[1] == whole[1], "devices, types and strides"
    assert resumed[0] == whole[0]


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_compiled_model_logs_evaluates_and_resumes(start: Start, device: torch.device, mode: str) -> None:
    if device.type == "cpu":
        pytest.skip("takes a C++ compiler and a minute on the CPU")

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net(device)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.inner(x), y)

    for number in (0, 0):
        job = start(number, compile={"mode": mode})
        model = job.wrap(WithLoss())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loop = job.loop(batches(20), {"model": model, "optimizer": optimizer}, epochs=2, move=True)
        kept = []
        for x, y in loop:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=loss)
            kept.append(loop.windows._logged["loss"])
            if loop.step == 25:
                loop.save()
                break
        assert all(torch.isfinite(value) for value in kept)


def test_memory_stays_flat_over_saves_and_epochs(tmp_path: Path, start: Start, device: torch.device) -> None:
    job = start()
    model = net(device)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpointer = Checkpointer(tmp_path, {"model": model, "optimizer": optimizer}, keep_last=1)
    sizes = []
    for epoch in range(8):
        for at, (x, y) in enumerate(job.loop(batches(10), {}, move=True, name=f"epoch{epoch}")):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if at % 2:
                checkpointer.async_save(10 * epoch + at)
                checkpointer.wait()
        reserved = torch.cuda.memory_reserved() if device.type == "cuda" else 0
        status = Path("/proc/self/status").read_text()
        resident = int(status.split("RssAnon:")[1].split()[0]) >> 10
        sizes.append((reserved, resident))
    reserved, resident = zip(*sizes[3:], strict=True)
    assert max(reserved) == reserved[0]
    assert max(resident) - resident[0] < 20, sizes
