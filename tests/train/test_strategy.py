"""Strategies: the same training whatever the word in the config, and one clear error where ranks are not alike."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from clusterdp.config import from_plain
from clusterdp.config.tree import TrainConfig
from clusterdp.errors import ConfigError
from clusterdp.train import Amp, JobHandle, NanGuard, StopSignal
from clusterdp.train.parallel import fsdp
from clusterdp.train.settings import WorkerSettings
from tests.train import programs, techniques
from tests.train.ranks import running
from tests.train.runs import Run

# Sums over ranks are rounded in another order than over one batch: fp32 has 6e-8, and ten steps add up.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}


CLIP = 0.5  # what the gradients' norm is cut to; it is 3 and more


@pytest.fixture(scope="module")
def alone() -> dict[float | None, list[float]]:
    """The weights that one process without any of ours ends with, by what its gradients are clipped to."""
    return {clip_norm: trained_alone(clip_norm) for clip_norm in (None, CLIP)}


def trained_alone(clip_norm: float | None) -> list[float]:
    model = techniques.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for x, y in techniques.batches():
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        if clip_norm is not None:
            assert torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm) > clip_norm
        optimizer.step()
    return techniques.weights(model)


def close(one: list[float], other: list[float]) -> bool:
    return torch.allclose(torch.tensor(one), torch.tensor(other), **TOLERANCE)


HOOKS = [
    {"comm_hook": "fp16"},
    {"comm_hook": "bf16"},
    {"comm_hook": "powersgd", "powersgd": {"matrix_approximation_rank": 8, "start_powerSGD_iter": 2}},
]


@pytest.mark.parametrize("size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_each_strategy_on_any_number_of_ranks_trains_like_one_process(
    tmp_path: Path, size: int, alone: dict[float | None, list[float]]
) -> None:
    exact: list[dict[str, Any]] = [
        {},
        {"ddp": {"gradient_as_bucket_view": False, "bucket_cap_mb": 0.02}},
        {"strategy": "fsdp"},
        {"strategy": "fsdp", "fsdp": {"units": ["Block"], "reshard_after_forward": False}},
        {"recompute": ["Block"]},
        {"clip_norm": CLIP},
        {"strategy": "fsdp", "clip_norm": CLIP},
        *([{"strategy": "hsdp", "fsdp": {"shard_size": 2}}] if size > 1 else []),
    ]
    with running(tmp_path, techniques.by, exact + HOOKS, size=size) as ranks:
        answers = ranks.answers
    assert all(answer == answers[0] for answer in answers), "the ranks differ"
    for options, got in zip(exact, answers[0], strict=False):
        assert close(got, alone[options.get("clip_norm")]), options
    for options, got in zip(HOOKS, answers[0][len(exact) :], strict=True):
        error = (torch.tensor(got) - torch.tensor(alone[None])).abs().max().item()
        assert 0 < error < 0.05, (options, error)


def test_strategies_read_no_data_of_other_ranks_with_the_unrestricted_unpickler(tmp_path: Path) -> None:
    """A pickle runs code, and the ranks meet at a store and at sockets that every user of their nodes can reach."""
    strategies = [{}, {"strategy": "fsdp"}, {"strategy": "hsdp", "fsdp": {"shard_size": 2}}, *HOOKS]
    with running(tmp_path, techniques.unpickled, strategies, str(tmp_path / "saved"), size=2) as ranks:
        assert ranks.answers == [[], []]


BLOCKS = ["blocks.0", "blocks.1", "blocks.2"]
LAYERS = ["stem", *(name for block in BLOCKS for name in (block, f"{block}.inner")), "head"]


@pytest.mark.parametrize(
    ("options", "units"), [({}, BLOCKS), ({"units": ["Block"]}, BLOCKS), ({"units": ["Block", "Linear"]}, LAYERS)]
)
def test_fsdp_shards_the_default_or_configured_units_separately(
    job: JobHandle, options: dict[str, Any], units: list[str]
) -> None:
    """Were its root the only unit, all of the model would be whole at once, and nothing saved."""
    model = handle(job, strategy="fsdp", fsdp=options).wrap(techniques.Net())
    owners = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    assert [*owners] == ["", *units]
    model(torch.ones(2, 8)).sum().backward()
    assert all(isinstance(parameter.grad, DTensor) for parameter in model.parameters())


def test_fsdp_moves_each_unit_just_before_it_is_sharded(job: JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device would else hold the whole model at once."""
    steps: list[tuple[str, int]] = []

    def note(step: str, unit: nn.Module) -> None:
        steps.append((step, len([*unit.parameters()])))

    monkeypatch.setattr(fsdp, "_materialise", lambda unit, device: note("moved", unit))
    monkeypatch.setattr(fsdp, "broadcast_weights", lambda unit: note("of rank 0", unit))
    monkeypatch.setattr(fsdp, "fully_shard", lambda unit, **arguments: note("sharded", unit))
    handle(job, strategy="fsdp").wrap(techniques.Net())
    assert steps == [(step, size) for size in (2, 2, 2, 10) for step in ("moved", "of rank 0", "sharded")]


