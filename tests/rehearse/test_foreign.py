"""Programs and libraries that others have written, unmodified: what a rehearsal says of them is true.

Lightning and transformers, where they are installed; nanoGPT, where CLUSTERDP_NANOGPT names a checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIGHTNING = """
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, DemoModel

LightningCLI(DemoModel, BoringDataModule, save_config_kwargs={"overwrite": OVERWRITE})
"""
FIT = (
    "fit --seed_everything=1 --ckpt_path=last --trainer.accelerator=cpu --trainer.strategy=ddp --trainer.devices=2 "
    "--trainer.max_epochs=16 --trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint "
    "--trainer.callbacks.dirpath=ckpt --trainer.callbacks.save_last=true "
    "--trainer.callbacks.every_n_train_steps=100 --trainer.callbacks+=lightning.pytorch.callbacks.TQDMProgressBar"
)
TRAINER = """
import time
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.drop(self.layer(x)), labels)}


class Slow(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        time.sleep(0.05)


torch.manual_seed(0)
data = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(400)]
words = TrainingArguments(
    "out", use_cpu=True, max_steps=120, save_steps=20, logging_steps=1, per_device_train_batch_size=4, report_to="none"
)
Trainer(Net(), words, train_dataset=data, callbacks=[Slow()]).train(
    resume_from_checkpoint=get_last_checkpoint("out") if __import__("os").path.isdir("out") else None
)
"""
NANOGPT = """
resume=; [ ! -e out/ckpt.pt ] || resume=--init_from=resume
exec env -u RANK python train.py config/train_shakespeare_char.py --out_dir=out --device=cpu --compile=False \\
  --dtype=float32 --eval_iters=2 --eval_interval=100 --always_save_checkpoint=True --log_interval=1 --block_size=64 \\
  --batch_size=8 --n_layer=2 --n_head=2 --n_embd=64 --max_iters=500 --lr_decay_iters=500 --warmup_iters=10 $resume
"""


@pytest.mark.parametrize("overwrite", [True, False])
def test_lightning_goes_on_from_its_last_checkpoint_unless_its_cli_finds_its_own_config(
    overwrite: bool, tmp_path: Path
) -> None:
    pytest.importorskip("lightning.pytorch")
    pytest.importorskip("jsonargparse")
    (tmp_path / "demo.py").write_text(LIGHTNING.replace("OVERWRITE", str(overwrite)))
    row = rehearse(tmp_path, "preempted", 2, command=f"{sys.executable} demo.py {FIT}", rehearse={"may_lose": 150})
    if overwrite:
        assert row["verdict"] == "passed", row
    else:
        assert row["verdict"] == "failed"
        assert "failed by itself: RuntimeError: SaveConfigCallback expected" in row["diagnosis"]


def test_the_trainer_of_transformers_goes_on_from_its_last_checkpoint_and_has_no_handler(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    (tmp_path / "fit.py").write_text(TRAINER)
    row = rehearse(tmp_path, "preempted", 1, command=f"{sys.executable} fit.py")
    assert "same" in row["state"] or row["state"] == "bit for bit", row
    assert "no handler for SIGTERM" in row["diagnosis"]


def test_nanogpt_loses_its_random_numbers(tmp_path: Path) -> None:
    checkout = os.environ.get("CLUSTERDP_NANOGPT")
    if not checkout:
        pytest.skip("CLUSTERDP_NANOGPT names no checkout, with data/shakespeare_char prepared")
    shutil.copytree(checkout, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git", "runs", "out*"))
    row = rehearse(tmp_path, "preempted", 1, script=NANOGPT)
    assert row["verdict"] == "failed"
    assert row["diagnosis"].startswith("the random numbers' state is in no checkpoint")
    assert "the program has no handler for SIGTERM" in row["diagnosis"]


def rehearse(folder: Path, drill: str, ranks: int, **config: Any) -> dict[str, Any]:
    """The row of a drill in rehearsal.json."""
    given = {"resources": {"nodes": 1, "tasks_per_node": ranks}, "launch": {"env": {"OMP_NUM_THREADS": "1"}}, **config}
    (folder / "job.yaml").write_text(json.dumps(given))
    words = ["rehearse", "job.yaml", f"run_dir={folder}/runs/it", "--only", drill, "--json"]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "clusterdp", *words], cwd=folder, env=environ, capture_output=True, text=True
    )
    assert done.stdout, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return next(each for each in outcome["drills"] if each["drill"] == drill)
