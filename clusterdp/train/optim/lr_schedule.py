"""A learning-rate schedule with linear warm-up and cosine decay, which fits nearly every training:

scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(100, 1000))

Schedules compares a restored schedule with the run, whose number of steps may be another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import checked
from clusterdp.train.output.say import say

if TYPE_CHECKING:
    from clusterdp.checkpoint import Restored

LENGTHS = ("T_max", "total_steps", "total_iters", "milestones", "step_size", "T_0")  # attributes of torch's schedulers


@checked
def warmup_cosine(warmup: int, total: int, floor: float = 0.0) -> Callable[[int], float]:
    """Returns a function from the optimizer's step to the learning rate's factor, which rises to 1 in `warmup` steps,
    and falls to `floor` at step `total`."""
    if not 0 <= warmup <= total or total < 1:
        raise ConfigError(f"warmup_cosine: {warmup} steps of warm-up in {total} in all. Use 0 to {total}.")

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))

    return factor


class Schedules:
    """The schedulers of a state, as the program has made them. A restored scheduler has the lengths of the checkpoint,
    which the program may have computed from len(loader), for another number of ranks."""

    def __init__(self, state: Mapping[str, Any]):
        self._parts = {name: part for name, part in state.items() if isinstance(part, LRScheduler)}
        self._made = {name: _lengths(part) for name, part in self._parts.items()}

    def say(self, restored: Restored | None, steps: int | None, accumulate: int) -> None:
        """Prints which schedules do not fit the run after a restore. steps: the run's, of which an optimizer's step has
        `accumulate`."""
        for line in self._differences(restored.meta.get("total"), steps, accumulate) if restored is not None else ():
            say(f"clusterdp: {line}")

    def say_made(self, batches: int, steps: int | None) -> None:
        """Prints which schedules the program has made for the number of this rank's batches, `batches`, in the place of
        that of the run's steps, which is another one."""
        for name, lengths in self._made.items():
            for kind, length in lengths:
                if steps is not None and length == batches != steps:
                    say(
                        f"clusterdp: state.{name}: its {kind} is {length}, as epochs x len(loader) on this number of "
                        f"ranks. The run has {steps} steps: make it with job.steps(loader, epochs).",
                        error=True,
                    )

    def _differences(self, was: int | None, now: int | None, accumulate: int) -> list[str]:
        found = []
        for name, part in self._parts.items():
            for (kind, length), made in zip(_lengths(part), self._made[name], strict=False):
                if length != made[1]:
                    found.append(
                        f"state.{name}: its {kind} is {length} by the checkpoint, and this attempt has made it with "
                        f"{made[1]}. {length} holds: the learning rate no longer fits the run's steps."
                    )
                elif was and now and was != now and length in (was, -(-was // accumulate)):
                    found.append(
                        f"state.{name}: its {kind} is {length}, for a run of {was} steps; the run has {now} now, which "
                        "the learning rate does not fit."
                    )
            if isinstance(part, LambdaLR):
                step, rates = part.last_epoch, part.get_last_lr()
                here = [base * factor(step) for base, factor in zip(part.base_lrs, part.lr_lambdas, strict=True)]
                if not all(math.isclose(*pair, rel_tol=1e-6, abs_tol=1e-12) for pair in zip(rates, here, strict=True)):
                    found.append(
                        f"state.{name}: at its step {step}, the learning rate was {rates[0]:.4g}, and its function, "
                        f"which is not in the checkpoint, now gives {here[0]:.4g}."
                    )
        return found


def _each(scheduler: Any) -> Iterator[Any]:
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from _each(inner)


def _lengths(scheduler: Any) -> list[tuple[str, Any]]:
    every = [(each, name) for each in _each(scheduler) for name in LENGTHS]
    found = [(f"{type(each).__name__}'s {name}", getattr(each, name, None)) for each, name in every]
    return [(kind, sorted(length) if isinstance(length, Mapping) else length) for kind, length in found if length]
