"""name_the_loss(): a cause is named where the checkpoints show it, and else what differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.check.program import CodePlace, read_python_file
from clusterdp.rehearse.judge.lost_state import Kept, name_the_loss, parts_made
from clusterdp.rehearse.state import Difference, EndState, Leaf, describe
from clusterdp.rehearse.state.end_state import Part

MODEL = Difference("model.weight", "differs in 8 of 8 elements", None, "model", 0.1)
RATE = Difference("optimizer.param_groups.0.lr", "0.1 against 0.2", None, "scheduler", 0.5, 0.1, 0.2)
BEST = Difference("best.pt:weight", "differs in 8 of 8 elements", None, "model", 0.1)
SCORE = Difference("last.pt:best_loss", "0.1 against 0.2", None, "metrics", 0.5, 0.1, 0.2)
OPTIMIZER = {"optimizer": CodePlace(Path("/p/train.py"), 2, "")}
SCALER = {"scaler": CodePlace(Path("/p/train.py"), 3, "")}
SCHEDULER = {"scheduler": CodePlace(Path("/p/train.py"), 4, "")}
ANEW = "is in no checkpoint, and starts anew after a resume"


def kept(made: dict[str, CodePlace], *keys: str, part: Part = "other", complete: bool = True) -> Kept:
    """A checkpoint with these keys."""
    return Kept(EndState({key: Leaf("number", "int", (), 0, part) for key in keys}, "last.pt"), made, complete)


@pytest.mark.parametrize(
    ("differences", "keeps", "said"),
    [
        ([MODEL], kept(OPTIMIZER), f"the optimizer (train.py:2) {ANEW}"),
        ([MODEL, RATE], kept(SCHEDULER), f"the scheduler (train.py:4) {ANEW}: the learning rate ends as 0.2, not 0.1"),
        (
            [BEST, SCORE],
            kept({}),
            (
                "best.pt and last.pt:best_loss differ, and all else is the same"
                " (best.pt:weight differs in 8 of 8 elements)"
            ),
        ),
    ],
)
def test_diagnosis_names_the_unsaved_part_or_else_the_differing_files(
    differences: list[Difference], keeps: Kept, said: str
) -> None:
    assert name_the_loss(differences, keeps) == said


@pytest.mark.parametrize(
    "keeps",
    [
        kept({}),
        kept(OPTIMIZER, "opt_d.param_groups.0.lr"),  # of another name than usual
        kept(OPTIMIZER, "mine.exp_avg"),
        kept(OPTIMIZER, "optimizer.m", part="optimizer"),
        kept(OPTIMIZER, complete=False),
        kept(SCALER, "s.growth_tracker"),
        kept(SCALER),  # no optimizer has skipped a step
        kept(SCHEDULER),  # no learning rate differs
    ],
)
def test_diagnosis_names_no_cause_without_evidence(keeps: Kept) -> None:
    assert name_the_loss([MODEL], keeps) == describe([MODEL])


def test_scheduler_with_its_epoch_count_in_a_checkpoint_is_not_blamed() -> None:
    assert name_the_loss([MODEL, RATE], kept(SCHEDULER, "sched.last_epoch")) == describe([MODEL, RATE])


def test_optimizer_is_not_blamed_if_paired_tensors_may_be_its_momentum() -> None:
    """The second of each shape may be its momentum, in a form of the program's own."""
    pair = {key: Leaf("tensor", "float32", (3,), 0, "model") for key in ("model.w", "mine.w")}
    keeps = Kept(EndState(pair, "last.pt"), OPTIMIZER, True)
    assert name_the_loss([MODEL], keeps) == describe([MODEL])
    single = Kept(EndState({"model.w": pair["model.w"]}, "last.pt"), OPTIMIZER, True)
    assert name_the_loss([MODEL], single).startswith("the optimizer (train.py:2)")
    files = EndState({"last.pt:model.w": pair["model.w"], "best.pt:model.w": pair["model.w"]}, "last.pt")
    assert name_the_loss([MODEL], Kept(files, OPTIMIZER, True)).startswith("the optimizer (train.py:2)")


def test_differing_metrics_alone_are_reported_without_naming_a_part() -> None:
    assert name_the_loss([replace(SCORE, key="loss")], kept(OPTIMIZER)) == "nothing but metrics differs: loss"


def test_part_created_by_the_program_is_found_with_its_code_line(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import torch\n# GradScaler() is for later\nscaler = torch.amp.GradScaler()\n")
    made = parts_made(read_python_file(program, tmp_path))
    assert {part: place.line for part, place in made.items()} == {"scaler": 3}
