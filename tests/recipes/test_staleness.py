"""The staleness bound, over any order of events: kept, and never a standstill."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from clusterdp.recipes.staleness import StalenessBound


@given(workers=st.integers(1, 6), slack=st.integers(0, 4), seed=st.integers(0, 2**32))
def test_no_gradient_is_ever_older_than_agreed_and_there_is_always_one_to_apply(
    workers: int, slack: int, seed: int
) -> None:
    most = workers - 1 + slack
    bound = StalenessBound(most)
    computing: set[int] = set()
    held: list[int] = []  # in the order in which they came
    chance = random.Random(seed)
    for _ in range(200):
        worker = chance.randrange(workers)
        if worker in computing:
            computing.remove(worker)
            held.append(worker)
        elif worker not in held:
            bound.pulled(worker)
            computing.add(worker)
        while (ready := next((worker for worker in held if bound.may_apply(worker)), None)) is not None:
            held.remove(ready)
            assert bound.applied(ready) <= most
        assert computing or not held, "all have pushed, and none may be applied"


def test_the_fast_one_is_held_back_until_the_slow_one_has_come() -> None:
    bound = StalenessBound(most=1)
    for worker in (1, 2):
        bound.pulled(worker)
    assert bound.may_apply(1) and bound.applied(1) == 0
    bound.pulled(1)
    assert not bound.may_apply(1), "worker 2's gradient would be two updates old"
    assert bound.may_apply(2) and bound.applied(2) == 1
    assert bound.may_apply(1) and bound.applied(1) == 1
