from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer, Commit
from clusterdp.cli import main
from tests.checkpoint.training import Counter

Save = Callable[..., Commit]


def thing(state: Any, *, per_rank: bool = False) -> Counter:
    counter = Counter(per_rank=per_rank)
    counter.state = state
    return counter


def model(value: float = 1.0) -> dict[str, Any]:
    """Two blocks and a bit, so that a tensor runs over the edge of one."""
    return {"big": torch.full((600_000,), float(value)), "small": torch.tensor(float(value)), "name": "m"}


@pytest.fixture
def folder(elsewhere: Path) -> Path:
    return elsewhere / "saved"


@pytest.fixture
def save(folder: Path) -> Save:
    """save(step, state, at=folder, attempt=""): a checkpoint of one rank, always with the same random numbers."""

    def save(step: int, state: dict[str, Any] | None = None, *, at: Any = None, **options: Any) -> Commit:
        torch.manual_seed(0)
        things = {name: thing(each) for name, each in (state or {"model": model(step)}).items()}
        meta = options.pop("meta", None)
        return Checkpointer(at or folder, things, keep_last=99, **options).save(step, meta)

    return save


class Run:
    """One run of the command line: its exit code and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self._capsys = capsys

    def __call__(self, *words: object) -> tuple[int, str]:
        code = main(["checkpoint", *map(str, words)])
        out, err = self._capsys.readouterr()
        if code not in (0, 1):  # a mistake is one line, and nothing else
            assert out == ""
            assert err.startswith("clusterdp: ") and err.count("\n") == 1, err
        else:
            assert err == ""
        return code, out + err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def data_file(folder: Path, token: str) -> Path:
    (path,) = folder.glob(f"step_*/{token}-r0000-of-*.safetensors")
    return path


def manifest_file(folder: Path, token: str) -> Path:
    (path,) = folder.glob(f"step_*/MANIFEST.{token}.json")
    return path
