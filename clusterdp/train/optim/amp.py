"""Amp: mixed precision as one object, with Apex's levels, on CPU and CUDA. torch.amp does the work.

    amp = Amp("O1", device)
    with amp.autocast():
        loss = criterion(model(x), y)
    amp.backward(loss)
    amp.step(optimizer, clip_norm=1.0)

    level  weights                        forward pass             loss
    O0     fp32                           fp32                     not scaled
    O1     fp32                           fp16 where it is safe    scaled, dynamic
    O2     fp16, with fp32 masters;       fp16                     scaled, dynamic
           BatchNorm fp32
    O3     fp16                           fp16                     not scaled
    bf16   fp32                           bf16 where it is safe    not scaled: bf16 has the range of fp32

O3 needs one more line, and O2 two: `amp.cast(model)` before DDP and the optimizer are made from the model, and for O2
`amp.adopt(optimizer)` before anything is restored. At other levels both lines do nothing.

Amp's state (the loss scale, the number of steps since it changed, the master weights) belongs in the checkpoint: a run
that resumes with the initial scale overflows and skips steps that the uninterrupted run took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from clusterdp.errors import ConfigError, StateError
from clusterdp.train.argument_names import checked
from clusterdp.train.parallel.gradient_mean import called_modules

if TYPE_CHECKING:
    from clusterdp.train.optim.nan_guard import NanGuard


class Level(NamedTuple):
    """The settings of one of Apex's opt_levels."""

    autocast: torch.dtype | None = None  # Apex: patch_torch_functions
    half: bool = False  # Apex: cast_model_type
    keep_batchnorm_fp32: bool | None = None
    master_weights: bool = False
    loss_scale: str | float = 1.0


LEVELS = {
    "O0": Level(),
    "O1": Level(autocast=torch.float16, loss_scale="dynamic"),
    "O2": Level(half=True, keep_batchnorm_fp32=True, master_weights=True, loss_scale="dynamic"),
    "O3": Level(half=True, keep_batchnorm_fp32=False),
    "bf16": Level(autocast=torch.bfloat16),
}
OTHER_NAMES = {"fp32": "O0", "fp16": "O1"}


