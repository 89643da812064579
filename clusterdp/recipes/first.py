"""A training to begin with: replace its model and its data by your own.

clusterdp submit train.yaml --cluster local       # here, on a fake cluster
clusterdp submit train.yaml params.lr=0.01        # on Slurm
python train.py epochs=5                          # one process, for a debugger
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clusterdp.train import JobHandle, worker


def main(job: JobHandle, lr: float = 0.02, epochs: int = 20, batch_size: int = 32) -> float:
    """Runs on every rank. The arguments come from `params:` of the config. batch_size: samples a step of one rank."""
    points = torch.linspace(-3, 3, 4096)[:, None]
    data = TensorDataset(points, torch.sin(2 * points))
    model = job.wrap(nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)))  # on job.device, wrapped in DDP
    optimizer = torch.optim.Adam(model.parameters(), lr)
    loader = job.loader(data, batch_size)  # this rank's share of the samples
    criterion = nn.MSELoss()

    # The loop saves this state. After a preemption, the job restores the state and continues at the same step.
    loop = job.loop(loader, {"model": model, "optimizer": optimizer}, epochs=epochs)
    for x, y in loop:
        optimizer.zero_grad()
        loss = criterion(model(x.to(job.device)), y.to(job.device))
        loss.backward()
        optimizer.step()
        loop.log(loss=loss)

    with torch.no_grad():
        error = float((model(points.to(job.device)) - torch.sin(2 * points).to(job.device)).abs().mean())
    job.log(test_error=error)
    return error


if __name__ == "__main__":
    raise SystemExit(worker.run(main))
