"""NanGuard: ends the run or skips one step at a NaN or infinite loss, on all ranks together, and names the batch.

    nan_guard = NanGuard(model, group)                            # or on_nan="skip"
    ...
    loss = nan_guard.watch(loss, batch=indices)                 # each loss that goes into a step
    amp.backward(loss)
    amp.step(optimizer, nan_guard=nan_guard)

A loss that is not finite gives gradients that are not finite, and gradients are averaged over the ranks. Therefore
every rank finds the values in its own gradients at the same step, and the ranks exchange messages only after such a
step. The host reads one number per step; on a GPU, the read waits for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clusterdp.checkpoint.state.stateful import unwrap
from clusterdp.errors import ConfigError, TrainError
from clusterdp.train.argument_names import checked_class
from clusterdp.train.output.say import say
from clusterdp.train.parallel.ddp import cannot_skip

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group

POLICIES = ("stop", "skip")
MOST_IN_A_ROW = 10  # limit of skipped steps in a row; one more ends the training as failed
Indices = Iterable[int] | Callable[[], Iterable[int]] | None


@checked_class
class NanGuard:
    """All methods are called on all ranks. `skipped`: number of steps that this attempt has skipped."""

    def __init__(self, model: nn.Module, group: Group, on_nan: str = "stop", *, step: Callable[[], int] | None = None):
        """step: a function that returns the number of the current step; default: the number of checked steps."""
        if on_nan not in POLICIES:
            raise ConfigError(f"train.on_nan: {on_nan!r} is neither stop nor skip. Write one of them.")
        if on_nan == "skip" and getattr(model, "comm_hook_state", None) is not None:
            raise cannot_skip("on_nan: skip")
        self.group, self.on_nan = group, on_nan
        self.skipped = self._looked_at = self._in_a_row = 0
        self._step = step or (lambda: self._looked_at)
        self._losses: list[tuple[torch.Tensor, Indices]] = []  # the losses of the current step
        # A batch with a NaN changes BatchNorm's statistics before its loss is known.
        self._buffers = [b for b in model.buffers() if b.is_floating_point()] if on_nan == "skip" else []
        self._before = [buffer.clone() for buffer in self._buffers]
        # A restored model has new buffer objects.
        unwrap(model).register_load_state_dict_post_hook(lambda module, keys: self._remember())

    def watch(self, loss: torch.Tensor, batch: Indices = None) -> torch.Tensor:
        """Returns the loss, changed so that a loss that is not finite has gradients that are not finite. batch: the
        indices of the batch's samples, for the error message."""
        seen = loss.detach()
        self._losses.append((seen, batch))
        return loss * (1 + (seen - seen))  # multiplies by 1 or NaN, because an added NaN would leave gradients finite

    def allows(self, norm: torch.Tensor, *, scaled: bool = False) -> bool:
        """Returns whether the optimizer may step. If the policy is stop, raises TrainError instead of returning False.
        norm: the norm of all gradients, after the all-reduce. scaled: whether a GradScaler scales the gradients, which
        handles overflows itself."""
        losses, self._losses = self._losses, []
        self._looked_at += 1
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if math.isfinite(whole.item()):
            self._in_a_row = 0
            self._remember()
            return True
        told = self.group.gather([_told(loss, batch) for loss, batch in losses if not bool(loss.isfinite())])
        found = [f"rank {rank}: {text}" for rank, texts in enumerate(told) for text in texts]
        if scaled and not found:
            return True  # the GradScaler also finds the gradient that is not finite, and skips the step
        what = "; ".join(found[:4]) or "the losses of all ranks are finite, but a gradient is not"
        if self.on_nan == "stop":
            raise TrainError(
                f"step {self._step()}: {what}. Look at these samples and at the learning rate; or lose only the step, "
                "with train.on_nan: skip."
            )
        self._skip(what)
        return False

    def _remember(self) -> None:
        if self._buffers:
            torch._foreach_copy_(self._before, self._buffers)

    def _skip(self, what: str) -> None:
        self.skipped += 1
        self._in_a_row += 1
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._before)
        if self._in_a_row > MOST_IN_A_ROW:
            raise TrainError(
                f"step {self._step()}: {what}. It is the {self._in_a_row}th in a row, so the weights are lost: go on "
                "from an older checkpoint (clusterdp resume --from STEP), with a lower learning rate."
            )
        if self.group.rendezvous.rank == 0:
            say(f"clusterdp: step {self._step()} was skipped: {what}.", error=True)


def _told(loss: torch.Tensor, batch: Any) -> str:
    indices = [int(index) for index in (batch() if callable(batch) else batch or ())]
    samples = f", of the samples {indices}" if indices else ""
    return f"the loss is {float(loss.float().mean()):g}{samples}"
