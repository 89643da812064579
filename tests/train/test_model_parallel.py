"""A model whose parts lie on several devices: where each part is, what moves, and that DDP takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle
from clusterdp.train.parallel import strategy
from clusterdp.train.parallel.model_parallel import ModelParallel, in_parts, is_split, place
from tests.train import techniques
from tests.train.ranks import running
from tests.train.test_strategy import close


def test_model_parallel_places_parts_on_their_devices_and_moves_activations() -> None:
    model = ModelParallel(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), devices=["cpu", "meta"])
    assert [device.type for device in model.devices] == ["cpu", "cpu", "meta"]
    assert [p.device.type for p in model.parameters()] == ["cpu", "cpu", "meta", "meta"]
    seen = []
    model[0].register_forward_hook(lambda module, args, output: seen.append((args[0].device.type, output.device.type)))
    out = model(torch.ones(1, 4))
    assert (out.device.type, out.shape, seen) == ("meta", (1, 2), [("cpu", "cpu")])
    assert is_split(model)
    assert not is_split(nn.Linear(1, 1))


def test_model_parallel_in_ddp_trains_like_the_whole_model(tmp_path: Path) -> None:
    with running(tmp_path, techniques.split, size=2) as ranks:
        answers = ranks.answers
    assert answers[0] == answers[1]
    whole, inside, each = answers[0]
    assert inside == whole
    assert close(each, whole)  # its buckets are others


class Skips(nn.Module):
    """An encoder and a decoder with a skip connection, one of whose arguments is named."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 3), nn.Bilinear(3, 4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.decoder(self.encoder(x), input2=x)
        return out


def test_placed_submodules_get_their_arguments_on_their_devices() -> None:
    model = place(Skips(), {"encoder": "cpu", "decoder": "meta"})
    assert [p.device.type for p in model.parameters()] == ["cpu", "cpu", "meta", "meta"]
    out = model(torch.ones(5, 4))
    assert (out.device.type, out.shape) == ("meta", (5, 2))
    assert is_split(model)


def test_placed_model_on_one_device_computes_as_before() -> None:
    torch.manual_seed(0)
    model, x = Skips(), torch.randn(5, 4)
    before = model(x)
    assert torch.equal(place(model, {"encoder": "cpu", "decoder": "cpu"})(x), before)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ({"encoder": "cpu"}, "place: decoder.weight is in none of encoder"),
        ({"encoder": "cpu", "decoder": "cpu", "decoder.weight": "cpu"}, "place: decoder.weight is in decoder and in"),
    ],
)
def test_place_refuses_parameters_in_no_submodule_or_in_two(devices: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place(Skips(), devices)
    assert str(caught.value).startswith(said)


def test_wrap_does_not_move_a_model_on_several_devices(job: JobHandle) -> None:
    """No model that lies on several devices is moved."""
    model = ModelParallel(nn.Linear(1, 1), nn.Linear(1, 1), devices=["cpu", "meta"])
    wrapped = strategy.wrap(model, job.group, job.train, job.amp, {}, share=False)
    assert [p.device.type for p in wrapped.parameters()] == ["cpu", "cpu", "meta", "meta"]


def test_model_split_minimizes_the_largest_part_and_refuses_invalid_part_counts() -> None:
    layers = nn.Sequential(*(nn.Linear(size, 1, bias=False) for size in (5, 1, 1, 1, 6, 2)))
    sizes = [[layer.in_features for layer in part] for part in in_parts(layers, 3)]  # type: ignore[union-attr]
    assert sizes == [[5, 1, 1], [1, 6], [2]]
    assert [len(part) for part in in_parts(layers, 6)] == [1] * 6
    for parts in (0, 7):
        with pytest.raises(ConfigError, match=f"6 layers do not make {parts} parts"):
            in_parts(layers, parts)
    with pytest.raises(ConfigError, match="1 parts on 2 devices"):
        ModelParallel(nn.Linear(1, 1), devices=["cpu", "cpu"])
