"""An entry whose moving average is not in the state of its loop, and goes to a file of its own at the end."""

import copy

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.train import JobHandle


def main(job: JobHandle, lr: float = 0.02, epochs: int = 8) -> None:
    points = torch.linspace(-3, 3, 512)[:, None]
    data = TensorDataset(points, torch.sin(2 * points))
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    model = job.wrap(net)
    ema = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr)
    loop = job.loop(job.loader(data, 16), {"model": model, "optimizer": optimizer}, epochs=epochs)
    for x, y in loop:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for average, now in zip(ema.parameters(), net.parameters(), strict=True):
                average.lerp_(now, 0.1)
        loop.log(loss=loss)
    if job.rank == 0:
        torch.save(ema.state_dict(), "ema.pt")
