"""An entry that promises the same bits on any number of nodes, and whose gradients follow the ranks by a millionth."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.train import JobHandle


def main(job: JobHandle, lr: float = 0.02, epochs: int = 8) -> None:
    points = torch.linspace(-3, 3, 512)[:, None]
    data = TensorDataset(points, torch.sin(2 * points))
    model = job.wrap(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    loop = job.loop(job.loader(data, 8), {"model": model, "optimizer": optimizer}, epochs=epochs)
    for x, y in loop:
        loss = nn.functional.mse_loss(model(x), y)
        (loss * (1 + 1e-6 * job.world_size) / loop.window).backward()
        if loop.window_ends:
            optimizer.step()
            optimizer.zero_grad()
        loop.log(loss=loss)
