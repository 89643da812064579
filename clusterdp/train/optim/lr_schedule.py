"""A learning-rate schedule with linear warm-up and cosine decay, which fits nearly every training:

scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(100, 1000))
"""

from __future__ import annotations

import math
from collections.abc import Callable

from clusterdp.errors import ConfigError


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
