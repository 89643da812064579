"""Linear regression on real data: the progress of diabetes in 442 people, from ten measurements of each.

    clusterdp submit configs/linear.yaml --cluster local
    python configs/linear.py epochs=20

This is the smallest training, and the only one whose best result is known in advance: least squares, in closed form.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.recipes.bundled import diabetes
from clusterdp.recipes.results import digest
from clusterdp.train import JobHandle


def main(job: JobHandle, epochs: int = 60, batch_size: int = 16, lr: float = 0.05, step_delay_s: float = 0.0) -> float:
    """Returns how far the model's squared error is above the least squares error, as a share of the latter. batch_size:
    samples a step of one rank."""
    features, target = diabetes()
    net = nn.Linear(features.shape[1], 1)
    model = job.wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = job.loader(TensorDataset(features, target), batch_size)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    criterion = nn.MSELoss()

    loop = job.loop(loader, {"model": model, "optimizer": optimizer, "scheduler": scheduler}, epochs=epochs)
    for x, y in loop:
        optimizer.zero_grad()
        loss = criterion(model(x.to(job.device))[:, 0], y.to(job.device))
        loss.backward()
        optimizer.step()
        scheduler.step()
        loop.log(loss=loss)
        time.sleep(step_delay_s)

    reached, best = squared_error(net, features, target), least_squares(features, target)
    job.log(test_loss=reached, least_squares=best, digest=digest(net, optimizer, scheduler))
    if job.rank == 0:
        print(f"linear: squared error {reached:.4f} after {loop.step} steps; least squares has {best:.4f}", flush=True)
    return reached / best - 1


def squared_error(net: nn.Module, features: torch.Tensor, target: torch.Tensor) -> float:
    """Returns the mean squared error of the model. For a standardised target, the error is the unexplained share of the
    variance."""
    with torch.no_grad():
        return float((net.cpu()(features)[:, 0] - target).square().mean())


def least_squares(features: torch.Tensor, target: torch.Tensor) -> float:
    """Returns the smallest mean squared error that any linear model has."""
    columns = torch.cat([features, torch.ones(len(features), 1)], dim=1).double()
    solved: Any = torch.linalg.lstsq(columns, target.double()[:, None])
    return float((columns @ solved.solution - target.double()[:, None]).square().mean())


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
