"""Handwritten digits: 1,797 real images of 8x8 pixels, which ship with scikit-learn, and a small convolutional network.

    clusterdp submit configs/digits.yaml --cluster local
    python -m clusterdp.recipes.digits epochs=5
    torchrun --nproc-per-node=2 -m clusterdp.recipes.digits epochs=5

The training has all that makes an exact resume hard: dropout (RNG of each rank), BatchNorm (buffers), fp16 with a
GradScaler whose scale changes, momentum, a schedule, an order of data, and gradients of more than one DDP bucket.
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.recipes.bundled import table
from clusterdp.recipes.results import accuracy, digest, report
from clusterdp.train import Amp, JobHandle

TEST_IMAGES = 360  # a fifth of all images is held out


def main(
    job: JobHandle,
    epochs: int = 8,
    batch_size: int = 8,
    lr: float = 0.05,
    amp: str = "fp16",
    workers: int = 0,
    step_delay_s: float = 0.0,
) -> float:
    """Trains the network, and returns the accuracy on the held-out images. batch_size: images a step of one rank.
    step_delay_s: pause after each step."""
    train_set, test_set = load_digits()
    net = Net()
    model = job.wrap(net, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    loader = job.loader(train_set, batch_size, drop_last=True, num_workers=workers)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    mixed = Amp(amp, job.device, init_scale=2.0**10, growth_interval=50)
    criterion = nn.CrossEntropyLoss()

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "amp": mixed}
    loop = job.loop(loader, state, epochs=epochs)
    for images, labels in loop:
        optimizer.zero_grad()
        with mixed.autocast():
            loss = criterion(model(images.to(job.device)), labels.to(job.device))
        mixed.backward(loss)
        mixed.step(optimizer, clip_norm=5.0)
        scheduler.step()
        loop.log(loss=loss, lr=scheduler.get_last_lr()[0])
        time.sleep(step_delay_s)

    reached = accuracy(job, loop, net, test_set)
    return report(job, loop, "digits", reached, digest=digest(net, optimizer, mixed))


class Net(nn.Module):
    """A network of 273,000 parameters, 1.1 MB. Few channels are used, because with fp16 a CPU without fp16 arithmetic
    takes ten times as long as with fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, stride=2, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Returns the training images and the held-out images."""
    rows = table("digits.csv.gz")
    images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
