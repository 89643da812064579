"""A small U-Net removes noise from the digits: two inputs, skip connections, and each half on a device of its own.

    clusterdp submit configs/unet.yaml --cluster local
    python configs/unet.py epochs=3

With resources.gpus_per_task: 2 the encoder and the decoder are on two GPUs of each rank; else on the same device.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from clusterdp.errors import TrainError
from clusterdp.recipes.digits import load_digits
from clusterdp.recipes.results import digest
from clusterdp.train import JobHandle, Trainer, place


def main(
    job: JobHandle,
    epochs: int = 6,
    batch_size: int = 32,
    lr: float = 2e-3,
    step_delay_s: float = 0.0,
    at_most: float = 1.0,
) -> float:
    """Returns the mean squared error on held-out images. batch_size: images a step of one rank. step_delay_s: pause
    after each step. at_most: the error above which the run fails."""
    train, test = load_digits()
    net = place(UNet(), {"encoder": job.devices[0], "decoder": job.devices[-1]})
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)

    def forward(trainer: Trainer, batch: Any) -> Any:
        (noisy, level), clean = batch
        made = trainer.model(noisy, level)
        clean = clean.to(made.device, non_blocking=True)  # the loss is computed where the decoder is
        return nn.functional.mse_loss(made, clean), made, clean

    def wait(trainer: Trainer, values: Mapping[str, Any]) -> None:
        time.sleep(step_delay_s)

    trainer = Trainer(net, None, optimizer, job=job, forward=forward, on_step=[wait] if step_delay_s else [])
    history = trainer.fit(Noisy(train), epochs=epochs, batch_size=batch_size)
    reached = trainer.evaluate(Noisy(test, fixed=True), batch_size=batch_size)["loss"]
    job.log(error=reached, digest=digest(net, optimizer))
    if job.rank == 0:
        print(f"{history}\nunet: the mean squared error is {reached:.4f}", flush=True)
    if reached > at_most:
        raise TrainError(f"at_most: the error is {reached:.4f}, and not {at_most}. Train longer, or expect less.")
    return reached


class Noisy(Dataset[Any]):
    """((noisy image, level of the noise), image), with other noise in each epoch. fixed: always with the same."""

    def __init__(self, images: TensorDataset, *, fixed: bool = False):
        self._images, self._fixed = images.tensors[0], fixed

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        draw = torch.Generator().manual_seed(index) if self._fixed else None
        image, level = self._images[index], torch.rand(1, generator=draw)
        return (image + level * torch.randn(image.shape, generator=draw), level), image


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = conv(1, 16), conv(16, 32, stride=2)
        self.level = nn.Linear(1, 32)

    def forward(self, image: torch.Tensor, level: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the skip connection, (images, 16, 8, 8), and the deep features, (images, 32, 4, 4)."""
        skip = self.wide(image)
        return skip, self.deep(skip) + self.level(level)[:, :, None, None]


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.join, self.out = conv(32, 16), nn.Conv2d(16, 1, 1)

    def forward(self, skip: torch.Tensor, deep: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.out(self.join(torch.cat([skip, self.up(deep)], 1)))
        return made


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def forward(self, image: torch.Tensor, level: torch.Tensor) -> Any:
        skip, deep = self.encoder(image, level)
        return self.decoder(skip, deep=deep)


def conv(channels: int, made: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, made, 3, stride, 1), nn.BatchNorm2d(made), nn.ReLU())


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
