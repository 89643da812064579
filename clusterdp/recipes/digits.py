"""Handwritten digits: 1,797 real images of 8x8 pixels, which ship with scikit-learn, and a small convolutional network.

    clusterdp submit configs/digits.yaml --cluster local
    python -m clusterdp.recipes.digits epochs=5
    torchrun --nproc-per-node=2 -m clusterdp.recipes.digits epochs=5

It has what makes an exact resume hard: dropout (RNG of each rank), BatchNorm (buffers), fp16 with a GradScaler whose
scale moves, momentum, a schedule, an order of data, and gradients of more than one DDP bucket.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.recipes.data.bundled import table
from clusterdp.train import Amp, JobHandle, Loop

TEST_IMAGES = 360  # a fifth is held out


def main(
    job: JobHandle,
    epochs: int = 8,
    batch_size: int = 8,
    lr: float = 0.05,
    amp: str = "fp16",
    workers: int = 0,
    step_delay_s: float = 0.0,
) -> float:
    """Returns the accuracy on the held-out images. batch_size: of one rank. step_delay_s: for slow motion."""
    train_set, test_set = load_digits()
    model = job.wrap(Net(), bucket_cap_mb=0.5)
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
        if step_delay_s:
            time.sleep(step_delay_s)

    accuracy = evaluate(job, loop, model, test_set)
    job.log(test_accuracy=accuracy, digest=digest(model, optimizer, mixed))
    if job.rank == 0:
        print(f"digits: test accuracy {accuracy:.4f} after {loop.step} steps", flush=True)
    return accuracy


class Net(nn.Module):
    """273,000 parameters, 1.1 MB. Few channels: a CPU without fp16 arithmetic takes ten times as long as in fp32."""

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
    """Training and held-out images."""
    rows = table("digits.csv.gz")
    images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def evaluate(job: JobHandle, loop: Loop[Any], model: nn.Module, test_set: TensorDataset) -> float:
    """Each rank takes its share of the images. They may be uneven."""
    net = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    net.eval()
    right = torch.zeros((), device=job.device)
    with torch.no_grad():
        for place in loop.watch(range(job.rank, len(test_set), job.world_size)):
            image, label = test_set[place]
            right += net(image[None].to(job.device)).argmax().cpu() == label
    net.train()
    dist.all_reduce(right)
    return right.item() / len(test_set)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer, mixed: Amp) -> str:
    """Of every bit of the state: two runs that end with the same one have done the same."""
    hash_ = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        hash_.update(name.removeprefix("module.").encode() + tensor.cpu().numpy().tobytes())
    for index, slots in optimizer.state_dict()["state"].items():
        for name, value in sorted(slots.items()):
            hash_.update(f"{index}.{name}".encode())
            hash_.update(value.cpu().numpy().tobytes() if torch.is_tensor(value) else repr(value).encode())
    hash_.update(repr(sorted(mixed.state_dict().items())).encode())
    return hash_.hexdigest()


if __name__ == "__main__":
    import sys

    from clusterdp.train import worker

    sys.exit(worker.run(main))
