"""A run that was stopped or killed ends in the very bits of the one that never was: parameters, optimizer, scaler,
random numbers, and every batch on the way."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.train import programs
from tests.train.ranks import Ranks, running, wait_until
from tests.train.runs import Run

FACTORS = {
    "size": (1, 2, 4),
    "precision": ("fp32", "bf16", "fp16"),
    "workers": (0, 2),
    "where": ("epoch end", "mid-epoch", "mid-accumulation"),
    "how": ("TERM", "KILL"),
}
# Every pair of values is in one of these.
PAIRWISE = [
    (1, "fp32", 0, "epoch end", "TERM"),
    (1, "bf16", 2, "mid-epoch", "KILL"),
    (1, "fp16", 0, "mid-accumulation", "KILL"),
    (2, "fp32", 2, "mid-accumulation", "KILL"),
    (2, "bf16", 0, "epoch end", "KILL"),
    (2, "fp16", 0, "mid-epoch", "TERM"),
    (4, "fp32", 0, "mid-epoch", "KILL"),
    (4, "bf16", 2, "mid-accumulation", "TERM"),
    (4, "fp16", 2, "epoch end", "KILL"),
]
# An epoch has 11 batches, in windows of 3, 3, 3 and 2. A signal is agreed on with the word after the next, and the run
# stops with that window; a run that is killed goes on from its last save, which comes every 4 batches as windows allow.
FAULTS = {  # how, where: the step in which it comes, the step that the run goes on from
    ("TERM", "mid-epoch"): (2, 6),
    ("TERM", "mid-accumulation"): (4, 9),
    ("TERM", "epoch end"): (7, 11),
    ("KILL", "mid-epoch"): (17, 17),
    ("KILL", "mid-accumulation"): (16, 14),
    ("KILL", "epoch end"): (21, 20),
}
Case = tuple[int, str, int, str, str]


def test_pairwise_cases_contain_every_pair_of_factor_values() -> None:
    assert all(value in FACTORS[name] for case in PAIRWISE for name, value in zip(FACTORS, case, strict=True))
    for (i, a), (j, b) in itertools.combinations(enumerate(FACTORS.values()), 2):
        assert {(case[i], case[j]) for case in PAIRWISE} == set(itertools.product(a, b))


class Training:
    """A run of tests.train.exact, its attempts, and what they recorded."""

    def __init__(self, folder: Path, size: int, **params: Any):
        self.record = folder / "record"
        self.record.mkdir(parents=True)
        self.size = size
        self.run = Run(
            folder / "run",
            "tests.train.exact:train",
            {"record": str(self.record), **params},
            checkpoint={"async_save": False},
            train={"backend": "gloo"},
        )

    def attempt(self, name: str, size: int | None = None, **params: Any) -> Ranks:
        """To its end, whichever that is: where one rank dies, the others are killed, as by srun."""
        config = json.loads(self.run.dir.config.read_text())
        config["params"] |= params
        self.run.dir.config.write_text(json.dumps(config))
        args = (programs.run_worker, str(self.run.path))
        with running(self.run.path / name, *args, size=size or self.size, env=self.run.attempt(name)) as ranks:
            codes = lambda: [process.exitcode for process in ranks.processes]  # noqa: E731
            wait_until(lambda: None not in codes() or any(codes()), "the end of the attempt")
            return ranks

    @property
    def batches(self) -> list[list[Any]]:
        """Of each rank: (step, digest, indices), in the order in which they came."""
        files = sorted(self.record.glob("batches-*"))
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]

    @property
    def end(self) -> list[Any]:
        return [json.loads((self.record / f"end-{rank}").read_text()) for rank in range(self.size)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each kind once. Without workers: those must not matter."""
    known: dict[tuple[int, str, int], Training] = {}

    def get(size: int, precision: str, epochs: int) -> Training:
        key = (size, precision, epochs)
        if key not in known:
            whole = Training(tmp_path_factory.mktemp("whole"), size, precision=precision, workers=0, epochs=epochs)
            ranks = whole.attempt("1.0")
            assert ranks.join() == [0] * size, ranks.log
            known[key] = whole
        return known[key]

    return get


def check(case: Case, whole: Training, folder: Path, epochs: int) -> None:
    size, precision, workers, where, how = case
    step, goes_on = FAULTS[how, where]
    run = Training(folder, size, precision=precision, workers=workers, epochs=epochs)
    ranks = run.attempt("1.0", fault=[how, step, size - 1])
    assert run.run.outcome("1.0") == (f"requeue term {goes_on}" if how == "TERM" else None), ranks.log
    ranks = run.attempt("1.1", fault=None)
    assert ranks.join() == [0] * size, ranks.log
    assert run.run.event("restored")["step"] == goes_on

    last = 11 * epochs
    for mine, others in zip(run.batches, whole.batches, strict=True):
        steps = [batch[0] for batch in mine]
        assert steps[-(last - goes_on) :] == list(range(goes_on, last))
        assert [batch for batch in mine if batch not in others] == []
    assert run.end == whole.end


@pytest.mark.parametrize("case", PAIRWISE, ids=str)
def test_resumed_run_equals_the_uninterrupted_one_in_pairwise_cases(
    case: Case, uninterrupted: Any, tmp_path: Path
) -> None:
    check(case, uninterrupted(*case[:2], 2), tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(itertools.product(*FACTORS.values())), ids=str)
def test_resumed_run_equals_the_uninterrupted_one_in_all_cases(case: Case, uninterrupted: Any, tmp_path: Path) -> None:
    check(case, uninterrupted(*case[:2], 11), tmp_path, 11)


def test_resume_on_fewer_ranks_keeps_the_samples_of_each_step(uninterrupted: Any, tmp_path: Path) -> None:
    """With the same global batch, each step has the very samples that it would have had."""
    run = Training(tmp_path, 4, precision="fp32", workers=0, epochs=2)
    ranks = run.attempt("1.0", fault=["TERM", 2, 3])
    assert run.run.outcome("1.0") == "requeue term 6", ranks.log
    ranks = run.attempt("1.1", size=2, fault=None)
    assert ranks.join() == [0, 0], ranks.log
    assert run.run.event("restored")["step"] == 6
    assert by_step(run.batches) == by_step(uninterrupted(4, "fp32", 2).batches)
    assert "was saved by 4 ranks, and there are 2 now" in ranks.rank_log(0)


def by_step(batches: list[list[Any]]) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for rank in batches:
        for step, _, indices in rank:
            steps.setdefault(step, []).extend(indices)
    return {step: sorted(indices) for step, indices in steps.items()}
