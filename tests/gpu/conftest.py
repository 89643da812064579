"""The device under test, and work that keeps it busy."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.config import from_plain
from clusterdp.config.tree import CheckpointConfig, TrainConfig
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train import Group, JobHandle, Rendezvous, StopSignal
from clusterdp.train.settings import WorkerSettings

ON = os.environ.get("CLUSTERDP_GPU_TESTS_ON", "cuda")
Start = Callable[..., JobHandle]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def device() -> Iterator[torch.device]:
    if ON == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    yield torch.device(ON)
    gc.collect()
    if ON == "cuda":
        torch.cuda.empty_cache()


@pytest.fixture
def busy(device: torch.device) -> Callable[[], None]:
    """Keeps the current stream at work for about a second: what does not wait for it is too early."""

    def queue() -> None:
        if device.type == "cuda":
            torch.cuda._sleep(2_000_000_000)  # cycles

    return queue


@pytest.fixture
def start(device: torch.device, tmp_path: Path) -> Iterator[Start]:
    """Handles of a single rank on the device, in run folders by number. train: the config's."""
    group = Group.start(Rendezvous.find(SlurmEnv("single"), {}))
    assert group.device.type == device.type
    with StopSignal() as stop:

        def job(number: int = 0, **train: Any) -> JobHandle:
            run_dir = tmp_path / f"run{number}"
            (run_dir / "attempts" / "1.0").mkdir(parents=True, exist_ok=True)
            settings = WorkerSettings(
                run_dir=run_dir,
                checkpoint=CheckpointConfig(url=str(run_dir / "checkpoints")),
                train=from_plain(TrainConfig, train),
            )
            return JobHandle(settings, group, stop, "1.0")

        yield job
    group.close()
