"""describe(): what differs, by part, and no cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterdp.rehearse.state import Difference, describe

W = Difference("model.weight", "differs in 8 of 8 elements, by at most 0.1", None, "model", 0.1)
B = replace(W, key="model.b", what="1 against 2")
RNG = Difference("rng.1", "differs in 20 of 5056 elements", None, "rng", 0.1)
LOSS = Difference("log_history.3.loss", "0.1 against 0.2", None, "metrics", 0.5, 0.1, 0.2)


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([], ""),
        (
            [RNG, W, B],
            ("the model differs in 2 values (model.b 1 against 2; model.weight differs in 8 of 8 elements, by at most"
            " 0.1), the random numbers' state differs in 1 value (rng.1 differs in 20 of 5056 elements)"),
        ),
        ([W, W, B], ("the model differs in 3 values (model.b 1 against 2; model.weight differs in 8 of 8 elements,"
            " by at most 0.1; ...)")),
        ([LOSS, replace(LOSS, key="log_history.4.loss")], "nothing but metrics differs: log_history.*.loss"),
    ],
)  # fmt: skip
def test_describe_groups_differences_by_part(differences: list[Difference], said: str) -> None:
    assert describe(differences) == said


def test_describe_reports_a_key_prefix_if_only_names_differ() -> None:
    gone = replace(W, what="is missing")
    new = replace(W, key="model.module.weight", what="is new")
    said = "the names of the values differ by the prefix `module.` alone, e.g. model.weight"
    assert describe([gone, new]) == said
    assert "prefix" not in describe([gone, new, B])
    assert "prefix" not in describe([gone, replace(new, key="model.other")])
