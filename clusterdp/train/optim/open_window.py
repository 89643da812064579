"""OpenWindow: detects gradients that no optimizer has used yet, in a loop without accumulate=.

    for x, y in loop:                               # without accumulate=4
        (loss(model(x), y) / 4).backward()
        if (loop.step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

Gradients are in no checkpoint. A hook tells when an optimizer has stepped. If none has, and there are gradients, the
loop delays a save or a stop to the end of the window. That is exact. It knows the windows of one optimizer: if several
step at different batches, any step ends the window.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

if TYPE_CHECKING:
    from clusterdp.train.dist.group import Group

LONGEST = 32  # batches to wait at most where no window has ended yet: a stop must come all the same
SHORTEST = 8  # batches to wait at least: a step that is skipped for a loss that is not finite ends no window


class OpenWindow:
    """For the optimizers in `state`. `wait`: this rank has gradients that wait for a step."""

    def __init__(self, state: Mapping[str, Any]):
        parts = list(state.values())
        self._optimizers = [part for part in parts if isinstance(part, torch.optim.Optimizer)]
        self._modules = [part for part in parts if isinstance(part, torch.nn.Module)]
        self._stepped = False  # in the batch at hand
        self._batches = 0  # since then
        self._longest = 0  # window that has been seen
        self._put_off = 0  # how many batches, by now
        self.wait = False  # on this rank, after the last batch
        if self._optimizers:
            # Of all optimizers: one that wraps another may be in the state, and the other one steps.
            mine = weakref.ref(self)

            def note(*_: Any) -> None:
                if (gradients := mine()) is not None:
                    gradients._stepped = True

            weakref.finalize(self, register_optimizer_step_post_hook(note).remove)

    def close_step(self) -> None:
        """The loop is done with a batch."""
        if not self._optimizers:
            return
        self.wait = not self._stepped and any(parameter.grad is not None for parameter in self._parameters())
        self._batches += 1
        if not self.wait:
            self._longest = max(self._longest, self._batches)
            self._batches = 0
        self._stepped = False

    def put_off(self, group: Group) -> bool:
        """Collective, where all ranks would save or stop: whether they wait for another batch. They wait for about as
        many batches as the longest window had."""
        if not self._optimizers:
            return False
        wait, longest = group.agree(int(self.wait), self._longest)
        if not wait or self._put_off >= (max(longest, SHORTEST) if longest else LONGEST):
            self._put_off = 0
            return False
        self._put_off += 1
        return True

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]
        for module in self._modules:  # mixed precision has its optimizer step on copies
            yield from module.parameters()
