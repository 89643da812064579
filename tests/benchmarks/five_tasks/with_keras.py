"""The five tasks with Keras 3 on torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
from keras.callbacks import BackupAndRestore, EarlyStopping
from keras.layers import Dense
from keras.losses import SparseCategoricalCrossentropy
from keras.optimizers import Adam


def make_net() -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((64,)), Dense(64, activation="relu"), Dense(10)])


def classify(train: Any, val: Any, test: Any) -> float:
    net = make_net()
    net.compile("adam", SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    net.fit(*train, epochs=8, validation_data=val)
    return net.evaluate(*test)[1]


def stop_early(train: Any, val: Any, test: Any) -> float:
    net = make_net()
    net.compile("adam", SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    best = EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    net.fit(*train, epochs=50, validation_data=val, callbacks=[best])
    return net.evaluate(*test)[1]


def resume(train: Any, val: Any, test: Any, folder: str, epochs: int) -> float:
    net = make_net()
    net.compile("adam", SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    backup = BackupAndRestore(Path(folder, "backup"), delete_checkpoint=False)
    net.fit(*train, epochs=epochs, validation_data=val, callbacks=[backup])
    return net.evaluate(*test)[1]


def mixed(train: Any, val: Any, test: Any) -> float:
    keras.config.set_dtype_policy("mixed_bfloat16")
    net = make_net()
    optimizer = Adam(gradient_accumulation_steps=2, global_clipnorm=1.0)
    net.compile(optimizer, SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    net.fit(*train, epochs=12, validation_data=val)
    return net.evaluate(*test)[1]


def predict(train: Any, val: Any, test: Any) -> Any:
    net = make_net()
    net.compile("adam", SparseCategoricalCrossentropy(from_logits=True))
    net.fit(*train, epochs=8)
    return net.predict(test[0]).argmax(1)
