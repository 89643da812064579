"""`checkpoint.start_from`: where a run begins that has no checkpoint of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import DamagedError, StateError
from clusterdp.rundir import RunDir, read_events
from clusterdp.train import Amp, Ema, JobHandle
from clusterdp.train.settings import WorkerSettings


def run(job: JobHandle, folder: Path, epochs: int, **saving: Any) -> list[float]:
    """The model's weight before each step, which adds 1 to it."""
    (folder / "attempts" / "1.0").mkdir(parents=True, exist_ok=True)
    settings = WorkerSettings(run_dir=folder, checkpoint=CheckpointConfig(url=str(folder / "checkpoints"), **saving))
    handle = JobHandle(settings, job.group, job.stop_signal, "1.0")
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    weights = []
    for _ in handle.loop(
        DataLoader(TensorDataset(torch.zeros(2))), {"model": model, "optimizer": optimizer}, epochs=epochs
    ):
        weights.append(float(model.weight.detach()))
        with torch.no_grad():
            model.weight += 1
    return weights


def test_start_from_loads_a_file_only_into_a_new_run(job: JobHandle, tmp_path: Path) -> None:
    torch.save({"model": {"weight": torch.full((1, 1), 40.0)}, "step": 9}, tmp_path / "x.pt")
    how: dict[str, Any] = {"start_from": str(tmp_path / "x.pt"), "start_only": ["model"]}
    assert run(job, tmp_path / "run", 1, **how) == [40.0, 41.0]
    assert run(job, tmp_path / "run", 2, **how) == [42.0, 43.0], "not from the file again"
    (started,) = [e for e in read_events(RunDir(tmp_path / "run")) if e["event"] == "started-from"]
    assert (started["path"], started["step"]) == (str(tmp_path / "x.pt"), 9)


@pytest.mark.parametrize("order", ["model optimizer amp ema", "ema amp optimizer model"])
@pytest.mark.parametrize("saved", [["model"], ["model", "amp"]])
def test_start_from_updates_o2_master_weights_and_ema(
    job: JobHandle, tmp_path: Path, order: str, saved: list[str]
) -> None:
    """O2 would step on, and average, the fp32 copies of the weights that it began with."""

    def made(weight: float) -> dict[str, Any]:
        amp = Amp("O2", "cpu", loss_scale=1)
        model = amp.cast(nn.Linear(1, 1, bias=False))
        nn.init.constant_(model.weight, weight)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        amp.adopt(optimizer)
        every = {"model": model, "optimizer": optimizer, "amp": amp, "ema": Ema(model, 0.5, amp=amp)}
        return {name: every[name] for name in order.split()}

    before = made(40.0)
    with torch.no_grad():
        before["optimizer"].param_groups[0]["params"][0].fill_(40.001)  # less than fp16 can tell from 40
    torch.save({name: before[name].state_dict() for name in saved}, tmp_path / "x.pt")
    (tmp_path / "run" / "attempts" / "1.0").mkdir(parents=True)
    saving = CheckpointConfig(
        str(tmp_path / "run" / "checkpoints"), start_from=str(tmp_path / "x.pt"), start_only=saved[::-1]
    )
    job = JobHandle(WorkerSettings(run_dir=tmp_path / "run", checkpoint=saving), job.group, job.stop_signal, "1.0")
    state = made(0.0)
    for _ in job.loop([1], state):
        state["amp"].step(state["optimizer"])
        assert state["model"].weight.item() == 40.0
        exact = 40.001 if "amp" in saved else 40.0
        assert state["ema"].state_dict()["weight"].item() == pytest.approx(exact, abs=1e-5)
        assert state["optimizer"].param_groups[0]["params"][0].item() == pytest.approx(exact, abs=1e-5)


def saved_run(job: JobHandle, folder: Path) -> str:
    assert run(job, folder, 1) == [0.0, 1.0]
    (folder / "config.yaml").write_text(f"checkpoint: {{url: {folder}/checkpoints}}\n")
    return str(folder)


def test_start_from_a_run_folder_loads_its_newest_checkpoint(job: JobHandle, tmp_path: Path) -> None:
    first = saved_run(job, tmp_path / "first")
    assert run(job, tmp_path / "second", 1, start_from=first) == [2.0, 3.0]
    (started,) = [e for e in read_events(RunDir(tmp_path / "second")) if e["event"] == "started-from"]
    assert (started["path"], started["step"]) == (f"{first}/checkpoints", 0)


def test_start_from_a_run_folder_prefers_its_best_model_alone(job: JobHandle, tmp_path: Path) -> None:
    first = saved_run(job, tmp_path / "first")
    settings = WorkerSettings(run_dir=tmp_path / "first", checkpoint=CheckpointConfig(url=f"{first}/checkpoints"))
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 70.0)
    best = JobHandle(settings, job.group, job.stop_signal, "1.0").checkpointer({"model": model}, beside="best")
    assert best is not None
    best.save(1)
    assert run(job, tmp_path / "second", 1, start_from=first, start_only=["model"]) == [70.0, 71.0]
    assert run(job, tmp_path / "third", 1, start_from=first) == [2.0, 3.0], "the best has no optimizer"


def test_start_from_skips_a_damaged_checkpoint_of_a_run(job: JobHandle, tmp_path: Path) -> None:
    first = saved_run(job, tmp_path / "first")
    for file in Path(first).glob("checkpoints/step_*/*.safetensors"):
        file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DamagedError):
        run(job, tmp_path / "second", 1, start_from=first)


def test_start_from_a_file_without_optimizer_requires_start_only(job: JobHandle, tmp_path: Path) -> None:
    torch.save({"model": {"weight": torch.ones(1, 1)}}, tmp_path / "x.pt")
    with pytest.raises(StateError, match="nothing for optimizer"):
        run(job, tmp_path / "run", 1, start_from=str(tmp_path / "x.pt"))


def test_worker_settings_read_start_from_and_start_only(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("checkpoint: {start_from: /data/x.pt, start_only: [model]}\n")
    saving = WorkerSettings.read(tmp_path, {}).checkpoint
    assert (saving.start_from, list(saving.start_only)) == ("/data/x.pt", ["model"])
