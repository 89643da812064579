"""The handle: loaders of too little data say so, on all ranks alike, instead of training on nothing or waiting."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clusterdp.config.tree import AmpConfig, TrainConfig
from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, StopSignal
from clusterdp.train.settings import WorkerSettings


def on_rank(job: JobHandle, rank: int, size: int) -> JobHandle:
    job.this_rank.number, job.this_rank.world_size = rank, size
    return job


@pytest.mark.parametrize("rank", range(4))
def test_data_set_with_fewer_samples_than_ranks_is_padded_from_its_start(job: JobHandle, rank: int) -> None:
    loader = on_rank(job, rank, 4).loader([10, 11, 12], 2, shuffle=False)  # type: ignore[arg-type]
    assert [batch.tolist() for batch in loader] == [[[10], [11], [12], [10]][rank]]


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize(
    ("samples", "options", "said"),
    [
        (3, {"batch_size": 1, "drop_last": True}, "3 samples are not a batch of 1 for each of 4 ranks, and drop_last"),
        (30, {"batch_size": 8, "drop_last": True}, "30 samples are not a batch of 8 for each of 4 ranks"),
        (0, {"batch_size": 1}, "0 samples are not a batch of 1 for each of 4 ranks. Use more data"),
    ],
)
def test_loader_without_any_batch_is_an_error_on_every_rank(
    job: JobHandle, rank: int, samples: int, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"loader: {said}"):
        on_rank(job, rank, 4).loader(range(samples), **options)  # type: ignore[arg-type]


def test_loop_samples_returns_the_indices_of_the_current_batch(job: JobHandle) -> None:
    loop = job.loop(job.loader(range(10), 3, seed_samples=False), {}, epochs=2)  # type: ignore[arg-type]
    named = [(loop.samples() if loop.samples else None, batch.tolist()) for batch in loop]
    assert len(named) == 8
    assert all(samples == batch for samples, batch in named)
    assert job.loop([1, 2], {}, name="other").samples is None


@pytest.mark.parametrize(
    ("level", "kept", "fits"),
    [
        ("O2", (), False),
        ("O2", ("scaler",), False),  # and the masters?
        ("O2", ("amp",), True),
        ("O1", (), False),
        ("O1", ("scaler",), True),
        ("O1", ("amp",), True),
        ("bf16", (), True),
    ],
)
def test_loop_state_without_the_amp_state_of_its_level_is_refused(
    job: JobHandle, level: str, kept: tuple[str, ...], fits: bool
) -> None:
    """At O2 a resumed run would write masters of its first, random weights over those that were restored."""
    job = JobHandle(WorkerSettings(train=TrainConfig(amp=AmpConfig(level=level))), job.group, StopSignal(), "1.0")
    model = job.wrap(torch.nn.Linear(2, 1))
    job.amp.adopt(torch.optim.SGD(model.parameters()))
    state = {"model": model, **{name: {"amp": job.amp, "scaler": job.amp.scaler}[name] for name in kept}}
    if fits:
        job.loop([1, 2], state)
    else:
        with pytest.raises(ConfigError, match=f'state: has no amp, which at {level} has .* Add "amp": job.amp'):
            job.loop([1, 2], state)


def test_pydoc_of_clusterdp_train_lists_its_classes_and_methods() -> None:
    import pydoc

    text = pydoc.plain(pydoc.render_doc("clusterdp.train"))
    for name in ("class Trainer(", "class JobHandle(", "class Loop(", " fit(", " epochs(", " own_job("):
        assert name in text, name
