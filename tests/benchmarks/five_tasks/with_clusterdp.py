"""The five tasks with clusterdp."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.nn import CrossEntropyLoss
from torch.optim import Adam

from clusterdp.train import Trainer, early_stopping
from tests.benchmarks.five_tasks.data import make_net


def classify(train: Any, val: Any, test: Any) -> float:
    trainer = Trainer(net := make_net(), CrossEntropyLoss(), Adam(net.parameters()), "accuracy")
    trainer.fit(train, val, epochs=8)
    return trainer.evaluate(test)["accuracy"]


def stop_early(train: Any, val: Any, test: Any) -> float:
    best = early_stopping("val_loss", patience=2, load_best=True)
    trainer = Trainer(net := make_net(), CrossEntropyLoss(), Adam(net.parameters()), "accuracy", callbacks=best)
    trainer.fit(train, val, epochs=50)
    return trainer.evaluate(test)["accuracy"]


def resume(train: Any, val: Any, test: Any, folder: str, epochs: int) -> float:
    os.environ["CLUSTERDP_RUN_DIR"] = folder
    trainer = Trainer(net := make_net(), CrossEntropyLoss(), Adam(net.parameters()), "accuracy")
    trainer.fit(train, val, epochs=epochs)
    return trainer.evaluate(test)["accuracy"]


def mixed(train: Any, val: Any, test: Any) -> float:
    options = {"amp": "bf16", "accumulate": 2, "clip_norm": 1.0}
    trainer = Trainer(net := make_net(), CrossEntropyLoss(), Adam(net.parameters()), "accuracy", **options)
    trainer.fit(train, val, epochs=12)
    return trainer.evaluate(test)["accuracy"]


def predict(train: Any, val: Any, test: Any) -> torch.Tensor:
    trainer = Trainer(net := make_net(), CrossEntropyLoss(), Adam(net.parameters()))
    trainer.fit(train, epochs=8)
    return trainer.predict(test[0]).argmax(1)
