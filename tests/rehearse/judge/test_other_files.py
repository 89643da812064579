"""other_files(): what a drill's run left otherwise, beside its end state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clusterdp.rehearse.judge.other_files import other_files


def left(folder: Path, ema: float, lines: list[str]) -> Path:
    folder.mkdir()
    torch.save({"w": torch.full((3,), ema)}, folder / "ema.pt")
    torch.save({"w": torch.rand(3)}, folder / "noise.pt")
    (folder / "metrics.csv").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("ema", "lines", "said"),
    [
        (1.0, ["1", "2", "2", "3", "time 9"], []),
        (2.0, ["1", "2", "3"], ["ema.pt differs in 1 value"]),
        (1.0, ["3"], ["metrics.csv lacks 2 lines"]),
    ],
)
def test_files_beside_the_end_state_are_compared(tmp_path: Path, ema: float, lines: list[str], said: list[str]) -> None:
    first, second = (left(tmp_path / name, 1.0, ["1", "2", "3", f"time {name}"]) for name in "ab")
    got = left(tmp_path / "c", ema, lines)
    assert other_files(first, second, got, []) == said
    assert other_files(first, second, got, ["ema.pt", "metrics.csv"]) == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    first, second, got = (left(tmp_path / name, 1.0, []) for name in "abc")
    (got / "ema.pt").unlink()
    assert other_files(first, second, got, []) == ["ema.pt is missing"]
