"""The five tasks with Lightning."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics.functional import accuracy

from tests.benchmarks.five_tasks.data import dataset, make_net


class Net(LightningModule):
    """The module of all tasks: its lines are part of each."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, number: int) -> None:
        outputs = self.net(batch[0])
        self.log("val_loss", F.cross_entropy(outputs, batch[1]), prog_bar=True)
        self.log("accuracy", accuracy(outputs, batch[1], "multiclass", num_classes=10), prog_bar=True)

    def predict_step(self, batch: Any) -> torch.Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def classify(train: Any, val: Any, test: Any) -> float:
    loaders = [DataLoader(dataset(train), 32, shuffle=True), DataLoader(dataset(val), 32)]
    trainer, net = Trainer(max_epochs=8, accelerator="cpu", logger=False), Net()
    trainer.fit(net, *loaders)
    return trainer.validate(net, DataLoader(dataset(test), 32))[0]["accuracy"]


def stop_early(train: Any, val: Any, test: Any) -> float:
    loaders = [DataLoader(dataset(train), 32, shuffle=True), DataLoader(dataset(val), 32)]
    calls = [EarlyStopping("val_loss", patience=2), best := ModelCheckpoint(monitor="val_loss")]
    trainer = Trainer(max_epochs=50, accelerator="cpu", logger=False, callbacks=calls)
    trainer.fit(Net(), *loaders)
    net = Net.load_from_checkpoint(best.best_model_path)
    return trainer.validate(net, DataLoader(dataset(test), 32))[0]["accuracy"]


def resume(train: Any, val: Any, test: Any, folder: str, epochs: int) -> float:
    loaders = [DataLoader(dataset(train), 32, shuffle=True), DataLoader(dataset(val), 32)]
    kept = ModelCheckpoint(folder, save_last=True)
    trainer, net = Trainer(max_epochs=epochs, accelerator="cpu", logger=False, callbacks=[kept]), Net()
    trainer.fit(net, *loaders, ckpt_path="last")
    return trainer.validate(net, DataLoader(dataset(test), 32))[0]["accuracy"]


def mixed(train: Any, val: Any, test: Any) -> float:
    loaders = [DataLoader(dataset(train), 32, shuffle=True), DataLoader(dataset(val), 32)]
    options = {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 1.0}
    trainer, net = Trainer(max_epochs=12, accelerator="cpu", logger=False, **options), Net()
    trainer.fit(net, *loaders)
    return trainer.validate(net, DataLoader(dataset(test), 32))[0]["accuracy"]


def predict(train: Any, val: Any, test: Any) -> torch.Tensor:
    trainer, net = Trainer(max_epochs=8, accelerator="cpu", logger=False), Net()
    trainer.fit(net, DataLoader(dataset(train), 32, shuffle=True))
    return torch.cat(trainer.predict(net, DataLoader(dataset(test), 32))).argmax(1)
