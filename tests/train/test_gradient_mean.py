"""Gradients of models whose parts are called one by one: the mean over the ranks, after each backward pass."""

from __future__ import annotations

from typing import Any

import pytest

from tests.train import programs
from tests.train.ranks import running

Answers = list[Any]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What each case of tests.train.parts gives on each of 2 ranks."""
    with running(
        tmp_path_factory.mktemp("parts"), programs.with_job, "tests.train.parts:all_cases", {}, size=2
    ) as ranks:
        return ranks.answers


def case(answers: Answers, name: str) -> list[Any]:
    return [answer[name] for answer in answers]


def near(found: Any, expected: Any) -> bool:
    """Whether sums in another order could give these gradients, parameter by parameter."""
    return all(one == pytest.approx(other, rel=1e-4, abs=1e-6) for one, other in zip(found, expected, strict=True))


def test_gradients_of_parts_are_the_mean_over_ranks(answers: Answers) -> None:
    (found, mean, weights), (others, _, other_weights) = case(answers, "in_chunks")
    assert found == others
    assert near(found, mean)
    assert weights == other_weights  # those of rank 0


def test_backward_pass_leaves_parts_outside_it_without_gradients(answers: Answers) -> None:
    (found, mean), (others, _) = case(answers, "one_part")
    assert found == others
    assert found[:2] == [None, None]
    assert near(found[2:], mean[2:])


def test_gradient_sync_off_lets_gradients_of_parts_add_up(answers: Answers) -> None:
    (local, found, mean), (other_local, others, _) = case(answers, "accumulated")
    assert local != other_local
    assert found == others
    assert near(found, mean)


def test_ranks_share_the_gradient_of_a_part_used_on_one_rank(answers: Answers) -> None:
    found, others = case(answers, "on_one_rank")
    assert found == others
    assert found[3] == [2.0] * 64  # 4 samples on one of 2 ranks


def test_frozen_part_stays_frozen_and_is_averaged_once_it_is_trained(answers: Answers) -> None:
    (still, first, found, mean), (_, others_first, others, _) = case(answers, "frozen")
    assert still == [False, False, True, True]
    assert first == others_first
    assert first[:2] == [None, None]
    assert found == others
    assert near(found, mean)


def test_failed_backward_pass_leaves_the_next_one_right(answers: Answers) -> None:
    (told, found, mean), (_, others, _) = case(answers, "failed")
    assert told == "ValueError: refused"
    assert found == others
    assert near(found, mean)


def test_sparse_gradients_stay_sparse_and_are_averaged(answers: Answers) -> None:
    (is_sparse, rows, found), (_, _, others) = case(answers, "sparse")
    assert is_sparse
    assert rows == [0, 1, 5]
    assert found == others


def test_sparse_gradient_of_one_rank_is_shared_by_all(answers: Answers) -> None:
    found, others = case(answers, "sparse_on_one_rank")
    assert found == others
    assert [row for row in range(8) if any(found[0][2 * row : 2 * row + 2])] == [3]


def test_averaged_model_is_freed_with_its_last_reference(answers: Answers) -> None:
    assert case(answers, "forgotten") == [True, True]


def test_gradient_cleared_by_a_hook_is_refused_with_the_remedy(answers: Answers) -> None:
    for told in case(answers, "cleared"):
        assert told.startswith("TrainError: model: a hook has cleared a gradient")
        assert "after backward()" in told


def test_passes_with_and_without_forward_of_ddp_give_the_same_mean(answers: Answers) -> None:
    (found, mean), (others, _) = case(answers, "beside_ddp")
    assert found == others
    for gradients in found:
        assert near(gradients, mean)


def test_all_ranks_have_the_buffers_of_rank_0_after_each_batch(answers: Answers) -> None:
    first, other = case(answers, "buffers")
    assert first == other
    assert len(set(first)) == 3


def test_communication_hook_is_refused_for_a_model_without_forward(tmp_path: Any) -> None:
    hook = {"comm_hook": "bf16"}
    with running(tmp_path, programs.with_job, "tests.train.parts:hooked", {}, hook, size=2) as ranks:
        for told in ranks.answers:
            assert told.startswith("ConfigError: train.comm_hook: bf16 works in DistributedDataParallel")