def test_fsdp_leaves_the_model_on_the_cpu_until_its_units_move(job: JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Any] = []
    monkeypatch.setattr(nn.Module, "to", lambda module, *words: moved.append(words) or module)
    handle(job, strategy="fsdp").wrap(techniques.Net())
    assert moved == []


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)


def test_meta_model_is_initialised_on_its_device_with_ties_kept() -> None:
    with torch.device("meta"):
        model = Tied()
    model.first.weight.requires_grad_(False)
    fsdp._materialise(model, torch.device("cpu"))
    assert model.first.weight is model.second.weight
    assert not model.first.weight.requires_grad
    assert 0 < model.first.weight.std() < 1
    assert model.norm.running_var is not None
    assert model.norm.running_var.tolist() == [1.0] * 4


def test_meta_module_without_reset_parameters_is_a_config_error(job: JobHandle) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(3))

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3), Scale())
    with pytest.raises(ConfigError, match=r"model: 1 \(Scale\) is on the meta device and has no reset_parameters\(\)"):
        handle(job, strategy="fsdp").wrap(model)


def test_meta_model_trains_alike_on_all_ranks_and_resumes(tmp_path: Path) -> None:
    with running(tmp_path, techniques.from_meta, str(tmp_path / "saved"), size=2) as ranks:
        (whole, resumed), *others = ranks.answers
    assert whole == resumed
    assert others == [[whole, resumed]]


def test_fsdp_options_reach_fully_shard_for_each_unit(job: JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr("clusterdp.train.parallel.fsdp.fully_shard", lambda module, **arguments: told.append(arguments))
    dtypes = {"param_dtype": "bfloat16", "reduce_dtype": "torch.float32", "output_dtype": "float16"}
    options = {**dtypes, "cast_forward_inputs": False, "reshard_after_forward": False, "cpu_offload": True}
    handle(job, strategy="fsdp", fsdp=options).wrap(techniques.Net())
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float16, cast_forward_inputs=False)
    assert len(told) == len(BLOCKS) + 1
    for arguments in told:
        del arguments["mesh"]
        assert arguments == {
            "mp_policy": policy,
            "offload_policy": CPUOffloadPolicy(),
            "reshard_after_forward": False,
        }


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("shape", "head.weight is float32 (1, 64) on rank 0 and float32 (2, 64) on rank 1; head.bias is"),
        pytest.param("missing", "head.bias is float32 (1,) on rank 0 and missing on rank 1", marks=pytest.mark.slow),
        pytest.param("frozen", "on rank 0 and float32 (1, 64) frozen on rank 1", marks=pytest.mark.slow),
        pytest.param("order", "come in another order on rank 1 than on rank 0", marks=pytest.mark.slow),
        pytest.param("fsdp", "head.weight is float32 (1, 64) on rank 0", marks=pytest.mark.slow),
    ],
)
def test_every_rank_names_the_rank_with_a_different_model(tmp_path: Path, what: str, said: str) -> None:
    with running(tmp_path, techniques.differs, what, size=2) as ranks:
        answers = ranks.answers
    assert answers[0] == answers[1]
    assert "model: it is not the same on all ranks" in answers[0]
    assert said in answers[0]


UNUSED = "these parameters had no part in the loss: spare.weight, spare.bias. Use them, freeze them"


@pytest.mark.parametrize("where", ["all", "last"])
def test_unused_parameters_end_all_ranks_with_an_error_naming_them(tmp_path: Path, where: str) -> None:
    """In the last step nothing of torch's notices: rank 0 would wait for rank 1's gradients until a time-out."""
    run = Run(tmp_path / "run", "tests.train.techniques:unused", {"where": where}, train={"backend": "gloo"})
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=2, env=run.attempt("1.0")) as ranks:
        codes = ranks.join()
    assert 8 in codes, ranks.log
    assert 0 not in codes
    assert f"on rank 1 {UNUSED}" in ranks.rank_log(1)
    assert "Traceback" not in ranks.rank_log(1)


def test_ddp_find_unused_parameters_option_allows_unused_parameters(tmp_path: Path) -> None:
    train = {"backend": "gloo", "ddp": {"find_unused_parameters": True}}
    run = Run(tmp_path / "run", "tests.train.techniques:unused", {"where": "all"}, train=train)
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=2, env=run.attempt("1.0")) as ranks:
        assert ranks.join() == [0, 0], ranks.log