class _Scaler(torch.amp.GradScaler):
    """A GradScaler that also unscales fp16 gradients, which O3 has; torch's own GradScaler refuses fp16 gradients."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Any, found_inf: Any, allow_fp16: bool) -> Any:
        self.found = super()._unscale_grads_(optimizer, inv_scale, found_inf, True)
        return self.found


class Amp:
    """level: O0, O1, O2, O3 or bf16; fp32 is another name for O0, and fp16 for O1.

    loss_scale: "dynamic" (begins at init_scale; halved by an overflow, doubled after growth_interval steps without one)
    or a fixed number; default: the level's value. A scale of 1 means no scaling.
    """

    @checked
    def __init__(
        self,
        level: str,
        device: torch.device | str,
        *,
        loss_scale: str | float | None = None,
        keep_batchnorm_fp32: bool | None = None,
        init_scale: float = 2.0**16,
        growth_interval: int = 2000,
    ):
        self.level = OTHER_NAMES.get(level, level)
        if self.level not in LEVELS:
            raise ConfigError(f"amp: {level!r} is not a level. Use one of {', '.join((*LEVELS, *OTHER_NAMES))}.")
        self._means = LEVELS[self.level]
        if keep_batchnorm_fp32 is not None:
            if not self._means.half:
                raise ConfigError(
                    f"amp: keep_batchnorm_fp32 has no effect at {level}: its weights are fp32. Leave it out."
                )
            self._means = self._means._replace(keep_batchnorm_fp32=keep_batchnorm_fp32)
        self.dtype = self._means.autocast  # the dtype that autocast uses; None if autocast is off
        self.device_type = torch.device(device).type
        scale = self._means.loss_scale if loss_scale is None else loss_scale
        self.static = None if scale == "dynamic" else _number(scale)
        self.scaler = _Scaler(
            self.device_type,
            init_scale=self.static or init_scale,
            growth_interval=growth_interval,
            enabled=self.static != 1.0,
        )
        self.masters: MasterWeights | None = None

    @checked
    def cast(self, model: nn.Module) -> nn.Module:
        """Casts the weights in place, if the level requires it, and returns the model."""
        if not self._means.half:
            return model
        for part in called_modules(model):
            halve(part, keep_batchnorm_fp32=bool(self._means.keep_batchnorm_fp32))
        return model

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """At O2, makes the optimizer step on fp32 copies of the weights. Raises ConfigError if no weight was cast."""
        if self.masters is not None:
            if self.masters.are_of(optimizer):
                return
            raise ConfigError("amp: it has the masters of one optimizer already. Make another Amp for the other one.")
        weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if self._means.half and not any(weight.dtype == torch.float16 for weight in weights):
            raise ConfigError(
                f"amp: {self.level} has its weights in fp16, and this optimizer has none of those. Call "
                "amp.cast(model) before DDP and the optimizer are made of it."
            )
        if self._means.master_weights:
            self.masters = MasterWeights(optimizer)

    @partial(checked, late=True)
    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.dtype is not None)

    @partial(checked, late=True)
    def backward(self, loss: torch.Tensor) -> None:
        """Scales the loss and runs the backward pass. Call backward() outside autocast(): the backward pass uses the
        types of the forward pass."""
        scaled = loss if self.static == 1.0 else self.scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]

    @partial(checked, late=True)
    def step(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        parameters: Iterable[torch.Tensor] | None = None,
        nan_guard: NanGuard | None = None,
    ) -> torch.Tensor | None:
        """Unscales the gradients, clips them (if asked), steps the optimizer, and adapts the loss scale. Returns the
        gradients' norm before clipping, if the norm was computed.

        An overflow skips the step and halves the scale; under DDP this happens on every rank, because all ranks have
        the same gradients. nan_guard: the NanGuard that checks the gradients, and decides what follows from a loss that
        is not finite. parameters: the parameters to clip; default: the optimizer's parameters.
        """
        if clip_norm is not None and clip_value is not None:
            raise ConfigError(f"clip_norm: {clip_norm} and clip_value: {clip_value} are both given. Keep one.")
        if self.masters is not None:
            self.masters.take_gradients()
        elif self._means.master_weights:
            raise StateError("amp: O2 steps on fp32 masters, and there are none. Call amp.adopt(optimizer) first.")
        norm = None
        proceed = True
        if clip_norm is not None or clip_value is not None or nan_guard is not None:
            self.scaler.unscale_(optimizer)
            chosen = self._full(optimizer, parameters)
            if clip_norm is not None:
                norm = nn.utils.clip_grad_norm_(chosen, clip_norm)
            elif nan_guard is not None:
                norm = nn.utils.get_total_norm([p.grad for p in chosen if p.grad is not None])
            if nan_guard is not None:
                assert norm is not None
                proceed = nan_guard.allows(norm, scaled=self.is_scaled)
            if clip_value is not None and proceed:
                nn.utils.clip_grad_value_(chosen, clip_value)
        if self.static == 1.0:
            if proceed:
                optimizer.step()
        else:
            if proceed:
                self.scaler.step(optimizer)
            self.scaler.update(self.static)
        if self.masters is not None:
            self.masters.give_weights()
        return norm

    def _full(self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor] | None) -> list[torch.Tensor]:
        if parameters is None:
            return [p for group in optimizer.param_groups for p in group["params"]]
        return [self.full(parameter) for parameter in parameters]

    def full(self, parameter: torch.Tensor) -> torch.Tensor:
        """Returns the tensor that the optimizer steps on: the fp32 master copy of the parameter, or the parameter
        itself if it has none."""
        return self.masters.of(parameter) if self.masters is not None else parameter

    @property
    def is_scaled(self) -> bool:
        """Whether the loss is scaled; if so, an overflow skips a step."""
        return bool(self.scaler.is_enabled())

    @property
    def scale(self) -> float:
        """The loss scale. Reading this property waits for the GPU."""
        return float(self.scaler.get_scale())

    @property
    def skipped(self) -> bool:
        """Whether the last step was skipped because of an overflow. Reading this property waits for the GPU."""
        return any(bool(found) for found in getattr(self.scaler, "found", {}).values())

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.scaler.state_dict()
        return state if self.masters is None else {**state, "masters": self.masters.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads Amp's or Apex's state. A state that was saved without loss scaling has no loss scale; then the present
        loss scale stays."""
        scaling = {name: value for name, value in state.items() if name != "masters"}
        if "loss_scaler0" in scaling and self.scaler.is_enabled():
            of_apex = scaling["loss_scaler0"]
            now = {"scale": of_apex["loss_scale"], "_growth_tracker": of_apex["unskipped"]}
            scaling = {**self.scaler.state_dict(), **now}
        if scaling and self.scaler.is_enabled():
            self.scaler.load_state_dict(scaling if self.static is None else {**scaling, "scale": self.static})
        if self.masters is not None:
            self.masters.load_state_dict(state.get("masters"))
        elif "masters" in state:
            raise StateError(
                f"amp: the checkpoint has fp32 master weights (O2), and {self.level} has no place for them. "
                "Resume at O2, with amp.adopt(optimizer) before it."
            )

    def check_kept_in(self, state: Mapping[str, Any]) -> None:
        """Raises ConfigError if a checkpoint of `state` would lack this Amp's state: a resumed run would begin with
        another loss scale, and with master weights made from the initial weights."""
        if self.masters is None and not self.scaler.is_enabled():
            return
        enough = (Amp,) if self.masters is not None else (Amp, torch.amp.GradScaler)
        if not any(isinstance(part, enough) for part in state.values()):
            raise ConfigError(f'state: has no amp, which at {self.level} has a state of its own. Add "amp": job.amp.')

    def renew(self) -> None:
        """Copies the master weights from the model again, after the model has got other weights."""
        if self.masters is not None:
            self.masters.renew()


