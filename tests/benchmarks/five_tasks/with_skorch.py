"""The five tasks with skorch."""

from __future__ import annotations

from typing import Any

import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping, GradientNormClipping, LoadInitState, TrainEndCheckpoint
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch.nn import CrossEntropyLoss
from torch.optim import Adam

from tests.benchmarks.five_tasks.data import make_net


def classify(train: Any, val: Any, test: Any) -> float:
    options = {"batch_size": 32, "max_epochs": 8, "train_split": predefined_split(Dataset(*val))}
    net = NeuralNetClassifier(make_net(), criterion=CrossEntropyLoss, optimizer=Adam, lr=1e-3, **options)
    net.fit(*train)
    return net.score(*test)


def stop_early(train: Any, val: Any, test: Any) -> float:
    options = {"batch_size": 32, "max_epochs": 50, "train_split": predefined_split(Dataset(*val))}
    best = EarlyStopping(patience=2, load_best=True)
    net = NeuralNetClassifier(
        make_net(), criterion=CrossEntropyLoss, optimizer=Adam, lr=1e-3, callbacks=[best], **options
    )
    net.fit(*train)
    return net.score(*test)


def resume(train: Any, val: Any, test: Any, folder: str, epochs: int) -> float:
    options = {"batch_size": 32, "max_epochs": epochs, "train_split": predefined_split(Dataset(*val))}
    kept = TrainEndCheckpoint(dirname=folder)
    states = [kept, LoadInitState(kept)]  # a second fit() trains `epochs` more
    net = NeuralNetClassifier(
        make_net(), criterion=CrossEntropyLoss, optimizer=Adam, lr=1e-3, callbacks=states, **options
    )
    net.fit(*train)
    return net.score(*test)


def mixed(train: Any, val: Any, test: Any) -> float:
    class Accumulating(NeuralNetClassifier):
        batches = 0

        def train_step(self, batch: Any, **params: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                step = self.train_step_single(batch, **params)
            Accumulating.batches += 1
            if Accumulating.batches % 2 == 0:
                self.notify("on_grad_computed", named_parameters=self.get_all_learnable_params(), batch=batch)
                self.optimizer_.step()
                self.optimizer_.zero_grad()
            return step

        def get_loss(self, *args: Any, **params: Any) -> Any:
            return super().get_loss(*args, **params) / 2

    options = {"batch_size": 32, "max_epochs": 12, "train_split": predefined_split(Dataset(*val))}
    clip = GradientNormClipping(1.0)
    net = Accumulating(make_net(), criterion=CrossEntropyLoss, optimizer=Adam, lr=1e-3, callbacks=[clip], **options)
    net.fit(*train)
    return net.score(*test)


def predict(train: Any, val: Any, test: Any) -> Any:
    options = {"batch_size": 32, "max_epochs": 8, "train_split": None}
    net = NeuralNetClassifier(make_net(), criterion=CrossEntropyLoss, optimizer=Adam, lr=1e-3, **options)
    net.fit(*train)
    return net.predict(test[0])
