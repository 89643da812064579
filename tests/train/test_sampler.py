"""The sampler: a resumed epoch that repeats or skips samples trains another model, and nobody sees it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from clusterdp.errors import StateError
from clusterdp.train import ResumableSampler

sizes = st.integers(1, 60)
worlds = st.integers(1, 7)


def of(size: int, rank: int, world: int, **options: object) -> ResumableSampler:
    return ResumableSampler(size, rank=rank, world_size=world, seed=3, **options)  # type: ignore[arg-type]


@given(size=sizes, world=worlds, drop_last=st.booleans(), shuffle=st.booleans(), epoch=st.integers(0, 3))
def test_it_gives_what_torchs_sampler_gives(size: int, world: int, drop_last: bool, shuffle: bool, epoch: int) -> None:
    if drop_last and size < world:
        return  # torch's then fails
    for rank in range(world):
        theirs: DistributedSampler[int] = DistributedSampler(
            range(size),  # type: ignore[arg-type]
            num_replicas=world,
            rank=rank,
            shuffle=shuffle,
            seed=3,
            drop_last=drop_last,
        )
        ours = of(size, rank, world, shuffle=shuffle, drop_last=drop_last)
        theirs.set_epoch(epoch)
        ours.set_epoch(epoch)
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)


@given(size=sizes, world=worlds, drop_last=st.booleans(), data=st.data())
def test_resumed_at_any_sample_it_goes_on_as_if_it_had_never_stopped(
    size: int, world: int, drop_last: bool, data: st.DataObject
) -> None:
    whole = list(of(size, 0, world, drop_last=drop_last))
    done = data.draw(st.integers(0, len(whole)))
    trained = of(size, 0, world, drop_last=drop_last)
    trained.advance(done)
    resumed = of(size, 0, world, drop_last=drop_last)
    resumed.load_state_dict(trained.state_dict())
    assert list(resumed) == whole[done:]
    assert len(resumed) == len(whole) - done


@given(size=sizes, before=worlds, after=worlds, data=st.data())
def test_another_number_of_ranks_shares_out_exactly_what_is_left(
    size: int, before: int, after: int, data: st.DataObject
) -> None:
    first = of(size, 0, before)
    steps = data.draw(st.integers(0, size // before))
    first.advance(steps)
    seen = [index for rank in range(before) for index in list(of(size, rank, before))[:steps]]
    for rank in range(after):
        resumed = of(size, rank, after)
        resumed.load_state_dict(first.state_dict())
        seen += list(resumed)
    assert set(seen) == set(range(size))
    assert len(seen) < size + after  # repeated only to fill up


def test_an_epoch_begins_anew_and_in_another_order() -> None:
    sampler = of(50, 0, 2)
    first = list(sampler)
    sampler.advance(10)
    sampler.set_epoch(0)
    assert len(sampler) == 15
    sampler.set_epoch(1)
    assert len(sampler) == 25
    assert list(sampler) != first


def test_the_last_partial_batch_ends_the_epoch_and_no_more() -> None:
    sampler = of(10, 0, 2)
    for _ in range(2):
        sampler.advance(4)
    assert sampler.consumed == 10
    assert list(sampler) == []


def test_a_data_set_of_another_size_is_refused() -> None:
    with pytest.raises(StateError, match=r"50 samples, this data set has 51"):
        of(51, 0, 2).load_state_dict(of(50, 0, 2).state_dict())


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match="rank: 2"):
        of(10, 2, 2)
