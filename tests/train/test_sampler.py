"""The sampler: a resumed epoch that repeats or skips samples trains another model, and nobody sees it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler

from clusterdp.errors import StateError
from clusterdp.train import ResumableSampler

sizes = st.integers(1, 60)
worlds = st.integers(1, 7)


def of(size: int, rank: int, world: int, **options: object) -> ResumableSampler:
    return ResumableSampler(size, rank=rank, world_size=world, seed=3, **options)  # type: ignore[arg-type]


@given(size=sizes, world=worlds, drop_last=st.booleans(), shuffle=st.booleans(), epoch=st.integers(0, 3))
def test_resumable_sampler_equals_torchs_distributed_sampler(
    size: int, world: int, drop_last: bool, shuffle: bool, epoch: int
) -> None:
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
def test_resumed_sampler_continues_at_any_sample(size: int, world: int, drop_last: bool, data: st.DataObject) -> None:
    whole = list(of(size, 0, world, drop_last=drop_last))
    done = data.draw(st.integers(0, len(whole)))
    trained = of(size, 0, world, drop_last=drop_last)
    trained.advance(done)
    resumed = of(size, 0, world, drop_last=drop_last)
    resumed.load_state_dict(trained.state_dict())
    assert list(resumed) == whole[done:]
    assert (resumed.left, len(resumed)) == (len(whole) - done, len(whole))


@given(size=sizes, before=worlds, after=worlds, data=st.data())
def test_sampler_resumed_on_another_number_of_ranks_gives_the_remaining_samples(
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


@given(size=sizes, worlds=st.lists(st.tuples(worlds, st.integers(0, 5)), max_size=6), last=worlds, drop=st.booleans())
def test_sampler_gives_each_sample_once_over_changing_numbers_of_ranks(
    size: int, worlds: list[tuple[int, int]], last: int, drop: bool
) -> None:
    state, seen = of(size, 0, 1).state_dict(), []
    for world, steps in [*worlds, (last, size)]:
        ranks = [of(size, rank, world, drop_last=drop) for rank in range(world)]
        for sampler in ranks:
            sampler.load_state_dict(state)
        full = max(0, size - ranks[0].consumed) // world  # steps without padding
        steps = len(ranks[0]) if (world, steps) == (last, size) else min(steps, full)
        seen += [index for sampler in ranks for index in list(sampler)[:steps]]
        ranks[0].advance(steps)
        state = ranks[0].state_dict()
    assert len(seen) - len(set(seen)) < last  # repeated only to fill up at the end
    assert size - len(set(seen)) < (last if drop else 1)


def test_sampler_restarts_in_another_order_only_at_a_new_epoch() -> None:
    sampler = of(50, 0, 2)
    first = list(sampler)
    sampler.advance(10)
    sampler.set_epoch(0)
    assert (sampler.left, len(sampler)) == (15, 25)
    sampler.set_epoch(1)
    assert (sampler.left, len(sampler)) == (25, 25)
    assert list(sampler) != first


def test_partial_last_batch_ends_the_samplers_epoch() -> None:
    sampler = of(10, 0, 2)
    for _ in range(2):
        sampler.advance(4)
    assert sampler.consumed == 10
    assert list(sampler) == []


def test_sampler_state_of_another_data_set_size_is_refused() -> None:
    with pytest.raises(StateError, match=r"50 samples, this data set has 51"):
        of(51, 0, 2).load_state_dict(of(50, 0, 2).state_dict())


def test_sampler_refuses_a_rank_outside_the_world_size() -> None:
    with pytest.raises(ValueError, match="rank: 2"):
        of(10, 2, 2)


WEIGHTS = [0.0, 1.0, 3.0, 1.0, 2.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("replacement", [True, False])
def test_wrapped_sampler_order_is_the_same_on_all_ranks_and_attempts(replacement: bool) -> None:
    def make(rank: int, world: int, epoch: int = 0) -> ResumableSampler:
        weighted = WeightedRandomSampler(WEIGHTS, 7 if not replacement else 40, replacement)
        sampler = ResumableSampler.over(weighted, rank=rank, world_size=world, seed=3)
        sampler.set_epoch(epoch)
        return sampler

    whole = list(make(0, 1))
    torch.manual_seed(99)  # a new process begins somewhere else
    ranks = [list(make(rank, 2)) for rank in range(2)]
    assert [ranks[i % 2][i // 2] for i in range(len(whole))] == whole
    resumed = make(0, 1)
    resumed.advance(5)
    assert list(resumed) == whole[5:]
    assert 0 not in whole
    assert list(make(0, 1, epoch=1)) != whole
    assert (sorted(whole) == list(range(1, 8))) is (not replacement)


def test_wrapped_sampler_draws_no_global_random_numbers() -> None:
    before = torch.get_rng_state()
    orders = []
    for seed in (1, 2):
        own = RandomSampler(range(20), generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
        orders.append(list(ResumableSampler.over(own, rank=0, world_size=1, seed=3)))
    assert orders[0] == orders[1]
    assert torch.equal(torch.get_rng_state(), before)


def test_numbered_sampler_yields_pairs_of_place_and_sample_index() -> None:
    sampler = of(5, 1, 2, shuffle=False)
    sampler.numbered = True
    assert list(sampler) == [(1, 1), (3, 3), (5, 0)]


def test_resumable_sampler_refuses_distributed_samplers_and_samplers_of_wrong_length() -> None:
    theirs: DistributedSampler[int] = DistributedSampler(range(4), num_replicas=2, rank=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="divided its samples"):
        ResumableSampler.over(theirs)
    wrong: Any = type("Wrong", (), {"__len__": lambda _: 3, "__iter__": lambda _: iter([0, 1])})()
    with pytest.raises(ValueError, match=r"gave 2 samples, and its len\(\) is 3"):
        list(ResumableSampler.over(wrong, rank=0, world_size=1))
