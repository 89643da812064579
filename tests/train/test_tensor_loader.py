"""Data in tensors: the batches of a DataLoader, bit for bit, without a look at any single sample."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Subset, TensorDataset, WeightedRandomSampler, default_collate

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, Trainer
from clusterdp.train.data.resumable_loader import ResumableLoader
from clusterdp.train.data.tensor_loader import TensorLoader
from tests.train.test_trainer import trained

SIZE = 23
X = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(1))
Y = torch.arange(SIZE)
IMAGES = torch.arange(SIZE * 24).reshape(SIZE, 2, 3, 4)
EVERY_TYPE = [
    X.to(getattr(torch, name))
    for name in "float64 float32 float16 bfloat16 float8_e4m3fn int64 int32 int16 int8 uint8 bool complex64".split()
]
READ_ONLY = numpy.arange(SIZE)
READ_ONLY.setflags(write=False)

KINDS: dict[str, Any] = {
    "a TensorDataset": TensorDataset(X, Y),
    "of every type": TensorDataset(*EVERY_TYPE),
    "of other memory formats": TensorDataset(IMAGES.to(memory_format=torch.channels_last), X.t().reshape(3, SIZE).t()),
    "a part of it": Subset(TensorDataset(X, Y), [5, 3, 3, 11, 0, 20, 7, 8, 1]),
    "a part of a part": Subset(Subset(TensorDataset(X, Y), range(4, 20)), [2, 0, 9, 15, 4, 4]),
    "a tensor": X,
    "an array": X.numpy(),
    "a row of numbers": numpy.arange(SIZE, dtype=numpy.int16),
    "a tuple of tensors and arrays": (X, READ_ONLY),
    "a mapping of tensors": {"x": X, "y": Y},
    "a tuple of a mapping and a tensor": ({"a": X, "b": (Y, IMAGES)}, Y),
    "tensors that need gradients": TensorDataset(X.clone().requires_grad_()),
}


def bits(batch: Any) -> Any:
    """All that a model could see of it."""
    if isinstance(batch, dict):
        return {name: bits(part) for name, part in batch.items()}
    if isinstance(batch, torch.Tensor):
        whole = batch.detach().contiguous().view(torch.uint8) if batch.numel() else batch
        return batch.dtype, batch.stride(), batch.requires_grad, whole.tolist()
    return type(batch), [bits(part) for part in batch]


def all_bits(loader: Iterable[Any]) -> list[Any]:
    return [bits(batch) for batch in loader]


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"shuffle": False}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tensor_loader_equals_a_dataloader_bit_for_bit(job: JobHandle, kind: str, options: dict[str, Any]) -> None:
    data = KINDS[kind]
    ours, theirs = job.loader(data, 4, **options), job.loader(data, 4, collate_fn=default_collate, **options)
    assert (type(ours), type(theirs)) == (TensorLoader, ResumableLoader)
    assert len(ours) == len(theirs)
    for epoch, done in ((0, 0), (1, 0), (1, 5)):
        for sampler in (ours.sampler, theirs.sampler):
            sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            sampler.consumed = done  # type: ignore[attr-defined]
        assert all_bits(ours) == all_bits(theirs)


def test_tensor_loader_never_calls_getitem_of_the_data_set(job: JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (TensorDataset, Subset):
        monkeypatch.setattr(kind, "__getitem__", lambda *_: pytest.fail("a sample was asked for"))
    assert len([*job.loader(KINDS["a part of it"], 4)]) == 3
    trainer = Trainer(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), job=job)
    assert trainer.evaluate((X, Y % 2), batch_size=7)["loss"] > 0
    assert trainer.predict(X.numpy()).shape == (SIZE, 2)


class Flipped(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return tuple(-part for part in super().__getitem__(index))


class Named(torch.Tensor):
    """What its rows are is its own affair."""


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (TensorDataset(X), {"collate_fn": default_collate}),
        (TensorDataset(X), {"num_workers": 1}),
        (TensorDataset(X), {"worker_init_fn": None}),
        (Flipped(X), {}),
        (Subset(Flipped(X), [1, 2]), {}),
        (TensorDataset(X.as_subclass(Named)), {}),  # type: ignore[arg-type]
        (TensorDataset(torch.eye(3).to_sparse()), {}),
        (Subset(TensorDataset(X), [0, -1]), {}),
        ([X[0], X[1]], {}),
        (numpy.array(["a", "b"]), {}),
    ],
)
def test_loader_reads_sample_by_sample_if_data_or_options_prevent_slicing(
    job: JobHandle, data: Any, options: dict[str, Any]
) -> None:
    assert type(job.loader(data, 2, **options)) is ResumableLoader


def test_tensor_dtype_without_index_select_is_read_sample_by_sample(
    job: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def index_select(*_: Any) -> Any:
        raise NotImplementedError("\"index_select\" not implemented for 'UInt16'")

    monkeypatch.setattr(torch.Tensor, "index_select", index_select)
    assert type(job.loader(TensorDataset(X), 2)) is ResumableLoader


def test_tensor_loader_follows_a_custom_sampler(job: JobHandle) -> None:
    def batches(**options: Any) -> list[Any]:
        weighted = WeightedRandomSampler([0.0] + [1.0] * (SIZE - 1), 30)
        return all_bits(job.loader(TensorDataset(Y), 8, sampler=weighted, **options))

    assert batches() == batches(collate_fn=default_collate)


def test_batch_changed_in_place_leaves_the_data_unchanged(job: JobHandle) -> None:
    data = X.clone()
    for batch in job.loader(data, SIZE, shuffle=False):
        batch.zero_()
    assert torch.equal(data, X)


def test_replaced_tensors_are_used_in_the_next_epoch(job: JobHandle) -> None:
    data = TensorDataset(X)
    loader = job.loader(data, SIZE, shuffle=False)
    next(iter(loader))
    data.tensors = (X + 1,)
    assert torch.equal(next(iter(loader))[0], X + 1)


def test_tensor_loader_pins_batches_with_pin_memory(job: JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (tensor, "pinned"))
    assert next(iter(job.loader({"x": X}, SIZE, pin_memory=True)))["x"][1] == "pinned"
    assert torch.is_tensor(next(iter(job.loader({"x": X}, SIZE)))["x"])


@pytest.mark.parametrize("data", [{"x": X}, Subset(TensorDataset(X), range(9))])
def test_tensor_loader_is_prefetched(job: JobHandle, data: Any) -> None:
    batches = job.loop(job.loader(data, 2), {}, move=lambda batch: batch).batches
    assert batches._moved(iter(())).gi_frame.f_locals["self"].ahead is True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((X, Y[:-1]), r"data: its parts have \[22, 23\] rows\. Give each as many, one for each sample\."),
        ((X, torch.tensor(3)), "data: a Tensor of no dimension has no samples"),
        ((X, numpy.array(["cat"] * SIZE)), "data: a ndarray cannot be made a tensor: .* Convert it"),
    ],
)
def test_uneven_scalar_or_non_numeric_data_columns_are_refused(job: JobHandle, data: Any, said: str) -> None:
    for use in (lambda: job.loader(data, 2), lambda: Trainer(torch.nn.Linear(3, 2), job=job).predict(data)):
        with pytest.raises(ConfigError, match=said):
            use()


def test_read_only_memory_mapped_array_causes_no_warning(job: JobHandle, tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", X.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job.loader((numpy.load(tmp_path / "x.npy", mmap_mode="r"), Y), 2)


@pytest.fixture(scope="module")
def sample_by_sample(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each rank of an undisturbed run ends with that collates samples."""
    return {
        size: trained(tmp_path_factory.mktemp("whole") / "run", size, entry="in_tensors", by_sample="1.0")[1]
        for size in (1, 2)
    }


@pytest.mark.parametrize(
    ("size", "by_sample"),
    [
        pytest.param(2, "1.0", id="two ranks, begun sample by sample"),
        pytest.param(2, "none", id="two ranks, never sample by sample", marks=pytest.mark.slow),
        pytest.param(2, "1.1", id="two ranks, ended sample by sample", marks=pytest.mark.slow),
        pytest.param(1, "1.0", id="one rank, begun sample by sample"),
        pytest.param(1, "1.1", id="one rank, ended sample by sample", marks=pytest.mark.slow),
    ],
)
def test_resumed_tensor_loader_run_equals_one_with_collated_samples(
    sample_by_sample: Any, tmp_path: Path, size: int, by_sample: str
) -> None:
    run, ends = trained(tmp_path / "run", size, ["SIGTERM", 8, size - 1], entry="in_tensors", by_sample=by_sample)
    assert run.event("restored")["step"] % {1: 6, 2: 7}[size] != 0
    assert ends == sample_by_sample[size]
