"""Ema: an exponential moving average of the weights, which often evaluates better than the weights themselves.

    ema = Ema(model, decay=0.999)
    state = {"model": model, ..., "ema": ema}
    ...
    optimizer.step()
    ema.update()
    ...
    with ema.applied():                  # the model has the averages in this block
        evaluate(model)                  # a save of the state meanwhile saves the model's own weights

torch's AveragedModel keeps a copy of the module. Ema keeps single tensors instead, which are fp32 for any type of
weights (0.999 x an fp16 weight rounds to the same weight again). Ema can average O2's master weights, and FSDP2's
shards, which cannot be copied as a module.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from clusterdp.checkpoint.state.stateful import unwrap
from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import checked_class
from clusterdp.train.parallel.strategy import reshard

if TYPE_CHECKING:
    from clusterdp.train.optim.amp import Amp


@checked_class
class Ema:
    """Averages all trained parameters. Buffers, such as BatchNorm's, are not averaged."""

    def __init__(self, model: nn.Module, decay: float = 0.999, *, amp: Amp | None = None):
        """amp: an Amp whose master weights are averaged. Make the Ema after amp.adopt(optimizer)."""
        if not 0 <= decay <= 1:
            raise ConfigError(f"ema: decay: {decay} is not between 0 and 1. Use e.g. 0.999.")
        self._model = unwrap(model)
        self._kept: dict[int, torch.Tensor] = {}  # id of a parameter -> its own weight, while it has the average
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._begin(amp)

    def _begin(self, amp: Amp | None) -> None:
        named = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._parameters = [*named.values()]
        self._sources = [amp.full(p) if amp is not None else p for p in self._parameters]
        self._averages = [source.detach().float().clone() for source in self._sources]
        self._names = [*named]

    def follow(self, model: nn.Module, amp: Amp) -> None:
        """Averages what `amp` steps on, if the model was moved, sharded or got masters since this object was made, as
        by a Trainer. The averages then begin again with the present weights."""
        if unwrap(model) is not self._model:
            return
        now = [amp.full(p) for p in self._model.parameters() if p.requires_grad]
        same = len(now) == len(self._sources) and all(map(operator.is_, now, self._sources))
        if not same or any(p.device != a.device for p, a in zip(now, self._averages, strict=True)):
            self._begin(amp)

    @torch.no_grad()
    def update(self) -> None:
        """Updates the averages. Call update() after each step of the optimizer."""
        self._average(self._averages, [source.detach().float() for source in self._sources], None)

    @contextmanager
    def applied(self) -> Iterator[None]:
        kept = [parameter.detach().clone() for parameter in self._parameters]
        self._kept = {id(parameter): own for parameter, own in zip(self._parameters, kept, strict=True)}
        try:
            self._put(self._averages)
            yield
        finally:
            self._put(kept)
            self._kept = {}

    @torch.no_grad()
    def _put(self, weights: Iterable[torch.Tensor]) -> None:
        """Writes these weights into the model."""
        reshard(self._model)  # without this call, FSDP2 would still use the weights that it has gathered before
        for parameter, weight in zip(self._parameters, weights, strict=True):
            parameter.copy_(weight)

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """In the body of the with statement, a save gets the trained weights, even if applied() has put the averages
        into the model, because a training cannot continue from averages. A Checkpointer whose state lacks this Ema
        saves the present weights.
        """
        modules = self._model.modules() if self._kept else ()
        hooks = [module.register_state_dict_post_hook(partial(_give, self._kept)) for module in modules]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def state_dict(self) -> dict[str, Any]:
        return dict(zip(self._names, self._averages, strict=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, average in zip(self._names, self._averages, strict=True):
                average.copy_(state[name])

    @torch.no_grad()
    def renew(self) -> None:
        """Restarts the averages, after the model has got other weights."""
        for average, source in zip(self._averages, self._sources, strict=True):
            average.copy_(source)


def _give(kept: Mapping[int, torch.Tensor], module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """The hook that puts the model's own weights into a state_dict. Each module has this hook, because a part of the
    model may be saved."""
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        if id(parameter) in kept and prefix + name in state:
            state[prefix + name] = kept[id(parameter)]
