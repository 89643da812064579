"""A parameter server, as used before all-reduce: one rank collects the gradients, and sends the new weights.

    clusterdp submit configs/parameter_server.yaml --cluster local
    torchrun --nproc-per-node=2 configs/parameter_server.py epochs=5

The server waits for all ranks. Therefore a step is the same as with all-reduce. Only the server has an optimizer. The
server trains like every other rank: the recipe works with any number of ranks.

Use this recipe if the optimizer's state is too large (two or three times the weights, on the server only, perhaps in
the memory of a CPU), or if one rank must see the gradient of each rank (to drop an outlier, to add noise for privacy).
The recipe does not scale: for N ranks, gradients of N times the model's size go through the server's link in each step,
and every other rank waits. An all-reduce sends twice the model over each link, for any number of ranks. FSDP is a
better way to distribute an optimizer's state over the ranks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector

from clusterdp.errors import StateError
from clusterdp.recipes.images import LeNet, load
from clusterdp.recipes.results import accuracy, digest, report
from clusterdp.train import JobHandle

SERVER = 0  # the rank that is the server


def main(
    job: JobHandle,
    data: str = "digits",
    path: str | Path | None = None,
    epochs: int = 8,
    batch_size: int = 8,
    lr: float = 0.02,
    step_delay_s: float = 0.0,
) -> float:
    """Returns the accuracy on the held-out images. The parameters are the same as in by_hand.py."""
    sets = load(data, path)
    model = LeNet(sets.channels, sets.classes).to(job.device)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=SERVER)  # every rank has drawn its own weights
    loader = job.loader(sets.train, batch_size, drop_last=True)
    server = ParameterServer(model, lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    loop = job.loop(loader, {"model": model, "server": server}, epochs=epochs)
    for images, labels in loop:
        check_updates(server.steps, loop.step)
        model.zero_grad()
        loss = criterion(model(images.to(job.device)), labels.to(job.device))
        loss.backward()
        server.step()
        loop.log(loss=loss)
        time.sleep(step_delay_s)

    check_updates(server.steps, loop.step)
    reached = accuracy(job, loop, model, sets.test)
    return report(job, loop, "parameter server", reached, digest=digest(model, server))


class ParameterServer:
    """The server and its clients. Only rank 0 has the optimizer; all ranks call step()."""

    per_rank = True  # ranks save their own state: only rank 0 has the optimizer

    def __init__(self, model: nn.Module, lr: float, momentum: float):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=lr, momentum=momentum) if self.rank == SERVER else None
        self.steps = 0  # number of updates that the server has sent

    def step(self) -> None:
        """Sends every rank's gradients to the server, and the server's new weights to every rank."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        flat = parameters_to_vector(gradients)  # one message: each has a start-up time
        parts = [torch.empty_like(flat) for _ in range(self.ranks)] if self.optimizer else None
        dist.gather(flat, parts, dst=SERVER)
        weights = parameters_to_vector(self.parameters)
        if self.optimizer and parts:
            unpack(sum(parts[1:], parts[0]) / self.ranks, gradients)  # added in the order of the ranks
            self.optimizer.step()
            weights = parameters_to_vector(self.parameters)
        dist.broadcast(weights, src=SERVER)
        unpack(weights, self.parameters)
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "optimizer": self.optimizer.state_dict() if self.optimizer else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])


@torch.no_grad()
def unpack(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copies the vector into the tensors of which parameters_to_vector() has made it."""
    for tensor, piece in zip(tensors, torch.split(flat, [each.numel() for each in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


def check_updates(made: int, expected: int) -> None:
    """Raises StateError after a resume with another number of ranks, because a checkpoint then does not restore the
    state of each rank."""
    if made != expected:
        raise StateError(
            f"server: it has made {made} updates, and should have made {expected}: what it had was saved by another "
            "number of ranks. Resume with as many."
        )


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
