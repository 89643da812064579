"""Plain dicts and tensors in a state. A restore fills dicts and tensors in place, so that every reference has the
restored values.

best = {"loss": math.inf, "epoch": 0}
state = {"model": model, "best": best, "temperature": log_alpha}
"""

from __future__ import annotations

from typing import Any

import torch


class DictHolder:
    """Saves and restores a plain dict."""

    def __init__(self, held: dict[Any, Any]):
        self.held = held

    def state_dict(self) -> dict[Any, Any]:
        return self.held

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        if not isinstance(state, dict):
            raise ValueError(f"it was a {type(state).__name__} when it was saved, and is a dict here")
        _fill(self.held, state)


class TensorHolder:
    """Saves and restores a tensor, or a parameter outside a module."""

    def __init__(self, held: torch.Tensor):
        self.held = held

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"tensor": self.held.detach()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        saved = state["tensor"]
        if saved.shape != self.held.shape or saved.dtype != self.held.dtype:
            was, now = (f"{str(tensor.dtype)[6:]} of {tuple(tensor.shape)}" for tensor in (saved, self.held))
            raise ValueError(f"its tensor was {was} when it was saved, and is {now} here")
        with torch.no_grad():
            self.held.copy_(saved)


def held(thing: Any) -> Any:
    """Returns a holder for a plain dict or tensor, and any other object itself."""
    if isinstance(thing, torch.Tensor):
        return TensorHolder(thing)
    return DictHolder(thing) if isinstance(thing, dict) and not hasattr(thing, "state_dict") else thing


def _fill(live: dict[Any, Any], saved: dict[Any, Any]) -> None:
    """Fills `live` in place with the saved values. Nested dicts and tensors stay the same objects."""
    for key in [key for key in live if key not in saved]:
        del live[key]
    for key, value in saved.items():
        old = live.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            _fill(old, value)
        elif isinstance(old, torch.Tensor) and isinstance(value, torch.Tensor):
            if old.shape == value.shape and old.dtype == value.dtype:
                with torch.no_grad():
                    old.copy_(value)
            else:
                live[key] = value.to(old.device)
        else:
            live[key] = value
