"""Tensors and dicts of values are in a state as they are, and a restore fills them in place."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from clusterdp.checkpoint import Checkpointer, PerRank, StateError
from tests.checkpoint.gang import on_ranks


def test_restore_fills_dicts_and_tensors_in_place(tmp_path: Path) -> None:
    best: dict[str, Any] = {"loss": 0.25, "at": {"epoch": 3}, "seen": torch.arange(3), "names": ["a"]}
    Checkpointer(tmp_path, {"best": best, "mean": torch.ones(2), "count": {"steps": 7}}).save(1)
    inner, seen, mean = {"epoch": 0}, torch.zeros(3, dtype=torch.int64), torch.zeros(2)
    again: dict[str, Any] = {"loss": math.inf, "at": inner, "seen": seen, "old": 1}
    count: dict[str, int] = {}
    restored = Checkpointer(tmp_path, {"best": again, "mean": mean, "count": count}).restore()
    assert restored is not None
    assert restored.exact
    assert {**again, "seen": seen.tolist()} == {**best, "seen": [0, 1, 2]}
    assert again["at"] is inner
    assert again["seen"] is seen
    assert mean.tolist() == [1, 1]
    assert count == {"steps": 7}


def test_restored_parameter_outside_a_module_keeps_its_adam_moments(tmp_path: Path) -> None:
    def built() -> tuple[nn.Parameter, torch.optim.Optimizer]:
        alpha = nn.Parameter(torch.zeros(()))
        return alpha, torch.optim.Adam([alpha])

    alpha, optimizer = built()
    alpha.sum().backward()
    optimizer.step()
    Checkpointer(tmp_path, {"alpha": alpha, "optimizer": optimizer}).save(1)
    other, again = built()
    Checkpointer(tmp_path, {"alpha": other, "optimizer": again}).restore()
    assert torch.equal(other, alpha)
    assert torch.equal(again.state[other]["exp_avg"], optimizer.state[alpha]["exp_avg"])


def test_restoring_into_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"mean": torch.ones(2)}).save(1)
    with pytest.raises(
        StateError, match=r"mean: .* float32 of \(2,\) when it was saved, and is float32 of \(3,\) here"
    ):
        Checkpointer(tmp_path, {"mean": torch.ones(3)}).restore()


def test_plain_number_as_state_is_refused_with_the_dict_to_write(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"best: a float has no state_dict\(\) .* a dict of values, as in"):
        Checkpointer(tmp_path, {"best": 0.5})


def test_unsavable_value_in_a_dict_is_refused_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"best/fn: a function cannot be saved"):
        Checkpointer(tmp_path, {"best": {"fn": test_restoring_into_a_tensor_of_another_shape_is_refused}}).save(1)


def test_tensor_subclass_is_refused_before_the_first_save(tmp_path: Path) -> None:
    """Such as a quantised weight: a run would else end ten minutes later."""

    class Quantised(torch.Tensor):
        pass

    model = nn.Linear(2, 2)
    model.register_buffer("scale", torch.ones(1).as_subclass(Quantised))
    with pytest.raises(StateError, match=r"model/scale: a .*Quantised cannot be saved"):
        Checkpointer(tmp_path, {"model": model})


def _resumed(
    folder: Path, built: Callable[[], dict[str, Any]], train: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Builds a state, trains it, saves it; and returns the state of a second program, built anew and restored."""
    before = built()
    checkpointer = Checkpointer(folder, {name: thing for name, thing in before.items() if not name.startswith("_")})
    assert checkpointer.restore() is None
    train(before)
    checkpointer.save(1)
    after = built()
    again = Checkpointer(folder, {name: thing for name, thing in after.items() if not name.startswith("_")})
    assert again.restore() is not None
    return after


