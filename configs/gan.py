"""A generative adversarial network on the digits: a step of its own, two networks, two optimizers, one Trainer.

    clusterdp submit configs/gan.yaml --cluster local
    python configs/gan.py epochs=5

The two networks are one model for the Trainer, as an nn.ModuleDict. The step calls the networks one by one, and the
gradients are averaged over the ranks at the end of each backward pass.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from clusterdp.errors import TrainError
from clusterdp.recipes.digits import load_digits
from clusterdp.recipes.results import digest
from clusterdp.train import JobHandle, Trainer

NOISE = 16  # numbers from which the generator makes an image


def main(
    job: JobHandle,
    epochs: int = 10,
    batch_size: int = 16,
    lr: float = 5e-4,
    step_delay_s: float = 0.0,
    at_most: float = 1.0,
) -> float:
    """Trains both networks, and returns the mean difference between made and held-out images (see difference()).
    batch_size: images a step of one rank. step_delay_s: pause after each step."""
    train, test = load_digits()
    nets = nn.ModuleDict({"generator": generator(), "discriminator": discriminator()})
    g_optimizer = torch.optim.Adam(nets["generator"].parameters(), lr=lr, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(nets["discriminator"].parameters(), lr=lr, betas=(0.5, 0.999))

    def step(trainer: Trainer, batch: Any) -> dict[str, torch.Tensor]:
        make, judge = trainer.model["generator"], trainer.model["discriminator"]  # type: ignore[index]
        real = batch[0]
        made = make(torch.randn(len(real), NOISE, device=job.device))

        d_loss = hinge(judge(real)) + hinge(-judge(made.detach()))
        descend(d_loss, d_optimizer)

        judge.requires_grad_(False)  # this pass leaves no gradients in the discriminator, and none are sent
        g_loss = -judge(made).mean()
        descend(g_loss, g_optimizer)
        judge.requires_grad_(True)

        time.sleep(step_delay_s)
        return {"g_loss": g_loss.detach(), "d_loss": d_loss.detach()}

    optimizers = {"g_optimizer": g_optimizer, "d_optimizer": d_optimizer}
    trainer = Trainer(nets, job=job, step=step, state=optimizers)
    history = trainer.fit(train, epochs=epochs, batch_size=batch_size, drop_last=True)
    reached = difference(job, trainer, test.tensors[0])
    job.log(difference=reached, digest=digest(nets, g_optimizer, d_optimizer))
    if job.rank == 0:
        print(f"{history}\ngan: made images differ from held-out ones by {reached:.4f} a pixel", flush=True)
    if reached > at_most:
        raise TrainError(f"at_most: the difference is {reached:.4f}, and not {at_most}. Train longer, or expect less.")
    return reached


def generator() -> nn.Module:
    return nn.Sequential(
        nn.Linear(NOISE, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 256), nn.BatchNorm1d(256), nn.ReLU(),
        nn.Linear(256, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)),
    )  # fmt: skip


def discriminator() -> nn.Module:
    """Returns a network with spectral normalisation, whose vectors are buffers that change in each forward pass."""
    widths = (64, 256, 128, 1)
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(widths):
        layers += [nn.utils.parametrizations.spectral_norm(nn.Linear(wide, narrow)), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def hinge(judged: torch.Tensor) -> torch.Tensor:
    return functional.relu(1 - judged).mean()


def descend(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def difference(job: JobHandle, trainer: Trainer, real: torch.Tensor) -> float:
    """Returns how far made images are from real ones: the mean over the pixels of the differences of their means and of
    their standard deviations. Equal on all ranks."""
    noise = torch.randn(len(real), NOISE, generator=torch.Generator().manual_seed(0))
    nets = trainer.net.eval()
    made = nets["generator"](noise.to(job.device)).cpu()
    means, deviations = made.mean(0) - real.mean(0), made.std(0) - real.std(0)
    return float((means.abs() + deviations.abs()).mean())


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
