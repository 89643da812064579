"""A step of a global batch: the same samples, augmentations, random numbers and rate on any number of ranks."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.rundir import read_events
from clusterdp.train.data.global_batch import GlobalBatch
from clusterdp.train.data.sampler import ResumableSampler
from tests.train import programs
from tests.train.elastic import GLOBAL_BATCH, STEPS
from tests.train.ranks import Ranks, running, wait_until
from tests.train.runs import Run

Step = dict[str, Any]
EVERY = (1, 2, 3, 4, 6, 8)


class Training:
    """A run of tests.train.elastic, its attempts, and what they recorded."""

    def __init__(self, folder: Path, entry: str = "elastic:train", train: dict[str, Any] | None = None, **params: Any):
        self.record = folder / "record"
        self.record.mkdir(parents=True)
        self.run = Run(
            folder / "run",
            f"tests.train.{entry if ':' in entry else f'elastic:{entry}'}",
            {"record": str(self.record), **params},
            checkpoint={"async_save": False},
            train={"backend": "gloo", "global_batch_size": GLOBAL_BATCH, **(train or {})},
        )

    def attempt(self, name: str, size: int, **params: Any) -> Ranks:
        """To its end, whichever that is: where one rank dies, the others are killed, as by srun."""
        config = json.loads(self.run.dir.config.read_text())
        config["params"] |= params
        self.run.dir.config.write_text(json.dumps(config))
        args = (programs.run_worker, str(self.run.path))
        with running(self.run.path / name, *args, size=size, env=self.run.attempt(name)) as ranks:
            codes = lambda: [process.exitcode for process in ranks.processes]  # noqa: E731
            wait_until(lambda: None not in codes() or any(codes()), "the end of the attempt")
            return ranks

    def end(self, rank: int = 0) -> Any:
        return json.loads((self.record / f"end-{rank}").read_text())

    @property
    def steps(self) -> list[Step]:
        """What all ranks did in each step, by the order of samples; of a step that was done twice, both times."""
        rows = [json.loads(line) for file in self.record.glob("passes-*") for line in file.read_text().splitlines()]
        rows.sort(key=lambda row: row["step"])
        return [_step(list(group)) for _, group in itertools.groupby(rows, lambda row: row["step"])]

    @property
    def between(self) -> set[str]:
        """The random numbers that all ranks have drawn after each epoch."""
        return {line for file in self.record.glob("between-*") for line in file.read_text().splitlines()}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        files = sorted(self.run.dir.metrics.iterdir())
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _step(rows: list[Any]) -> Step:
    samples = sum(len(row["ids"]) for row in rows)
    what = sorted((row["ids"], row["x"], row["drawn"]) for row in rows)
    loss = sum(row["loss"] * len(row["ids"]) for row in rows) / samples
    return {"what": what, "rates": {row["lr"] for row in rows}, "loss": loss}


def trained(folder: Path, size: int, entry: str = "elastic:train", **params: Any) -> Training:
    training = Training(folder, entry, **params)
    ranks = training.attempt("1.0", size)
    assert ranks.join() == [0] * size, ranks.log
    return training


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each kind once, on one rank."""
    known: dict[str, Training] = {}

    def get(**params: Any) -> Training:
        key = json.dumps(params, sort_keys=True)
        if key not in known:
            known[key] = trained(tmp_path_factory.mktemp("alone"), 1, **params)
        return known[key]

    return get


def check_same(steps: list[Step], whole: list[Step], limit: float) -> None:
    assert [(step["what"], step["rates"]) for step in steps] == [(step["what"], step["rates"]) for step in whole]
    apart = [abs(step["loss"] / other["loss"] - 1) for step, other in zip(steps, whole, strict=True)]
    assert max(apart) <= limit


@pytest.mark.parametrize(("size", "options"), [(3, {"syncs": False}), (8, {"workers": 1})], ids=["3", "8"])
def test_steps_on_several_ranks_equal_those_on_one(
    size: int, options: dict[str, Any], alone: Any, tmp_path: Path
) -> None:
    here = trained(tmp_path, size, epochs=2, **options)
    check_same(here.steps, alone(epochs=2).steps, 1e-12)
    samples = sorted(index for step in here.steps[:STEPS] for ids, *_ in step["what"] for index in ids)
    assert samples == list(range(len(samples)))


