"""StalenessBound: which gradients a server may apply, so that none is ever older than agreed."""

from __future__ import annotations


class StalenessBound:
    """`version` counts the updates of the weights. No gradient is applied to a version more than `most` newer than the
    one that it was computed on; with `most` of at least workers - 1, the oldest gradient may always be applied.

    The invariant: if all that are under way were applied now, the oldest first, none would be too old.
    """

    def __init__(self, most: int):
        self.most = most
        self.version = 0
        self._under_way: dict[int, int] = {}  # worker -> the version that it computes on

    def pulled(self, worker: int) -> None:
        """It has the present weights, and owes a gradient. It comes last, after workers - 1 others: the invariant."""
        self._under_way[worker] = self.version

    def may_apply(self, worker: int) -> bool:
        """Whether the invariant holds after the gradient that it owes has been applied now."""
        others = sorted(version for other, version in self._under_way.items() if other != worker)
        return all(self.version + 1 + turn - version <= self.most for turn, version in enumerate(others))

    def applied(self, worker: int) -> int:
        """Its gradient has been. Returns how stale it was."""
        stale = self.version - self._under_way.pop(worker)
        self.version += 1
        return stale
