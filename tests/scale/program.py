"""A training whose steps are small, so that the ranks' agreements and not their gradients take the time."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.recipes.results import digest
from clusterdp.train import JobHandle


def main(job: JobHandle, steps: int = 12, epochs: int = 3) -> None:
    """Trains on two samples a rank and step. Dropout, BatchNorm, momentum and the order of the samples make a resume
    hard."""
    size = 2 * steps * job.world_size
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(size, 8, generator=generator)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))
    model = job.wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = job.loader(TensorDataset(samples, samples.sum(1, keepdim=True)), batch_size=2)
    loop = job.loop(loader, {"model": model, "optimizer": optimizer}, epochs=epochs)
    for inputs, targets in loop:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loop.log(loss=loss)
    job.log(digest=digest(net, optimizer))