def handle(job: JobHandle, **train: Any) -> JobHandle:
    return JobHandle(WorkerSettings(train=from_plain(TrainConfig, train)), job.group, StopSignal(), "1.0")


@pytest.mark.parametrize("chosen", [{}, {"gradient_as_bucket_view": False}])
def test_ddp_keeps_gradients_in_its_buckets_unless_configured(job: JobHandle, chosen: dict[str, Any]) -> None:
    model = handle(job, ddp=chosen).wrap(techniques.Net())
    model(torch.ones(3, 8)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    in_one = len({gradient.untyped_storage().data_ptr() for gradient in gradients}) < len(gradients)
    assert in_one == (not chosen)


def test_strategy_dp_wraps_in_data_parallel(job: JobHandle) -> None:
    model = handle(job, strategy="dp").wrap(techniques.Net())
    assert isinstance(model, torch.nn.DataParallel)
    assert model(torch.ones(3, 8)).shape == (3, 1)


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"strategy": "zero"}, "train.strategy: 'zero' is none of ddp, fsdp, hsdp, dp"),
        ({"ddp": {"bucket_cap": 3}}, "train.ddp.bucket_cap: .* takes no such argument. Did you mean bucket_cap_mb"),
        ({"comm_hook": "int8"}, "train.comm_hook: 'int8' is none of fp16, bf16, powersgd"),
        ({"strategy": "fsdp", "fsdp": {"unit": []}}, "train.fsdp.unit: there is no such option"),
        ({"strategy": "fsdp", "fsdp": {"units": ["Layer"]}}, "train.fsdp.units: the model has no Layer"),
        ({"strategy": "fsdp", "fsdp": {"param_dtype": "half16"}}, "param_dtype: torch has no dtype 'half16'"),
        ({"strategy": "fsdp", "fsdp": {"shard_size": 2}}, "shard_size: is for strategy: hsdp"),
        ({"strategy": "hsdp", "fsdp": {"shard_size": 2}}, "2 does not divide 1 ranks"),
        ({"strategy": "fsdp", "amp": {"level": "O2"}}, "train.amp.level: weights in fp16"),
        ({"compile": True, "ddp": {"bucket_cap_mb": 0.5}}, "bucket_cap_mb: torch.compile needs 1 or more"),
        ({"recompute": ["Layer"]}, "train.recompute: the model has no Layer"),
        ({"comm_hook": "powersgd", "on_nan": "skip"}, "powersgd cannot skip a step, which train.on_nan: skip needs"),
        (
            {"comm_hook": "powersgd", "amp": {"level": "O1"}},
            "powersgd cannot skip a step, which the loss scale of tr",
        ),
        ({"comm_hook": "powersgd", "powersgd": {"rank": 1}}, "train.powersgd.rank: .* takes no such argument"),
    ],
)
def test_invalid_or_conflicting_strategy_options_are_refused(job: JobHandle, train: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        handle(job, **train).wrap(techniques.Net())


@pytest.mark.parametrize("part", [Amp("O1", "cpu"), torch.amp.GradScaler("cpu")])
def test_powersgd_refuses_a_loss_scaler_or_nan_guard_able_to_skip_steps(job: JobHandle, part: Any) -> None:
    model = handle(job, comm_hook="powersgd").wrap(techniques.Net())
    job.loop([1], {"model": model, "amp": Amp("bf16", "cpu"), "scaler": torch.amp.GradScaler("cpu", enabled=False)})
    with pytest.raises(
        ConfigError, match=r"train\.comm_hook: powersgd cannot skip a step, which the loss scale of state\.mine"
    ):
        job.loop([1], {"model": model, "mine": part})
    NanGuard(model, job.group, "stop")
    with pytest.raises(ConfigError, match=r"train\.comm_hook: powersgd cannot skip a step, which on_nan: skip needs"):
        NanGuard(model, job.group, "skip")


def test_ddp_gets_no_device_ids_for_a_model_on_two_devices(job: JobHandle) -> None:
    from clusterdp.train.parallel.ddp import _device_ids

    model = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, device="meta")])
    assert _device_ids(model) is None


def test_error_for_unused_parameters_names_at_most_eight() -> None:
    """In one line, also where half of a large model is unused."""
    from clusterdp.train.parallel.ddp import explained

    layers = torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(11))
    model: Any = SimpleNamespace(module=layers, parameters_to_ignore=set())
    told = explained(RuntimeError("Indices which did not receive grad for rank 1: 1 2 3 4 5 6 7 8 9 10"), model)
    assert ", ".join(f"{number}.weight" for number in range(1, 9)) + " and 2 more. Use them" in str(told)
    assert explained(RuntimeError("Connection reset by peer"), model) is None
