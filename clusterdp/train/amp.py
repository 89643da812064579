"""Amp: mixed precision as one object, for fp16 and bf16, on CPU and CUDA. torch.amp does the work.

    amp = Amp("fp16", device)
    with amp.autocast():
        loss = criterion(model(x), y)
    amp.backward(loss)
    amp.step(optimizer, clip_norm=1.0, parameters=model.parameters())

Its state (the scale and how long it has been stable) belongs into the checkpoint: a run that resumes with the initial
scale overflows and skips steps that the uninterrupted run took.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from clusterdp.errors import ConfigError

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}


class Amp:
    """precision: fp16 (scaled loss), bf16 (has the range of fp32: no scaling), fp32 (everything is a no-op)."""

    def __init__(
        self, precision: str, device: torch.device | str, *, init_scale: float = 2.0**16, growth_interval: int = 2000
    ):
        if precision not in DTYPES:
            raise ConfigError(f"amp: {precision!r} is no precision. Use one of {', '.join(DTYPES)}.")
        self.precision = precision
        self.device_type = torch.device(device).type
        self.dtype = DTYPES[precision]
        self.scaler = torch.amp.GradScaler(
            self.device_type, init_scale=init_scale, growth_interval=growth_interval, enabled=precision == "fp16"
        )

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.dtype is not None)

    def backward(self, loss: torch.Tensor) -> None:
        """Outside autocast: the backward pass runs in the types that the forward pass chose."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None = None,
        parameters: Iterable[torch.nn.Parameter] | None = None,
    ) -> torch.Tensor | None:
        """Unscale and clip (if asked), step, adapt the scale. Returns the norm before clipping.

        An overflow skips the step and halves the scale; under DDP it does so on every rank, for all see the same sums.
        """
        norm = None
        if clip_norm is not None:
            if parameters is None:
                parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self.scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        return norm

    @property
    def scale(self) -> float:
        """Reading it waits for the GPU."""
        return float(self.scaler.get_scale())

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A state that was saved without scaling says nothing about a scale: the present one stays."""
        if state and self.scaler.is_enabled():
            self.scaler.load_state_dict(state)
