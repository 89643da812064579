"""A model's layers as a table, for Trainer.summary()."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from clusterdp.wording import table


def summary(model: nn.Module, inputs: tuple[Any, ...] | None, device: torch.device) -> str:
    """Returns a table of the innermost modules. inputs: a batch, from which the shape of each module's output is
    computed."""
    shapes = _shapes(model, inputs, device) if inputs is not None else {}
    rows = [("layer", "type", *(("gives",) if shapes else ()), "parameters")]
    for name, module in model.named_modules():
        if next(module.children(), None) is None:
            own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
            shown = (shapes.get(name, "-"),) if shapes else ()
            rows.append((name or "(model)", type(module).__name__, *shown, f"{own:,}"))
    lines = table(rows)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    size = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    everything = sum(parameter.numel() for parameter in model.parameters())
    lines.append(f"{everything:,} parameters, {trained:,} of them trained; {size / 1e6:.1f} MB with buffers")
    return "\n".join(lines)


def _shapes(model: nn.Module, inputs: tuple[Any, ...], device: torch.device) -> dict[str, str]:
    from clusterdp.train.data.prefetch import to_device

    found: dict[str, str] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            found[name] = str(tuple(output.shape)) if isinstance(output, torch.Tensor) else type(output).__name__

        return hook

    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules()]
    training = model.training
    try:
        model.eval()  # in eval mode, a batch of one sample is enough, and no statistics change
        with torch.no_grad():
            model(*to_device(inputs, device))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return found
