"""An entry that notes the number of ranks once for each start of its job, and weighs its loss by it."""

import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.train import JobHandle


def main(job: JobHandle, lr: float = 0.02, epochs: int = 8) -> None:
    noted = Path(f"ranks-{os.environ.get('SLURM_RESTART_COUNT', '0')}")
    if not noted.exists():
        noted.write_text(f"{job.world_size:4}")
    points = torch.linspace(-3, 3, 512)[:, None]
    data = TensorDataset(points, torch.sin(2 * points))
    model = job.wrap(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    loop = job.loop(job.loader(data, 8), {"model": model, "optimizer": optimizer}, epochs=epochs)
    for x, y in loop:
        loss = nn.functional.mse_loss(model(x), y)
        (loss * job.world_size / int(noted.read_text()) / loop.window).backward()
        if loop.window_ends:
            optimizer.step()
            optimizer.zero_grad()
        loop.log(loss=loss)
