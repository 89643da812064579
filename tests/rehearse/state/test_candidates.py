"""candidates(): what is worth comparing among the files that a run has written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterdp.rehearse.state import candidates

BEGAN = 1000.0


def written(folder: Path, names: str) -> None:
    """Each file a second later than the one before it."""
    for second, name in enumerate(names.split(), 1):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        os.utime(path, (BEGAN + second, BEGAN + second))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("out/ckpt.pt out/log.txt", "out/ckpt.pt"),
        ("best.pt last.pt metrics.json", "last.pt"),
        ("model_best.pth.tar checkpoint.pth.tar", "checkpoint.pth.tar"),
        ("step_1000.pt step_200.pt step_90.pt", "step_1000.pt"),
        ("model.pt other.pt", "other.pt model.pt"),
        ("model.pt ckpt.pt other.pt", "ckpt.pt"),
        ("ckpt/last.ckpt ckpt/epoch=3-step=9.ckpt", "ckpt/last.ckpt"),
        ("state.pt resume.pt", "resume.pt state.pt"),
        ("c-9/model.safetensors c-9/optimizer.pt model.safetensors args.pt", "c-9"),
        ("weights.bin ckpt.pt", "ckpt.pt"),
        ("weights.bin", ""),
        ("metrics.json tensorboard/events.out.tfevents.1 wandb/x.json .cache/x.pt", "metrics.json"),
        ("scores.npy metrics.json", "scores.npy"),
        ("train.bin val.bin vocab.json ckpt.pt", "ckpt.pt"),
        ("c-9/model.safetensors c-9/optimizer.pt c-9/state.json c-20/model.safetensors c-20/rng_state_0.pth", "c-20"),
        ("lightning_logs/version_0/checkpoints/epoch=4-step=100.ckpt lightning_logs/version_0/hparams.yaml",
         "lightning_logs/version_0/checkpoints/epoch=4-step=100.ckpt"),
        ("a.log b.txt __pycache__/x.pkl", ""),
    ],
)  # fmt: skip
def test_candidates_picks_the_likely_end_state_among_written_files(names: str, found: str, tmp_path: Path) -> None:
    written(tmp_path, names)
    assert [str(path.relative_to(tmp_path)) for path in candidates(tmp_path, BEGAN)] == found.split()


def test_candidates_ignores_files_unchanged_since_before_the_run(tmp_path: Path) -> None:
    written(tmp_path, "pretrained.pt new.pt")
    os.utime(tmp_path / "pretrained.pt", (BEGAN - 9, BEGAN - 9))
    assert candidates(tmp_path, BEGAN) == [tmp_path / "new.pt"]
