"""DDP's buckets: unless they are settled, a run that resumes over 4 ranks ends in other weights than the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from clusterdp.train import settle_buckets
from clusterdp.train.job import JobHandle
from clusterdp.train.parallel.ddp import DdpModels
from tests.train import programs
from tests.train.ranks import running


@pytest.mark.parametrize("settled", [True, False])
def test_resumed_ddp_run_is_exact_only_with_settle_buckets(tmp_path: Path, settled: bool) -> None:
    with running(tmp_path, programs.train_in_two_halves, settled) as ranks:
        answers = ranks.answers
    for whole, halves in answers:
        assert (whole == halves) is settled
    assert len({whole for whole, _ in answers}) == 1  # a settled model still exchanges gradients with all ranks


def test_loop_settles_a_model_in_ddp_behind_its_state(tmp_path: Path) -> None:
    """The state has `model.module`, or an object around the model, or a module around its module."""
    with running(tmp_path, programs.wrapped_by_hand, str(tmp_path), size=3) as ranks:
        for found in ranks.answers:
            assert {what: whole == halves for what, (whole, halves) in found.items()} == dict.fromkeys(found, True)


def test_settle_buckets_changes_no_weights_buffers_or_random_numbers(job: JobHandle) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    model = DistributedDataParallel(net)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    settle_buckets(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())
    assert model.module is net


@pytest.mark.parametrize("embedding", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_settle_buckets_accepts_sparse_gradients(job: JobHandle, embedding: type[torch.nn.Embedding]) -> None:
    net = torch.nn.Sequential(embedding(100, 8, sparse=True), torch.nn.Linear(8, 3))
    model = DistributedDataParallel(net)
    settle_buckets(model)
    for _ in range(2):
        model(torch.tensor([[1, 2], [3, 4]])).sum().backward()
    assert [each.grad is not None and each.grad.is_sparse for each in net.parameters()] == [True, False, False]


def test_settle_buckets_sends_no_gradients(job: JobHandle) -> None:
    layers = [torch.nn.Linear(256, 256) for _ in range(8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.25)
    count = torch.distributed.group.WORLD._get_sequence_number_for_group
    before = count()
    settle_buckets(model)
    assert count() - before == 2  # the two broadcasts of the buckets' layout; a backward pass has more than four


def test_settle_buckets_warns_about_a_ddp_model_with_static_graph(job: JobHandle) -> None:
    model = DistributedDataParallel(torch.nn.Linear(3, 3), static_graph=True)
    with pytest.warns(UserWarning, match="cannot be settled"):
        settle_buckets(model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("ranks", "static", "reasons"), [(2, True, 0), (3, True, 1), (3, False, 0)])
def test_static_graph_is_inexact_on_three_ranks(
    job: JobHandle, monkeypatch: pytest.MonkeyPatch, ranks: int, static: bool, reasons: int
) -> None:
    models = DdpModels({"model": DistributedDataParallel(torch.nn.Linear(3, 3), static_graph=static)})
    models.settle()
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    assert len(models.why_not_exact()) == reasons


def test_settle_buckets_accepts_a_model_without_ddp() -> None:
    settle_buckets(torch.nn.Linear(3, 3))