def test_restore_fills_lists_arrays_and_deques_with_other_names(tmp_path: Path) -> None:
    def built() -> dict[str, Any]:
        history, values, recent = [[0.0]], numpy.zeros(3), deque[int](maxlen=2)
        memo = {"history": history, "deep": {"values": values}, "pair": (recent, 1)}
        return {"memo": memo, "_held": (history, history[0], values, recent)}

    def train(state: dict[str, Any]) -> None:
        history, first, values, recent = state["_held"]
        first.append(0.5)
        history.append([1.0])
        values += [1, 2, 3]
        recent.extend([4, 5, 6])

    after = _resumed(tmp_path, built, train)
    history, first, values, recent = after["_held"]
    assert history == [[0.0, 0.5], [1.0]]
    assert history[0] is first
    assert values.tolist() == [1, 2, 3]
    assert recent == deque([5, 6], maxlen=2)
    memo = after["memo"]
    assert memo["history"] is history
    assert memo["deep"]["values"] is values
    assert memo["pair"][0] is recent


def test_restore_keeps_the_order_of_a_dict(tmp_path: Path) -> None:
    def train(state: dict[str, Any]) -> None:
        state["cache"]["a"] = state["cache"].pop("a")
        state["cache"]["deep"][1] = state["cache"]["deep"].pop(1)

    after = _resumed(tmp_path, lambda: {"cache": {"a": 1, "deep": {1: 1, 2: 2}, "b": 2}}, train)
    assert [*after["cache"]] == ["deep", "b", "a"]
    assert [*after["cache"]["deep"]] == [2, 1]


def test_best_weights_do_not_overwrite_the_model_they_aliased(tmp_path: Path) -> None:
    """`best = {"weights": net.state_dict()}` holds the model's tensors until a better epoch replaces them."""

    def built() -> dict[str, Any]:
        net = nn.Linear(2, 2, bias=False)
        return {"best": {"weights": net.state_dict(), "loss": 9.0}, "net": net}

    def train(state: dict[str, Any]) -> None:
        state["best"]["weights"] = {key: value.clone() + 5 for key, value in state["net"].state_dict().items()}
        with torch.no_grad():
            state["net"].weight.fill_(1)

    after = _resumed(tmp_path, built, train)
    assert after["net"].weight.tolist() == [[1, 1], [1, 1]]
    assert after["best"]["weights"]["weight"].min() > 3


def test_object_with_two_paths_stays_one_object_after_a_restore(tmp_path: Path) -> None:
    def train(state: dict[str, Any]) -> None:
        row = {"loss": 0.5}
        state["log"]["rows"].append(row)
        state["best"]["row"] = row

    after = _resumed(tmp_path, lambda: {"best": {"row": None}, "log": {"rows": []}}, train)
    assert after["best"]["row"] == {"loss": 0.5}
    assert after["best"]["row"] is after["log"]["rows"][0]


def test_aliased_lists_are_separate_if_they_were_saved_separately(tmp_path: Path) -> None:
    def built() -> dict[str, Any]:
        empty: list[int] = []
        return {"a": {"x": empty}, "b": {"x": empty, "y": empty}, "_empty": empty}

    def train(state: dict[str, Any]) -> None:
        state["a"]["x"] = [1]
        state["b"]["y"].append(2)

    after = _resumed(tmp_path, built, train)
    assert (after["a"], after["b"], after["_empty"]) == ({"x": [1]}, {"x": [2], "y": [2]}, [2])
    assert after["b"]["x"] is after["b"]["y"] is after["_empty"]


def test_tensors_moved_within_a_list_keep_their_other_names(tmp_path: Path) -> None:
    def built() -> dict[str, Any]:
        zero, one = torch.zeros(1), torch.ones(1)
        return {"window": {"last": [zero, one]}, "_held": (zero, one)}

    def train(state: dict[str, Any]) -> None:
        last = state["window"]["last"]
        last.append(torch.full((1,), 7.0))
        last.pop(0)

    after = _resumed(tmp_path, built, train)
    assert [each.item() for each in after["window"]["last"]] == [1, 7]
    assert [each.item() for each in after["_held"]] == [0, 1]
    assert after["window"]["last"][0] is after["_held"][1]


