"""train.exact: any_ranks: a run ends in the same bits on any number of ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.config.tree import TrainConfig
from clusterdp.errors import ConfigError, TrainError
from clusterdp.rundir import read_events
from clusterdp.train import Group, JobHandle, StopSignal
from clusterdp.train.data.global_batch import GlobalBatch
from clusterdp.train.parallel.gradient_tree import Node, add_up, cover
from clusterdp.train.settings import WorkerSettings
from tests.train.bits import GLOBAL_BATCH, mistaken
from tests.train.test_global_batch import Training, trained

EXACT = {"exact": "any_ranks"}
SIZES = (2, 3, 4, 8)
KINDS = [("mlp", "O0"), ("cnn", "O0"), ("transformer", "O0"), ("mlp", "O1"), ("cnn", "bf16")]


def bits(folder: Path, size: int, **params: Any) -> Training:
    return trained(folder, size, "bits:train", train=EXACT, **params)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The end of each kind on one rank, once."""
    known: dict[str, Any] = {}

    def get(**params: Any) -> Any:
        key = json.dumps(params, sort_keys=True)
        if key not in known:
            known[key] = bits(tmp_path_factory.mktemp("alone"), 1, **params).end()
        return known[key]

    return get


@pytest.mark.parametrize(("size", "model", "level"), [(3, "mlp", "O1"), (8, "cnn", "O0")], ids=["3", "8"])
def test_run_on_several_ranks_ends_in_the_bits_of_one(
    size: int, model: str, level: str, alone: Any, tmp_path: Path
) -> None:
    """Which has 8 micro-batches in a step, and 5 in the last step of an epoch."""
    here = bits(tmp_path, size, model=model, level=level, by_hand=size == 3)
    assert [here.end(rank) for rank in range(size)] == [alone(model=model, level=level)] * size


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("model", "level"), KINDS)
def test_each_kind_of_model_ends_in_the_same_bits(
    model: str, level: str, size: int, alone: Any, tmp_path: Path
) -> None:
    here = bits(tmp_path, size, model=model, level=level, epochs=10)
    assert [here.end(rank) for rank in range(size)] == [alone(model=model, level=level, epochs=10)] * size


def changed(run: Training, model: str = "mlp", sizes: tuple[int, ...] = (4, 3, 8, 1)) -> str:
    """A run on other numbers of ranks in turn, each from the middle of an epoch on. Returns the log of the last."""
    *stopped, last = sizes
    for number, size in enumerate(stopped):
        ranks = run.attempt(f"1.{number}", size, fault=["TERM", 3 * number, 0])
        assert run.run.outcome(f"1.{number}") == f"requeue term {3 * number + 2}", ranks.log
    ranks = run.attempt(f"1.{len(stopped)}", last, fault=None)
    assert ranks.join() == [0] * last, ranks.log
    return ranks.rank_log(0)


