"""Copies between a busy GPU and the host: each is complete before it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.save import writer
from clusterdp.train import Prefetcher
from tests.gpu.conftest import Start

SAVES = 20


class OfRank:
    """State of this rank alone, on the GPU, as BatchNorm's buffers are without SyncBatchNorm."""

    per_rank = True

    def __init__(self, device: torch.device, size: int):
        self.values = torch.zeros(size, device=device)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values.copy_(state["values"])


@pytest.mark.parametrize("size", [1000, 4 << 20])
def test_asynchronous_save_holds_the_values_of_its_step(
    tmp_path: Path, device: torch.device, busy: Callable[[], None], size: int
) -> None:
    shared, own = torch.zeros(size, device=device), OfRank(device, size)
    checkpointer = Checkpointer(tmp_path, {"shared": shared, "own": own}, keep_last=SAVES)
    for step in range(1, SAVES + 1):
        if step % 5 == 1:
            busy()
        shared.fill_(step)
        own.values.fill_(-step)
        checkpointer.async_save(step)
        for _ in range(100):
            shared.add_(1)
            own.values.sub_(1)
        checkpointer.wait()
    for step in range(1, SAVES + 1):
        assert checkpointer.restore(step) is not None
        assert (float(shared.min()), float(shared.max())) == (step, step)
        assert (float(own.values.min()), float(own.values.max())) == (-step, -step)


def test_memory_is_not_unpinned_during_a_save(
    tmp_path: Path, device: torch.device, busy: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type != "cuda":
        pytest.skip("memory of the CPU is not pinned")
    ended: list[Any] = []
    monkeypatch.setattr(writer._Registered, "__del__", ended.append)
    state = {"shared": torch.zeros(4 << 20, device=device), "own": OfRank(device, 4 << 20)}
    checkpointer = Checkpointer(tmp_path, state)
    for step in range(3):
        busy()
        checkpointer.async_save(step)
        checkpointer.wait()
    assert ended == []


def test_save_goes_on_if_the_system_pins_no_memory(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(buffer: torch.Tensor) -> None:
        raise RuntimeError("CUDA error: operation not permitted")

    monkeypatch.setattr(writer, "_Registered", refuse)
    state = torch.full((4 << 20,), 3.0, device=device)
    checkpointer = Checkpointer(tmp_path, {"state": state})
    checkpointer.save(1)
    state.zero_()
    checkpointer.restore()
    assert float(state.min()) == 3.0
    assert float((state + 1).max()) == 4.0, "the error does not come back at the next kernel"


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("on_device", [True, False])
def test_transformed_batches_equal_batches_of_the_cpu(
    device: torch.device, busy: Callable[[], None], ahead: bool, on_device: bool
) -> None:
    data = torch.arange(40 * 1000, dtype=torch.float32).reshape(40, 1000)
    expected = [batch * 2 for batch in data.split(4)]
    there = data.to(device) if on_device else data

    def batches() -> Any:
        for at in range(0, 40, 4):
            busy() if at % 20 == 0 else None
            batch = there[at : at + 4]
            yield (batch * 1.0 if on_device else batch.pin_memory() if device.type == "cuda" else batch), 4

    def double(batch: Any) -> Any:
        return batch[0] * 2, torch.tensor([batch[1]])  # lengths on the CPU

    found = []
    for batch, lengths in Prefetcher(batches(), device, transform=double, ahead=ahead):
        assert lengths.device.type == "cpu"
        found.append(batch.cpu())
        trash = torch.full_like(batch, -1.0)  # takes memory that was given back too early
        del batch, trash
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_metrics_have_values_of_their_step(start: Start, device: torch.device, busy: Callable[[], None]) -> None:
    job = start()
    loss = torch.zeros((), device=device)
    loop = job.loop([0] * 200, {})
    for step, _ in enumerate(loop, 1):
        if step % 50 == 1:
            busy()
        loss.fill_(step)
        loop.log(loss=loss.clone())
    files = sorted(Path(os.fspath(job._settings.run_dir), "metrics").glob("*.jsonl"))  # type: ignore[arg-type]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert rows
    assert all(row["loss"] == row["step"] for row in rows if "loss" in row)