def _number(scale: str | float) -> float:
    try:
        number = float(scale)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise ConfigError(f"amp: loss_scale: {scale!r} is neither dynamic nor a positive number. Write e.g. 128.")
    return number


def halve(model: nn.Module, *, keep_batchnorm_fp32: bool = True) -> nn.Module:
    """Casts weights and buffers to fp16, in place. The model casts its inputs to fp16 and its outputs to fp32.

    BatchNorm may stay in fp32, because its sums need fp32. BatchNorm still takes and returns fp16 activations. A model
    that was already cast, in whole or in part, is left unchanged.
    """
    if any(_halve_inputs in module._forward_pre_hooks.values() for module in model.modules()):
        return model
    for module in model.modules():
        if keep_batchnorm_fp32 and isinstance(module, _BatchNorm):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.half()
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.half())
    model.register_forward_pre_hook(_halve_inputs, with_kwargs=True)
    model.register_forward_hook(_widen_outputs)
    return model


def _halve_inputs(model: nn.Module, args: Any, kwargs: Any) -> Any:
    return _map(args, torch.Tensor.half), _map(kwargs, torch.Tensor.half)


def _widen_outputs(model: nn.Module, args: Any, output: Any) -> Any:
    return _map(output, torch.Tensor.float)


def _map(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Applies `change` to the floating-point tensors in nested tuples, lists and dicts. Other values are left
    unchanged."""
    if isinstance(tree, torch.Tensor):
        return change(tree) if tree.is_floating_point() else tree
    if type(tree) in (tuple, list):
        return type(tree)(_map(item, change) for item in tree)
    if type(tree) is dict:
        return {key: _map(item, change) for key, item in tree.items()}
    return tree


class MasterWeights:
    """fp32 copies that replace an optimizer's fp16 parameters in its groups. Parameters of other types (BatchNorm's)
    stay."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._halves: list[torch.Tensor] = []
        self._wholes: list[torch.Tensor] = []
        for group in optimizer.param_groups:
            group["params"] = [self._master_of(parameter, optimizer) for parameter in group["params"]]
        self._master = {id(half): whole for half, whole in zip(self._halves, self._wholes, strict=True)}
        zero_grad = optimizer.zero_grad

        def zero_both(set_to_none: bool = True) -> None:
            zero_grad(set_to_none)
            for half in self._halves:  # the optimizer's zero_grad() no longer clears these gradients
                half.grad = None

        optimizer.zero_grad = zero_both  # type: ignore[method-assign]

    def _master_of(self, parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        if parameter.dtype != torch.float16:
            return parameter
        master = nn.Parameter(parameter.detach().float(), parameter.requires_grad)
        master.master_of = parameter  # type: ignore[attr-defined]  # the parameter whose name it has
        if parameter in optimizer.state:
            optimizer.state[master] = optimizer.state.pop(parameter)
        self._halves.append(parameter)
        self._wholes.append(master)
        return master

    def of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Returns the fp32 copy of a parameter, or the parameter itself if it has none."""
        return self._master.get(id(parameter), parameter)

    def are_of(self, optimizer: torch.optim.Optimizer) -> bool:
        own = {id(master) for master in self._wholes}
        return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])

    def take_gradients(self) -> None:
        """Copies the gradients to fp32, after the whole backward pass: DDP has added them up in fp16, and the sums may
        have overflowed."""
        for half, whole in zip(self._halves, self._wholes, strict=True):
            whole.grad = None if half.grad is None else half.grad.float()

    def give_weights(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self._halves, self._wholes)

    def state_dict(self) -> list[torch.Tensor]:
        return [master.detach() for master in self._wholes]

    def load_state_dict(self, state: Sequence[torch.Tensor] | None) -> None:
        """Loads the fp32 copies. If state is None (saved by a run without fp32 copies), copies the weights, which must
        be restored already."""
        saved = self._halves if state is None else state
        if [tensor.shape for tensor in saved] != [master.shape for master in self._wholes]:
            raise StateError(
                "amp: its master weights had other shapes when saved. Build model and optimizer as they were."
            )
        with torch.no_grad():
            for master, tensor in zip(self._wholes, saved, strict=True):
                master.copy_(tensor)

    def renew(self) -> None:
        """Copies the weights to fp32 again, after the model has got other weights."""
        self.load_state_dict(None)
