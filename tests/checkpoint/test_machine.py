"""Random numbers of GPUs, and the machine that a checkpoint was computed on: a resume elsewhere is not called exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.state import machine, rng

GPU = {"torch": "2.13.0", "GPU": "NVIDIA H100 80GB HBM3", "CUDA": "12.8", "cuDNN": "91002", "NCCL": "2.27.3"}


class Gpus:
    """torch.cuda's generators, as numbers. used: indices with a context."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int, used: set[int], here: int = 0):
        self.states = dict.fromkeys(range(count), 0)
        answers: dict[str, Any] = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: count,
            "current_device": lambda: here,
            "get_rng_state": lambda index=here: torch.tensor(self.states[index]),
            "set_rng_state": lambda state, index=here: self.states.update({index: int(state)}),
        }
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, answer)
        patch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index in used, raising=False)


def test_rng_state_of_all_used_gpus_moves_with_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    saving = Gpus(monkeypatch, 8, used={0, 2, 3}, here=2)
    saving.states |= {0: 1, 2: 20, 3: 30, 4: 40}
    state = rng.capture()
    resuming = Gpus(monkeypatch, 8, used={6, 7}, here=6)
    rng.apply(state)
    assert {index: value for index, value in resuming.states.items() if value} == {6: 20, 7: 30}


def test_rng_difference_names_missing_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpus(monkeypatch, 2, used={0, 1})
    state = rng.capture()
    assert rng.difference(state) is None
    Gpus(monkeypatch, 1, used={0})
    assert rng.difference(state) == "each rank had 2 GPUs: random numbers of the missing ones are not restored"
    rng.apply(state)


def test_rng_difference_names_a_change_between_gpu_and_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = rng.capture()
    assert rng.difference(on_cpu) is None
    Gpus(monkeypatch, 1, used={0})
    on_gpu = rng.capture()
    assert rng.difference(on_cpu) == "it was saved on the CPU and goes on on a GPU: what is drawn there differs"
    monkeypatch.undo()
    assert rng.difference(on_gpu) == "it was saved on a GPU and goes on on the CPU: what is drawn there differs"


def test_machine_difference_names_changed_libraries_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "describe", lambda: GPU)
    assert machine.difference({**GPU, "GPU": "NVIDIA A100", "NCCL": "2.21.5"}) == (
        "it was computed elsewhere (GPU NVIDIA A100 -> NVIDIA H100 80GB HBM3, NCCL 2.21.5 -> 2.27.3), which may round "
        "otherwise"
    )
    assert machine.difference(GPU) is None
    assert machine.difference({}) is None, "an older checkpoint"


def test_restore_on_another_machine_is_not_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"model": torch.nn.Linear(2, 2)}
    Checkpointer(tmp_path, state).save(1)
    same = Checkpointer(tmp_path, state).restore()
    assert same is not None
    assert same.exact
    here = machine.describe()
    monkeypatch.setattr(machine, "describe", lambda: {**here, "torch": "9.0"})
    other = Checkpointer(tmp_path, state).restore()
    assert other is not None
    assert (other.exact, len(other.differences)) == (False, 1)
    assert f"torch {here['torch']} -> 9.0" in other.differences[0]
