"""LeNet-5, for images of 32 x 32 pixels."""

from __future__ import annotations

import torch
from torch import nn


class LeNet(nn.Module):
    """LeCun et al., 1998, with ReLU and max-pooling. Takes bytes, a quarter of what floats would take to move."""

    def __init__(self, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images.float() / 255)
        return logits