def save_and_restore_own(rank: int, size: int, folder: str) -> dict[str, Any]:
    def built() -> dict[str, Any]:
        held: dict[str, Any] = {"dict": {"h": torch.zeros(2), "seen": []}, "tensor": torch.zeros(1), "object": Own()}
        return held

    def state_of(held: dict[str, Any]) -> dict[str, Any]:
        return {name: PerRank(thing) for name, thing in held.items()}

    held = built()
    checkpointer = Checkpointer(folder, state_of(held))
    held["dict"]["h"] = torch.full((2,), rank + 1.0)
    held["dict"]["seen"].append(rank)
    held["tensor"] += rank
    held["object"].value = rank
    checkpointer.save(1, compare_all=True)
    again = built()
    seen = again["dict"]["seen"]
    restored = Checkpointer(folder, state_of(again)).restore()
    assert restored is not None
    assert restored.exact
    assert seen is again["dict"]["seen"]
    return {"h": again["dict"]["h"].tolist(), "seen": seen, "rest": [again["tensor"].item(), again["object"].value]}


class Own:
    value = -1

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def test_each_rank_restores_its_own_dict_tensor_and_object(tmp_path: Path) -> None:
    answers = on_ranks(2, save_and_restore_own, str(tmp_path))
    assert answers == [{"h": [rank + 1.0] * 2, "seen": [rank], "rest": [rank, rank]} for rank in (0, 1)]


def test_number_of_one_rank_is_refused_with_both_remedies(tmp_path: Path) -> None:
    answers = on_ranks(2, save_accuracy, str(tmp_path))
    assert answers[0] == answers[1]
    assert "best/accuracy: it is not the same here as on rank 0" in answers[0]
    assert "job.mean(x)" in answers[0]
    assert "{'best': job.per_rank(best)}" in answers[0]


def save_accuracy(rank: int, size: int, folder: str) -> str:
    with pytest.raises(StateError) as caught:
        Checkpointer(folder, {"best": {"accuracy": 0.5 + rank}}).save(1)
    return str(caught.value)


GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch": (torch.Generator, lambda it: torch.rand(3, generator=it).tolist()),
    "numpy": (lambda: numpy.random.default_rng(5), lambda it: it.standard_normal(3).tolist()),
    "old numpy": (lambda: numpy.random.RandomState(5), lambda it: it.randn(3).tolist()),  # one of a pair is kept
    "Python": (lambda: random.Random(5), lambda it: [it.gauss(0, 1) for _ in range(3)]),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_generator_in_the_state_continues_after_a_restore(tmp_path: Path, kind: str) -> None:
    build, draw = GENERATORS[kind]
    generator = build()
    draw(generator)
    Checkpointer(tmp_path, {"rng": generator}).save(1)
    rest, again = draw(generator), build()
    restored = Checkpointer(tmp_path, {"rng": again}).restore()
    assert restored is not None
    assert restored.exact, restored.differences
    assert draw(again) == rest


def draws(rank: int, size: int, folder: str, resume: bool) -> Any:
    generator = random.Random(rank)
    checkpointer = Checkpointer(folder, {"rng": generator})
    if resume:
        checkpointer.restore()
    else:
        generator.random()
        checkpointer.save(1)
    return generator.random()


def test_each_rank_restores_its_own_generator(tmp_path: Path) -> None:
    first = on_ranks(2, draws, str(tmp_path), False)
    assert on_ranks(2, draws, str(tmp_path), True) == first
    assert first[0] != first[1]


def test_generator_without_a_readable_state_is_refused(tmp_path: Path) -> None:
    class Dice(random.Random):
        def getstate(self) -> Any:
            raise NotImplementedError

    with pytest.raises(StateError, match="Dice has no state that can be read"):
        Checkpointer(tmp_path, {"rng": Dice()})