@pytest.mark.slow
@pytest.mark.parametrize("size", EVERY[1:])
@pytest.mark.parametrize(("dtype", "steps", "limit"), [("float64", 200, 1e-12), ("float32", 50, 1e-6)])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_losses_equal_those_of_one_rank_to_rounding(
    strategy: str, dtype: str, steps: int, limit: float, size: int, alone: Any, tmp_path: Path
) -> None:
    params = {"epochs": -(-steps // STEPS), "dtype": dtype}
    here = trained(tmp_path, size, train={"strategy": strategy}, **params)
    check_same(here.steps[:steps], alone(**params).steps[:steps], limit)


def test_resumes_on_other_ranks_in_mid_epoch_keep_each_step(alone: Any, tmp_path: Path) -> None:
    """4, 3, 8 ranks, and one, also at an epoch's end, whose code comes again. A signal is agreed on with the word after
    the next."""
    run = Training(tmp_path, epochs=4)
    for name, size, (step, stopped) in (("1.0", 4, (0, 2)), ("1.1", 3, (2, 4)), ("1.2", 8, (7, 9))):
        ranks = run.attempt(name, size, fault=["TERM", step, 0, 0])
        assert run.run.outcome(name) == f"requeue term {stopped}", ranks.log
    last = run.attempt("1.3", 1, fault=None)
    assert last.join() == [0], last.log
    check_same(run.steps, alone(epochs=4).steps, 1e-12)
    assert len(run.between) == 4
    assert run.between == alone(epochs=4).between
    assert "the samples and the random numbers of each step are the same" in last.rank_log(0)
    assert "other steps" not in last.rank_log(0)
    witnesses = [event for event in read_events(run.run.dir) if event["event"] == "witness"]
    assert {(event["verdict"], *event["compared"]) for event in witnesses} == {("same", "micro-batches")}


def test_witness_compares_losses_of_another_number_of_ranks(tmp_path: Path) -> None:
    run = Training(tmp_path, epochs=3, every_steps=4)
    run.attempt("1.0", 4, fault=["KILL", 7, 0, 1])
    ranks = run.attempt("1.1", 3, fault=None)
    assert ranks.join() == [0] * 3, ranks.log
    told = next(event for event in read_events(run.run.dir) if event["event"] == "witness")
    assert (told["restored_step"], told["first"], told["verdict"]) == (4, 5, "rounding")
    assert told["differs"] == "the losses are the same but for rounding, on 3 ranks instead of 4."


@pytest.fixture(scope="module")
def on_three(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return trained(tmp_path_factory.mktemp("on_three"), 3, epochs=2, dtype="float32")


@pytest.mark.parametrize("how", ["TERM", "KILL"])
def test_run_stopped_within_a_step_is_resumed_exactly(how: str, on_three: Training, tmp_path: Path) -> None:
    run = Training(tmp_path, epochs=2, dtype="float32", every_steps=2)
    ranks = run.attempt("1.0", 3, fault=[how, 3, 1, 1])
    assert run.run.outcome("1.0") == ("requeue term 5" if how == "TERM" else None), ranks.log
    ranks = run.attempt("1.1", 3, fault=None)
    assert ranks.join() == [0] * 3, ranks.log
    assert run.run.event("restored")["step"] == (5 if how == "TERM" else 2)
    assert "inexact" not in run.run.event("restored")
    assert how == "KILL" or run.run.event("witness")["verdict"] == "same"
    assert [run.end(rank) for rank in range(3)] == [on_three.end(rank) for rank in range(3)]


def test_logged_values_are_means_over_the_step(alone: Any, tmp_path: Path) -> None:
    here = trained(tmp_path, 3, epochs=2)
    assert here.metrics[-1]["step"] == here.metrics[-1]["total"] == 2 * STEPS
    for record in here.metrics:
        step = alone(epochs=2).steps[record["step"] - 1]
        assert record["loss"] == pytest.approx(step["loss"], rel=1e-12)
        assert {record["lr"]} == step["rates"]


@pytest.mark.parametrize(
    ("train", "norm", "limit"),
    [
        ({"clip_norm": 0.5, "on_nan": "stop"}, "", 1e-12),
        ({"strategy": "fsdp"}, "", 1e-12),
        ({"amp": {"level": "fp16"}}, "", 1e-3),
        ({"sync_batchnorm": True}, "norm", 1.0),  # its statistics are of the samples that the ranks have together
    ],
    ids=["clipped", "fsdp", "fp16", "sync_batchnorm"],
)
def test_trainer_has_the_same_history_on_three_ranks(
    train: dict[str, Any], norm: str, limit: float, tmp_path: Path
) -> None:
    """Which make 3, 3 and 2 passes; a model with collectives in its forward pass makes 3 on each."""
    ends = [trained(tmp_path / str(size), size, "fits", train=train, norm=norm).end() for size in (3, 1)]
    (rows, within, steps), (others, others_within, _) = ends
    assert steps == list(range(2 * STEPS))
    for row, other in zip(rows + within, others + others_within, strict=True):
        assert row == pytest.approx(other, rel=limit)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("accumulate", "accumulate: 2, and train.global_batch_size says how many batches a step has. Leave one out."),
        (
            "no window",
            "the program does not use loop.window and loop.window_ends. Write (loss / loop.window).backward()",
        ),
        ("no window_ends", "the program does not use loop.window_ends. Write"),
    ],
)
def test_loop_without_window_or_window_ends_is_refused(how: str, message: str, tmp_path: Path) -> None:
    run = Training(tmp_path, "mistaken", how=how)
    ranks = run.attempt("1.0", 2)
    assert 2 in ranks.join(), ranks.log  # the rank that ends last is killed
    assert message in ranks.log
    assert "Traceback" not in ranks.log


def test_loop_without_windows_trains_if_ranks_have_one_micro_batch(tmp_path: Path) -> None:
    assert trained(tmp_path, 2, "mistaken", how="whole steps").end() == STEPS - 1


def test_limits_of_a_loop_count_steps(tmp_path: Path) -> None:
    rows, step, total = trained(tmp_path, 2, "reads", epochs=2, limit_batches=3, max_steps=5).end()
    assert step == total == 5
    assert [sum(row[0] == each for row in rows) for each in range(6)] == [4] * 5 + [0]
    for _, ids, samples, window, _ in rows:
        assert (ids, window) == (samples, 4)
    assert [row[-1] for row in rows] == [False, False, False, True] * 5


def test_step_unit_of_a_run_stays(tmp_path: Path) -> None:
    run = Training(tmp_path, "reads", {"global_batch_size": None, "accumulate": 2}, max_steps=4)
    assert run.attempt("1.0", 2).join() == [0, 0]
    config = json.loads(run.run.dir.config.read_text())
    config["train"] = {"backend": "gloo", "global_batch_size": GLOBAL_BATCH}
    run.run.dir.config.write_text(json.dumps(config))
    ranks = run.attempt("1.1", 2, max_steps=8)
    assert (
        "train.global_batch_size: the checkpoint counts batches, of which 2 make a step, and this attempt would count "
        "steps of the optimizer. Leave it out; or begin a new run with checkpoint.start_from."
    ) in ranks.log


@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("consumed", [0, 40])
def test_shares_of_all_ranks_are_the_epoch_in_order(size: int, drop_last: bool, consumed: int) -> None:
    data = TensorDataset()
    for samples, ranks in itertools.product((80, 99, 120), range(1, 5)):
        read: dict[int, list[int]] = {}
        end = samples - (samples - consumed) % 20 if drop_last else samples
        for rank in range(ranks):
            sampler = ResumableSampler(samples, rank=rank, world_size=ranks, shuffle=False, drop_last=drop_last)
            loader = DataLoader(data, size, sampler=sampler, drop_last=drop_last)
            sampler.global_batch = whole = GlobalBatch.of(20, loader, rank, ranks)
            sampler.consumed = consumed
            batches = iter([list(sampler)[at : at + size] for at in range(0, sampler.left, size)])
            for step in range(whole.steps(samples - consumed)):
                here = min(20, samples - consumed - step * 20)
                for each in whole.passes(here, even=False):
                    begin = consumed + step * 20 + each.number * size
                    assert next(batches) == list(range(begin, begin + each.samples))
                    if each.weighs:
                        read.setdefault(step, []).extend(range(begin, begin + each.samples))
                evenly = {len(GlobalBatch(20, size, r, ranks).passes(here, even=True)) for r in range(ranks)}
                assert len(evenly) == 1
            assert next(batches, None) is None
        assert sorted(itertools.chain(*read.values())) == list(range(consumed, end))


@pytest.mark.parametrize(
    ("samples", "loader", "ranks", "message"),
    [
        (32, DataLoader(TensorDataset(), 4, sampler=range(8)), 2, "a DataLoader deals out no micro-batches."),
        (32, 5, 2, "32 samples are not micro-batches of 5, the loader's batch_size. Use 30 or 35, or a batch_size"),
        (3, 5, 1, "3 samples are not micro-batches of 5, the loader's batch_size. Use 5, or a batch_size"),
        (
            32,
            16,
            3,
            "2 micro-batches of 16 are too few for 3 ranks. Use a batch_size of 10 or less, or at most 2 ranks.",
        ),
        (128, 4, 2, "99 samples are not a step of 128. Use drop_last=False."),
    ],
)
def test_indivisible_global_batch_is_refused(samples: int, loader: Any, ranks: int, message: str) -> None:
    if isinstance(loader, int):
        sampler = ResumableSampler(99, rank=0, world_size=ranks, drop_last=samples > 99)
        loader = DataLoader(TensorDataset(), loader, sampler=sampler)
    with pytest.raises(ConfigError, match=r"^train\.global_batch_size: ") as error:
        GlobalBatch.of(samples, loader, 0, ranks)
    assert message in str(error.value)
