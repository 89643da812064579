"""A model's layers as a table, and the memory of a training step, for Trainer.summary()."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from clusterdp.errors import ConfigError
from clusterdp.wording import size, table


def summary(
    model: nn.Module,
    sample: Any,
    input_shape: Sequence[Any] | None,
    optimizer: torch.optim.Optimizer | None,
    device: torch.device,
) -> str:
    """Returns a table of the modules that have parameters or no parts. The numbers of parameters add up: a parameter
    counts in the first row that has it."""
    if input_shape is not None:
        if sample is not None:
            raise ConfigError("summary: a sample and an input_shape are both given. Keep one.")
        sample = _zeros(input_shape)
    shapes, activations = _trial(model, sample, device) if sample is not None else ({}, 0)
    rows = [("layer", "type", *(("gives",) if shapes else ()), "parameters", "size")]
    first: dict[int, str] = {}  # the row of each parameter and module
    for name, module in model.named_modules(remove_duplicate=False):
        own = [*module._parameters.items()]
        if next(module.children(), None) is not None and not own:
            continue
        mine = [p for _, p in own if p is not None and first.setdefault(id(p), name) == name]
        shared = {first[id(p)] for _, p in own if p is not None} - {name}
        shown = (shapes.get(name, "-"),) if shapes else ()
        kind = type(module).__name__ + (f" (shares {', '.join(sorted(shared))})" if shared else "")
        rows.append((name or "(model)", kind, *shown, f"{sum(p.numel() for p in mine):,}", size(_bytes(mine))))
    trained = [p for p in model.parameters() if p.requires_grad]
    every = sum(p.numel() for p in model.parameters())
    everything = size(_bytes([*model.parameters(), *model.buffers()]))
    lines = table(rows)
    lines.append(
        f"{every:,} parameters, {sum(p.numel() for p in trained):,} of them trained; {everything} with buffers"
    )
    parts = {"gradients": _bytes(trained)}
    if optimizer is not None and (states := _states(optimizer)) is not None:
        parts["optimizer"] = round(_bytes(trained) * states)
    if sample is not None:
        parts["activations of this batch"] = activations
    lines.append("a step adds " + ", ".join(f"{name} {size(nbytes)}" for name, nbytes in parts.items()))
    return "\n".join(lines)


def _zeros(input_shape: Sequence[Any]) -> Any:
    try:
        several = all(isinstance(shape, Sequence) for shape in input_shape)
        shapes = input_shape if several and input_shape else [input_shape]
        return tuple(torch.zeros(1, *shape) for shape in shapes)
    except (TypeError, RuntimeError):
        raise ConfigError(
            f"input_shape: {input_shape!r:.80} is not the shape of a sample. Write e.g. (3, 32, 32), without the batch."
        ) from None


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _states(optimizer: torch.optim.Optimizer) -> float | None:
    """Returns how many tensors of a parameter's size the optimizer keeps for it: 2 for Adam. The answer comes from one
    step of such an optimizer on a small parameter; None if it cannot be made or stepped so."""
    parameter = nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.zeros(2, 2)
    try:
        takes = inspect.signature(type(optimizer)).parameters
        small = type(optimizer)([parameter], **{name: v for name, v in optimizer.defaults.items() if name in takes})
        small.step()
    except Exception:  # an optimizer of the user's may want anything
        return None
    kept = [value for value in small.state[parameter].values() if isinstance(value, torch.Tensor)]
    return sum(value.numel() for value in kept if value.dim()) / parameter.numel()


def _trial(model: nn.Module, sample: Any, device: torch.device) -> tuple[dict[str, str], int]:
    """Runs the model on the sample. Returns the shape of each module's output, and the bytes that autograd keeps for
    the backward pass besides the parameters. The model is in eval mode, in which a batch of one sample is enough, and
    no statistics change; dropout's masks are therefore not counted."""
    from clusterdp.train.data.prefetch import to_device

    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    shapes: dict[str, str] = {}
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def note(module: nn.Module, given: Any, output: Any) -> None:
        text = str(tuple(output.shape)) if isinstance(output, torch.Tensor) else type(output).__name__
        shapes.update(dict.fromkeys(names[module], text))

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(sample)):
        raise ConfigError(
            f"sample: a {type(sample).__name__} without tensors. Pass a batch, or input_shape=(3, 32, 32)."
        )
    sample = to_device(sample, device)
    hooks = [module.register_forward_hook(note) for module in names]
    training = model.training
    try:
        model.eval()
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            if isinstance(sample, Mapping):
                output = model(**sample)
            else:
                output = model(*sample) if isinstance(sample, tuple | list) else model(sample)
        del output
    except (TypeError, ValueError, RuntimeError) as error:
        what = str(error).partition("\n")[0]
        raise ConfigError(
            f"summary: the model cannot be called with this sample: {what}. Pass the inputs of a batch."
        ) from error
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return shapes, sum(kept.values())
