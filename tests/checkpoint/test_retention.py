"""Retention: what it may delete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterdp.checkpoint.manifest import CheckpointInfo
from clusterdp.checkpoint.retention import doomed


def commits(count: int) -> list[CheckpointInfo]:
    return [CheckpointInfo(100 - n, f"{n:012x}-0001", f"{n:012x}-0001", n, 0.0, 1, 1, "") for n in range(1, count + 1)]


numbers = st.sets(st.integers(1, 12))


@given(st.integers(0, 12), st.integers(1, 5), st.none() | st.integers(1, 5), numbers, numbers, numbers)
def test_what_is_doomed_is_never_among_what_must_stay(
    count: int, keep_last: int, keep_every: int | None, bad: set[int], unsure: set[int], pinned: set[int]
) -> None:
    def tokens(orders: set[int]) -> set[str]:
        return {f"{n:012x}-0001" for n in orders}

    victims = doomed(
        commits(count), keep_last, keep_every, bad=tokens(bad), unsure=tokens(unsure), pinned=tokens(pinned)
    )
    gone = {info.order for info in victims}
    good = [n for n in range(1, count + 1) if n not in bad | unsure]
    newest = set(good[-keep_last:])
    assert not gone & (newest | unsure | pinned)
    assert not gone & {n for n in good if keep_every and n % keep_every == 0}
    # And nothing else stays, but what is newer than the oldest of the newest.
    stay = newest | unsure | pinned | {n for n in good if keep_every and n % keep_every == 0}
    if len(good) > keep_last:
        assert gone == {n for n in range(1, min(newest)) if n not in stay}
    else:
        assert not gone
