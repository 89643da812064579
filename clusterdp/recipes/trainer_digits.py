"""Trains on the digits with Trainer: the same stops, saves and exact resume as recipes/digits.py, with less code.

    clusterdp submit configs/trainer.yaml --cluster local
    python -m clusterdp.recipes.trainer_digits epochs=5

Use Trainer if a step is forward, backward and optimizer, and an epoch ends with an evaluation. A hand-written loop over
the same pieces (recipes/digits.py) is ten lines longer, and hides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from clusterdp.recipes.digits import Net, load_digits
from clusterdp.recipes.results import digest
from clusterdp.train import JobHandle, Trainer, early_stopping, keep_best


def main(
    job: JobHandle,
    epochs: int = 8,
    batch_size: int = 8,
    lr: float = 0.05,
    amp: str = "bf16",
    patience: int = 5,
    step_delay_s: float = 0.0,
) -> float:
    """Trains the network, and returns the accuracy of the best epoch's model. batch_size: images a step of one rank.
    step_delay_s: pause after each step."""
    train, test = load_digits()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    steps = epochs * (len(train) // (batch_size * job.world_size))

    def wait(trainer: Trainer, values: Mapping[str, Any]) -> None:
        time.sleep(step_delay_s)

    trainer = Trainer(
        net,
        nn.CrossEntropyLoss(),
        optimizer,
        metrics={"accuracy": accuracy},
        job=job,
        amp=amp,
        clip_norm=5.0,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
        on_step=[wait] if step_delay_s else [],
        on_epoch=[keep_best("val_accuracy", mode="max"), early_stopping("val_loss", patience=patience)],
        wrap={"bucket_cap_mb": 0.5},
    )
    history = trainer.fit(train, test, epochs=epochs, batch_size=batch_size, drop_last=True)
    ended = digest(net, optimizer, trainer.amp)
    trainer.load_best()
    right = trainer.predict(test).argmax(1) == test.tensors[1]
    best = float(right.float().mean())
    job.log(test_accuracy=best, digest=ended)
    if job.rank == 0:
        print(f"{history}\ndigits: test accuracy {best:.4f} with the weights of the best epoch", flush=True)
    return best


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns 1 or 0 for each sample, not a mean, because batches may have different sizes."""
    return (outputs.argmax(1) == targets).float()


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
