"""Swa: the mean of the weights after each epoch from a first one on: P. Izmailov et al., Averaging Weights Leads to
Wider Optima and Better Generalization, https://arxiv.org/abs/1803.05407.

    swa = Swa(model, first_epoch=8)
    trainer = Trainer(model, ..., scheduler=SWALR(optimizer, swa_lr=0.05), callbacks=[swa])
    trainer.fit(train, epochs=12)
    swa.finish(train_loader)             # the model has the mean, and norms of it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import update_bn

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import checked_class
from clusterdp.train.optim.ema import Ema
from clusterdp.train.parallel.strategy import reshard

if TYPE_CHECKING:
    from clusterdp.train.optim.amp import Amp


@checked_class
class Swa(Ema):
    """A callback of a Trainer, whose state is saved. In a loop of your own, put it into the loop's state, and call
    update() after each epoch. applied() gives the model the mean for an evaluation."""

    def __init__(self, model: nn.Module, first_epoch: int = 1, *, amp: Amp | None = None):
        if first_epoch < 1:
            raise ConfigError(f"swa: first_epoch: {first_epoch} is less than 1, the first epoch.")
        super().__init__(model, amp=amp)
        self.first_epoch, self.count = first_epoch, 0

    def on_epoch(self, trainer: Any, row: Mapping[str, Any]) -> None:
        if row["epoch"] >= self.first_epoch:
            self.update()

    @torch.no_grad()
    def update(self) -> None:
        """Adds the present weights to the mean."""
        self.count += 1
        torch._foreach_lerp_(self._averages, [source.detach().float() for source in self._sources], 1 / self.count)

    def finish(self, batches: Iterable[Any]) -> None:
        """Writes the mean into the model, and computes the statistics of its BatchNorms anew from the batches, inputs
        or (inputs, ...), because no training had the mean's activations. On several ranks it is collective: each gives
        batches, and all get the statistics of rank 0."""
        if not self.count:
            raise ConfigError(f"swa: no epoch was averaged; the first is {self.first_epoch}. Train that far.")
        self._put(self._averages)
        update_bn(batches, self._model, next(self._model.parameters()).device)
        reshard(self._model)  # FSDP2 keeps weights gathered after a forward without a backward
        if dist.is_initialized():
            for buffer in self._model.buffers():
                if not hasattr(buffer, "full_tensor"):  # a DTensor has the attribute full_tensor
                    dist.broadcast(buffer, 0)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "averages": super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]
        super().load_state_dict(state["averages"])