@pytest.mark.parametrize(
    ("model", "level"),
    [
        ("cnn", "O1"),
        *(pytest.param(*kind, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
def test_run_on_other_ranks_in_turn_ends_in_the_same_bits(model: str, level: str, alone: Any, tmp_path: Path) -> None:
    run = Training(tmp_path, "bits:train", EXACT, model=model, level=level, epochs=4)
    log = changed(run)
    assert run.end() == alone(model=model, level=level, epochs=4)
    assert "clusterdp: 1 rank, and 8 at the save: each step has the same bits (train.exact: any_ranks)." in log
    assert "not exact" not in log
    witnesses = [event for event in read_events(run.run.dir) if event["event"] == "witness"]
    assert {event["verdict"] for event in witnesses} == {"same"}
    assert {event["compared"][0] for event in witnesses} == {"micro-batches"}


def test_witness_compares_losses_and_tensors_by_their_bits(tmp_path: Path) -> None:
    run = Training(tmp_path, "bits:train", EXACT, epochs=3, every_steps=4)
    run.attempt("1.0", 4, fault=["KILL", 7, 1])
    ranks = run.attempt("1.1", 3, fault=None)
    assert ranks.join() == [0] * 3, ranks.log
    event = run.run.event("witness")
    assert (event["restored_step"], event["first"], event["last"], event["verdict"]) == (4, 5, 7, "same")
    assert event["compared"][0] == "micro-batches"
    assert event["compared"][1].endswith(" tensors of the state")
    assert int(event["compared"][1].split()[0]) >= 12  # weights and momenta


def test_resume_with_other_threads_and_micro_batches_is_not_exact(tmp_path: Path) -> None:
    run = Training(tmp_path, "bits:train", EXACT)
    run.attempt("1.0", 2, fault=["TERM", 1, 0])
    ranks = run.attempt("1.1", 1, fault=None, threads=2, micro=8)
    assert ranks.join() == [0], ranks.log
    inexact = run.run.event("restored")["inexact"]
    assert "it was computed elsewhere (threads 1 -> 2), which may round otherwise" in inexact
    assert "loader: a micro-batch had 4 samples and has 8: same samples, but other random numbers" in inexact
    assert "the same bits" not in ranks.log


def test_trainer_ends_in_the_same_weights_on_three_ranks(tmp_path: Path) -> None:
    ends = [trained(tmp_path / str(n), n, "bits:fits", train={**EXACT, "clip_norm": 1.0}).end() for n in (1, 3)]
    assert ends[0] == ends[1]


def test_sum_of_a_tree_has_the_same_bits_for_all_shares() -> None:
    for leaves in (1, 2, 3, 5, 8, 13, 16, 33):
        given = [
            torch.randn(50, generator=torch.Generator().manual_seed(leaf)) * 10 ** (leaf % 5) for leaf in range(leaves)
        ]
        sums = set()
        for ranks in (*range(1, 18), 40):
            parts = list[tuple[Node, torch.Tensor]]()
            for rank in range(ranks):
                own = GlobalBatch(leaves, 1, rank, ranks).share(leaves, rank)
                at = own.start
                for node in cover(own):
                    some = [(Node(0, leaf), given[leaf].clone()) for leaf in own if leaf >> node.level == node.number]
                    parts.append((node, add_up(some)))
                    at += len(some)
                assert at == own.stop
            sums.add(add_up(parts).numpy().tobytes())
        assert len(sums) == 1
        in_turn = torch.stack(given).double().sum(0)
        assert torch.allclose(torch.frombuffer(bytearray(sums.pop()), dtype=torch.float32).double(), in_turn, rtol=1e-4)


@pytest.mark.parametrize(("ranks", "most"), [(1, 1), (2, 1), (3, 2), (4, 1), (6, 2), (8, 1)])
def test_rank_sends_few_nodes(ranks: int, most: int) -> None:
    """Each costs as many bytes as an all-reduce."""
    whole = GlobalBatch(64, 1, 0, ranks)
    sent = [len(cover(whole.share(64, rank))) for rank in range(ranks)]
    if ranks & (ranks - 1) == 0:
        assert sent == [1] * ranks
    assert sum(sent) / ranks / 2 <= most


@pytest.mark.filterwarnings("ignore:DDP.static_graph=True")
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("unwrapped", "train.exact: any_ranks: an optimizer has parameters of shape (127, 48) that are not in a model"),
        ("parts", "train.exact: any_ranks adds up gradients in DistributedDataParallel, which cannot wrap a model"),
        ("hook", "train.exact: any_ranks: does not go with a communication hook of its own, which the model has."),
        ("synced", "train.exact: any_ranks: does not go with SyncBatchNorm, which the model has."),
        ("find_unused", "train.exact: any_ranks: does not go with find_unused_parameters, which the model has."),
        ("static_graph", "train.exact: any_ranks: does not go with static_graph, which the model has."),
        ("twice", "model: more than one backward pass in a micro-batch, or one outside of the loop."),
        ("unused", "model: in a micro-batch these parameters had no part in the loss: 5.bias"),
        ("buffer", "model: training changes its buffers seen, and each rank would have other ones."),
        ("mode", "model: a BatchNorm goes into training or evaluation mode within a step."),
        ("no window", "model: its gradients were cleared within a step. Let the optimizer step, and clear them, if"),
    ],
)
def test_training_with_bits_by_rank_is_refused(how: str, message: str, group: Group) -> None:
    settings = WorkerSettings(train=TrainConfig(global_batch_size=GLOBAL_BATCH, exact="any_ranks"))
    with StopSignal() as stop, pytest.raises((ConfigError, TrainError), match=f"^{re.escape(message)}"):
        mistaken(JobHandle(settings, group, stop, "1.0"), how)


def test_two_ranks_send_as_many_bytes_as_an_all_reduce(tmp_path: Path) -> None:
    """Of 3, at most twice as many."""
    for size, limit in ((2, 1.0), (3, 2.0)):
        run = trained(tmp_path / str(size), size, "bits:counts_bytes", train=EXACT)
        sent, gradient = map(sum, zip(*(run.end(rank) for rank in range(size)), strict=True))
        assert 0 < sent <= limit * 2 * (size - 1) / size * gradient * 1.001
        assert gradient > 0
