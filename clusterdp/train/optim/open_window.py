"""OpenWindow: detects gradients that no optimizer has used yet, in a loop without accumulate=.

    for x, y in loop:                               # without accumulate=4
        (loss(model(x), y) / 4).backward()
        if (loop.step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

Checkpoints hold no gradients. A hook reports when an optimizer has stepped. If no optimizer has stepped and there are
gradients, the loop delays a save or a stop to the end of the window. Because of this delay, a resume is exact.

Each of several optimizers has its own window. In a GAN, one network's losses leave gradients in the other network's
parameters. No step uses these gradients, which are cleared before the next backward pass. Therefore an optimizer that
does not step at each batch counts as accumulating gradients only after it has stepped on a gradient that already
existed at the end of the previous batch. Before its first step, an optimizer counts as accumulating for LONGEST batches
at most.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from clusterdp.train.output.say import say

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group
    from clusterdp.train.ranks.rank import Rank

LONGEST = 32  # limit of the batches by which a stop is delayed before the first window has ended
SHORTEST = 8  # the later limit is at least this, because a step that is skipped for a NaN loss does not end a window


_open: weakref.WeakSet[OpenWindow] = weakref.WeakSet()


@cache
def _listen() -> None:
    """Registers a hook for all optimizers, because an optimizer in the state may wrap the one that steps. The hook is
    never removed: when garbage collection removed a hook in the middle of a step, the step failed."""
    register_optimizer_step_post_hook(_note_step)


def _note_step(optimizer: Any, *_: Any) -> None:
    for windows in _open:
        windows._note_step(optimizer)


class OpenWindow:
    """The windows of the optimizers in `state`. `wait`: whether this rank has gradients that wait for a step."""

    def __init__(self, state: Mapping[str, Any]):
        parts = list(state.values())
        self._windows = [_Window(part) for part in parts if isinstance(part, torch.optim.Optimizer)]
        self._modules = [part for part in parts if isinstance(part, torch.nn.Module)]
        self._steppers: weakref.WeakKeyDictionary[Any, list[_Window]] = weakref.WeakKeyDictionary()
        self._batches = 0  # number of batches since the last window ended
        self._longest = 0  # number of batches in the longest window so far
        self._put_off = 0  # number of batches by which a save or stop is delayed so far
        self.wait = False  # whether this rank has gradients that wait for a step, after the last batch
        self._warned = False
        if self._windows:
            _listen()
            _open.add(self)

    def close_step(self) -> None:
        """Updates `wait` at the end of a batch."""
        if not self._windows:
            return
        if len(self._windows) == 1:
            window = self._windows[0]
            self.wait = not window.stepped and any(parameter.grad is not None for parameter in self._parameters())
            window.stepped = False
        else:
            self.wait = sum(window.close_step() for window in self._windows) > 0  # any() would skip some windows
        self._batches += 1
        if not self.wait:
            self._longest = max(self._longest, self._batches)
            self._batches = 0

    def put_off(self, group: Group) -> bool:
        """Returns whether all ranks wait for another batch before a save or stop. Collective. The number of delayed
        batches has a limit, about the longest window."""
        if not self._windows:
            return False
        wait, longest = group.agree(int(self.wait), self._longest)
        if not wait or self._put_off >= (max(longest, SHORTEST) if longest else LONGEST):
            self._put_off = 0
            return False
        self._put_off += 1
        return True

    def warn_of_save(self, rank: Rank, step: int) -> None:
        """Warns, once, about a save that cannot be exact."""
        if self.wait and not self._warned and rank.is_first:
            self._warned = True
            say(
                f"clusterdp: step {step} is saved with gradients that no optimizer has used yet, and those are in no "
                "checkpoint: a run that goes on from there is not exact. Where you accumulate, let the loop know: "
                "job.loop(accumulate=...), loop.window_ends.",
                error=True,
            )

    def _note_step(self, optimizer: Any) -> None:
        if optimizer not in self._steppers:
            its = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            own = [window for window in self._windows if any(id(parameter) in its for parameter in window.parameters())]
            self._steppers[optimizer] = own or self._windows  # unknown parameters are copies of known ones
        for window in self._steppers[optimizer]:
            window.note_step()

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        for window in self._windows:
            yield from window.parameters()
        for module in self._modules:  # with mixed precision, the optimizer steps on copies of these parameters
            yield from module.parameters()


class _Window:
    """The window of one optimizer among several."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer
        self.stepped = False  # whether the optimizer has stepped in the current batch
        self._accumulates: bool | None = None  # whether gradients are accumulated; None: not known yet
        self._left: tuple[torch.nn.Parameter, Any] | None = None  # a parameter, and its gradient after the last batch
        self._batches = 0  # number of batches without a step; used only before the first step

    def note_step(self) -> None:
        if self._left is not None and not self.stepped:
            parameter, gradient = self._left
            self._accumulates = bool(self._accumulates) or (gradient() is not None and parameter.grad is gradient())
        self.stepped = True

    def close_step(self) -> bool:
        """Returns whether the optimizer has gradients that wait for a step."""
        self._left = None
        if self.stepped:
            self.stepped = False
            return False
        parameter = next((parameter for parameter in self.parameters() if parameter.grad is not None), None)
        if parameter is None:
            return False
        self._left = parameter, weakref.ref(parameter.grad)
        self._batches += 1
        return self._accumulates is True or (self._accumulates is None and self._batches <= LONGEST)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                yield getattr(parameter, "master_of", parameter)  # an fp32 copy's original has the gradient
