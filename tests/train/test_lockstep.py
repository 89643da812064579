"""A sharded model (FSDP2) runs on all ranks together: where they would part, all end with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run

FSDP = {"strategy": "fsdp", "timeout_s": 60.0}
MISTAKES = {
    "block": "clusterdp: model: rank 0 runs blocks.0 while rank 1 runs blocks.1, but what is sharded (FSDP2)",
    "layer": "clusterdp: model: on rank 1 these parameters had no part in the outputs, and on another they had: "
    "blocks.1.b.bias, blocks.1.b.weight.",
    "watch": "clusterdp: loop.watch: rank 0 has 2 items, and rank 1 more, but a model that is sharded (FSDP2) runs on",
    "nothing to evaluate": "clusterdp: rank 1 has nothing to evaluate, and a model that is sharded (FSDP2) runs on all",
}


@pytest.mark.parametrize("what", MISTAKES)
def test_fsdp_calls_differing_between_ranks_end_all_ranks_with_the_reason(tmp_path: Path, what: str) -> None:
    run = Run(tmp_path / "run", "tests.train.trainings:sharded", {"what": what}, train=FSDP)
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=2, env=run.attempt("1.0")) as ranks:
        assert ranks.join() == [8, 8], ranks.log
    for rank in range(2):
        assert MISTAKES[what] in ranks.rank_log(rank)
        assert "Traceback" not in ranks.rank_log(rank)
        assert "another rank's failure" not in ranks.rank_log(rank)  # each has said it itself


def test_fsdp_trainer_fits_predicts_and_evaluates_uneven_data_like_one_process(
    tmp_path: Path,
) -> None:
    """51 samples to evaluate, over two ranks: 26 and 25, which in fives are six batches and five; 17 steps to train."""
    answers = []
    for size in (1, 2):
        run = Run(tmp_path / f"run{size}", "x:y")
        program = programs.with_job, "tests.train.trainings:sharded", {"what": ""}, FSDP if size > 1 else {}
        with running(tmp_path / f"ranks{size}", *program, size=size, env=run.attempt("1.0")) as ranks:
            answers.append(ranks.answers)
    (alone,), (first, second) = answers
    assert first == second
    for row, expected in zip(first[0], alone[0], strict=True):
        assert row == pytest.approx(expected, rel=1e-4)
    assert first[1] == [pytest.approx(row, abs=1e-4) for row in alone[1]]
    assert first[2] == pytest.approx(alone[2], rel=1e-4)
    assert first[0][1]["loss"] < first[0][0]["loss"]
