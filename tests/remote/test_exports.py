"""`checkpoint export` from a cluster behind ssh: one file, resumed and verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.errors import DamagedError
from tests.remote.sshd import Sshd


@pytest.fixture
def checkpoints(sshd: Sshd) -> Path:
    """A folder of checkpoints there."""
    import torch

    from clusterdp.checkpoint import Checkpointer

    folder = sshd.home / "checkpoints"
    if not folder.exists():
        Checkpointer(folder, {"model": torch.nn.Linear(300, 300)}).save(7)
    return folder


def exports(sshd: Sshd, project: Path) -> list[Path]:
    return list((sshd.home / "clusterdp" / project.name / ".clusterdp/exports").iterdir())


def words(checkpoints: Path) -> list[str]:
    return ["checkpoint", "export", str(checkpoints), "x.safetensors", "--only", "model"]


def test_export_makes_its_file_here(sshd: Sshd, project: Path, checkpoints: Path) -> None:
    from safetensors.torch import load_file

    done = sshd.on(*words(checkpoints), cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("x.safetensors: model of step 7 (2 tensors, 361 kB), every byte verified")
    assert load_file(project / "x.safetensors")["weight"].shape == (300, 300)
    assert exports(sshd, project) == []
    assert "is there already" in sshd.on(*words(checkpoints), cwd=project).stderr


def test_cut_export_goes_on_at_the_byte_of_its_cut(sshd: Sshd, project: Path, checkpoints: Path) -> None:
    cut = sshd.on(*words(checkpoints), cwd=project, SSH_CUT="200000")
    assert cut.returncode != 0
    assert not (project / "x.safetensors").exists()
    part = project / ".x.safetensors.part"
    size = part.stat().st_size
    assert 190_000 < size < 200_000
    # Bytes that are here are not sent again: a changed one is seen only by the verification.
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    damaged = sshd.on(*words(checkpoints), cwd=project)
    assert damaged.returncode == DamagedError.exit_code
    assert "its bytes are not those that were sent" in damaged.stderr
    assert not (project / "x.safetensors").exists() and not part.exists()
    sshd.on(*words(checkpoints), cwd=project, SSH_CUT="200000")
    assert sshd.on(*words(checkpoints), cwd=project).returncode == 0
    assert not list(project.glob(".x*"))
