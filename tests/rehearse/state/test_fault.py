"""name_the_fault(): a small training that forgets one thing when it resumes is told what it was."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.rehearse.state import Difference, compare, name_the_fault, of_files
from clusterdp.rehearse.state.end_state import Part

STEPS, CUT = 12, 7


class Training:
    """Draws from Python's and torch's generators, a scheduler, a scale that grows, and samples in an order."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        random.seed(1)
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.9**step)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        self.step, self.position = 0, 0
        self.samples = torch.randn(40, 4)

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}

    def run(self, until: int) -> None:
        while self.step < until:
            sample = self.samples[self.position]
            kept = torch.nn.functional.dropout(sample, 0.3) * (0.5 + random.random())
            self.optimizer.zero_grad()
            self.scaler.scale(self.model(kept).square().sum()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.step += 1
            self.position += 1

    def save(self) -> dict[str, Any]:
        rng = {"torch": torch.get_rng_state(), "python": random.getstate()}
        tree = {name: part.state_dict() for name, part in self.parts().items()}
        return tree | {"rank2": {"rng": rng}, "sampler": {"position": self.position}, "step": self.step}

    def load(self, tree: dict[str, Any], forgotten: set[str]) -> None:
        for name, part in self.parts().items():
            if name not in forgotten:
                part.load_state_dict(tree[name])
        if "scheduler" in forgotten:
            for group in self.optimizer.param_groups:
                group["lr"] = 0.1
        self.step = 0 if "step" in forgotten else tree["step"]
        self.position = 0 if "sampler" in forgotten else tree["sampler"]["position"]
        if "rng" not in forgotten:
            torch.set_rng_state(tree["rank2"]["rng"]["torch"])
            random.setstate(tree["rank2"]["rng"]["python"])


def differences(folder: Path, *forgotten: str, unsaved: Sequence[str] = ()) -> list[Difference]:
    """Of the end of an undisturbed run and of one that was interrupted, and forgot these."""
    whole = Training()
    whole.run(STEPS)
    expected = whole.save()
    first = Training()
    first.run(CUT)
    saved = first.save()
    second = Training()
    second.load(saved, {*forgotten})
    second.run(STEPS)
    for name, tree in (("a.pt", expected), ("b.pt", second.save())):
        torch.save({key: value for key, value in tree.items() if key not in unsaved}, folder / name)
    return compare(of_files(folder, ["a.pt"]), of_files(folder, ["b.pt"]))


@pytest.mark.slow
def test_what_restores_all_of_it_ends_in_the_same_bits(tmp_path: Path) -> None:
    assert differences(tmp_path) == []
    assert name_the_fault([]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forgotten", "said"),
    [
        (["scaler"], "the GradScaler was not restored"),
        (["scheduler"], "the scheduler was not restored"),
        (["optimizer"], "the optimizer was not restored"),
        (["rng"], "rank 2's random numbers were not restored"),
        (["sampler"], "the sampler's position was not restored"),
        (["scaler", "scheduler"], "the GradScaler and the scheduler were not restored"),
        (["scaler", "rng", "sampler"],
         "the GradScaler, rank 2's random numbers and the sampler's position were not restored"),
        (["step"], "it did too many steps: scheduler.last_epoch is 19, and not 12"),
    ],
)  # fmt: skip
def test_what_was_forgotten_is_named(forgotten: list[str], said: str, tmp_path: Path) -> None:
    assert name_the_fault(differences(tmp_path, *forgotten)) == said


@pytest.mark.slow
def test_without_random_numbers_in_the_state_either_may_be_it(tmp_path: Path) -> None:
    found = differences(tmp_path, "rng", unsaved=["rank2", "sampler"])
    words = "samples or random numbers differ: the sampler's position or the random numbers were not restored"
    assert name_the_fault(found) == words


def one(part: Part, key: str, expected: float, got: float, rank: int | None = None) -> Difference:
    return Difference(key, f"{expected} against {got}", rank, part, 0.5, expected, got)


STEP = one("step", "step", 20, 12)
CASES = [
    ([STEP, one("model", "model.w", 1, 2), one("scaler", "scaler.scale", 1, 2)],
     "it started from the beginning, or did not end: step is 12, and not 20"),
    ([one("step", "loops.fit_loop.epoch_progress.total.ready", 5, 6), one("step", "global_step", 20, 28)],
     "it did too many steps: global_step is 28, and not 20"),
    ([one("rng", "rank0.rng.torch", 1, 2, 0), one("rng", "rank3.rng.torch", 1, 2, 3)],
     "ranks 0 and 3's random numbers were not restored"),
    ([one("rng", f"rank{i}.rng.torch", 1, 2, i) for i in range(8)], "8 ranks' random numbers were not restored"),
    ([one("rng", "rng", 1, 2)], "the random numbers were not restored"),
    ([one("sampler", "rank1.loader.position", 8, 0, 1), one("model", "model.w", 1, 2)],
     "the sampler's position of rank 1 was not restored"),
    # A scale that starts high again skips a step, and so does all that counts with it.
    ([one("scaler", "scaler.scale", 8, 65536), one("scheduler", "scheduler.last_epoch", 20, 18),
      one("optimizer", "optimizer.state.0.step", 20, 18)], "the GradScaler was not restored"),
    # The loss that a ReduceLROnPlateau keeps follows from the model.
    ([one("scheduler", "scheduler.best", 1, 2), one("model", "model.w", 1, 2)],
     "samples or random numbers differ: the sampler's position or the random numbers were not restored"),
    ([one("scheduler", "optimizer.pt:param_groups.0.lr", 0.1, 0.2)], "the scheduler was not restored"),
    ([one("metrics", "best_val_loss", 1, 2)], "nothing but metrics differs: best_val_loss"),
    ([*(one("metrics", f"a.json:log.{i}.num_tokens", 1, 2) for i in range(9)), one("other", "a.json:seen", 1, 2)],
     "nothing but metrics differs: a.json:log.*.num_tokens, a.json:seen"),
    ([Difference("w", "is missing", None, "model", 1.0), Difference("v", "is missing", None, "model", 1.0)],
     "the end state lacks w, v"),
    ([one("other", "config.x", 1, 2)], None),
]  # fmt: skip


@pytest.mark.parametrize(("found", "said"), CASES, ids=[said or "nothing" for _, said in CASES])
def test_the_most_telling_part_is_named(found: list[Difference], said: str | None) -> None:
    assert name_the_fault(found) == said
