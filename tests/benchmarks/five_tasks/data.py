"""The data and the network of all programs: handwritten digits, of which 400 are for tests and 200 for validation."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.recipes.digits import load_digits

Part = tuple[torch.Tensor, torch.Tensor]


def load() -> tuple[Part, Part, Part]:
    """Returns training, validation and test: images of (samples, 64), and labels."""
    images, labels = zip(*(part.tensors for part in load_digits()), strict=True)
    x, y = torch.cat(images).flatten(1), torch.cat(labels)
    return (x[:-600], y[:-600]), (x[-600:-400], y[-600:-400]), (x[-400:], y[-400:])


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def dataset(part: Part) -> TensorDataset:
    return TensorDataset(*part)
