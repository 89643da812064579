from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.check.program import Place, look_at_file
from clusterdp.rehearse.judge.lost_state import POSITION, Kept, name_the_loss
from clusterdp.rehearse.judge.program_parts import parts_made
from clusterdp.rehearse.state import Difference, EndState, Leaf

MODEL = Difference("model.weight", "differs in 8 of 8 elements", None, "model", 0.1)
RATE = Difference("optimizer.param_groups.0.lr", "0.1 against 0.2", None, "scheduler", 0.5, 0.1, 0.2)
RNG = Difference("rng.1", "differs in 20 of 5056 elements", None, "rng", 0.1)
BEST = Difference("best.pt:weight", "differs in 8 of 8 elements", None, "model", 0.1)
SCORE = Difference("last.pt:best_loss", "0.1 against 0.2", None, "metrics", 0.5, 0.1, 0.2)
MADE = {"scaler": Place(Path("/p/train.py"), 3, ""), "scheduler": Place(Path("/p/train.py"), 4, "")}
OPTIMIZER = {"optimizer": Place(Path("/p/train.py"), 2, "")}
DRAWS = {"draws": Place(Path("/p/train.py"), 5, "")}
RESTORES = {"restores-rng": Place(Path("/p/train.py"), 9, "")}
SAMPLES = {"samples": Place(Path("/p/train.py"), 6, "")}
PERHAPS = {"scaler": Place(Path("/p/train.py"), 3, "scaler = GradScaler(enabled=half)")}
UNSURE = "the GradScaler (train.py:3), if it was enabled, is in no checkpoint, and starts anew after a resume"
ANEW = (
    "the scheduler (train.py:4) is in no checkpoint, and starts anew after a resume: "
    "the learning rate ends as 0.2, not 0.1"
)
BEATEN = (
    "the best model (best.pt) is another, as is its score (last.pt:best_loss), and all else is the same: "
    "a resume does not restore the best score so far, and the next model overwrites the best one"
)
THOUGH = "though train.py:9 does so"
RANDOM = "the random numbers' state is in no checkpoint"


def kept(*parts: str, made: dict[str, Place] | None = None, generators: int = 0) -> Kept:
    """A checkpoint with these parts, of a job of two ranks whose whole text is known."""
    leaves = {part: Leaf("number", "int", (), 0, part) for part in parts}  # type: ignore[arg-type]
    leaves |= {f"rng.{i}": Leaf("tensor", "uint8", (5056,), 0, "rng") for i in range(generators)}
    return Kept(EndState(leaves, "last.pt"), 2, made or {}, complete=True)


@pytest.mark.parametrize(
    ("differences", "keeps", "said"),
    [
        ([MODEL], kept(made=MADE), "the GradScaler (train.py:3) is in no checkpoint, and starts anew after a resume"),
        (
            [MODEL, RATE],
            kept("scaler", made=MADE),
            ANEW,
        ),
        ([MODEL, RATE], kept("scaler", "scheduler", made=MADE), "the scheduler was not restored"),
        ([MODEL], kept("sampler", made=DRAWS), RANDOM),
        ([MODEL], kept("sampler", made=DRAWS | PERHAPS), f"{RANDOM}; or {UNSURE}"),
        ([MODEL], kept(made=DRAWS | SAMPLES), f"{RANDOM}; or {POSITION}"),
        ([MODEL], kept(made=SAMPLES), POSITION),
        ([MODEL], kept(made=SAMPLES | DRAWS, generators=2), POSITION),
        (
            [MODEL],
            kept("sampler", made=DRAWS, generators=1),
            "the random numbers' state of 1 of 2 ranks alone is in the checkpoints",
        ),
        ([MODEL, RNG], kept("sampler", generators=2), "the state of the random numbers (rng.1) was not restored"),
        (
            [MODEL, RNG],
            kept(made=SAMPLES | RESTORES, generators=2),
            "the state of the random numbers (rng.1) was not restored",
        ),
        (
            [MODEL, replace(RNG, key="rng.0"), RNG],
            kept(made=SAMPLES | RESTORES, generators=2),
            f"the state of the random numbers (rng.0, rng.1) was not restored, {THOUGH}; or {POSITION}",
        ),
        (
            [BEST, SCORE],
            kept(),
            BEATEN,
        ),
        ([BEST, MODEL], kept("sampler", made=DRAWS), RANDOM),
        (
            [MODEL],
            kept(made=OPTIMIZER | DRAWS),
            "the optimizer (train.py:2) is in no checkpoint, and starts anew after a resume",
        ),
        ([MODEL], kept("optimizer", "sampler", made=OPTIMIZER | DRAWS), RANDOM),
    ],
)
def test_what_was_lost_follows_from_what_differs_and_what_is_kept(
    differences: list[Difference], keeps: Kept, said: str
) -> None:
    assert name_the_loss(differences, keeps) == said


def test_what_a_program_makes_is_found_with_its_line(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\n# GradScaler() is for later\nscaler = torch.amp.GradScaler()\nx = torch.rand(3)\n"
    )
    made = parts_made(look_at_file(program, tmp_path))
    assert {part: place.line for part, place in made.items()} == {"scaler": 3, "draws": 4}
